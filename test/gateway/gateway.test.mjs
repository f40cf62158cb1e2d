// Sandbox.create({ mcp }), getMcpUrl and getMcpToken of the JavaScript SDK, unmodified.

import assert from 'node:assert/strict'
import http from 'node:http'
import test from 'node:test'

import { Sandbox, Template } from 'e2b'

// A message to the port of the server, by the name that the SDK gives.
function ask(url, token, message) {
  const at = new URL(url)
  const server = new URL(process.env.E2B_SANDBOX_URL)
  return new Promise((resolve, reject) => {
    const request = http.request({
      host: server.hostname, port: server.port, path: at.pathname, method: 'POST',
      headers: { Host: at.host, Authorization: `Bearer ${token}`, 'Content-Type': 'application/json', Accept: 'application/json, text/event-stream' },
    }, async (response) => {
      let text = ''
      for await (const part of response) text += part
      if (response.statusCode !== 200) return resolve({ status: response.statusCode })
      resolve({ status: 200, ...JSON.parse(text.split('\n').findLast((line) => line.startsWith('data: ')).slice(6)) })
    })
    request.on('error', reject)
    request.end(JSON.stringify({ jsonrpc: '2.0', id: 1, ...message }))
  })
}

test('a gateway of two servers', async () => {
  const box = await Sandbox.create({ mcp: { time: {}, memory: {} }, timeoutMs: 300_000 })
  try {
    const url = box.getMcpUrl()
    assert.equal(url, `https://${box.getHost(50005)}/mcp`)
    const token = await box.getMcpToken()
    const { result } = await ask(url, token, { method: 'tools/list' })
    const names = result.tools.map((tool) => tool.name)
    assert.ok(names.includes('get_current_time') && names.includes('create_entities'), names.join())
    const call = { method: 'tools/call', params: { name: 'get_current_time', arguments: { timezone: 'UTC' } } }
    assert.match((await ask(url, token, call)).result.content[0].text, /UTC/)
    assert.equal((await ask(url, 'another', call)).status, 401)
    const again = await Sandbox.connect(box.sandboxId)
    assert.equal(await again.getMcpToken(), token)
  } finally {
    await box.kill()
  }
})

test('a name that is not there', async () => {
  await assert.rejects(Sandbox.create({ mcp: { fetsh: {} } }), /Failed to start MCP gateway: .*there is fetch/s)
})

test('servers of a build', async () => {
  assert.match(JSON.stringify(await Template.toJSON(Template().fromTemplate('mcp-gateway').addMcpServer(['time', 'git']))), /mcp-gateway pull time git/)
})
