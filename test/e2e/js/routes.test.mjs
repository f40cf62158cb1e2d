// A web server inside, reached through the one port by host and by headers.
import assert from 'node:assert/strict'
import http from 'node:http'
import https from 'node:https'
import { test } from 'node:test'
import { eventually, sandbox } from './world.mjs'

/** GET with headers that fetch does not let one set. */
function get(headers) {
  const { protocol, hostname, port } = new URL(process.env.E2B_API_URL)
  return new Promise((resolve, reject) => {
    // The certificate is of the address, not of the header's host.
    const from = protocol === 'https:' ? https : http
    from
      .get({ hostname, port, servername: '', path: '/', headers }, async (reply) => {
        let body = ''
        for await (const chunk of reply) body += chunk
        resolve({ status: reply.statusCode, body })
      })
      .on('error', reject)
  })
}

test('a web server by host and by headers', async () => {
  const sbx = await sandbox()
  const code = "require('http').createServer((_, reply) => reply.end('hello from node')).listen(3000)"
  await sbx.commands.run(`node -e "${code}"`, { background: true, timeoutMs: 0 })
  const host = { Host: `3000-${sbx.sandboxId}.localhost` }
  await eventually(async () => (await get(host)).status === 200)
  for (const headers of [host, { 'E2b-Sandbox-Id': sbx.sandboxId, 'E2b-Sandbox-Port': '3000' }]) {
    assert.deepEqual(await get(headers), { status: 200, body: 'hello from node' })
  }
})

test('a closed port and an unknown sandbox are told apart', async () => {
  const sbx = await sandbox()
  const closed = await get({ Host: `4567-${sbx.sandboxId}.localhost` })
  assert.equal(closed.status, 502)
  assert.equal(JSON.parse(closed.body).message, 'The sandbox is running but port is not open')
  const unknown = await get({ Host: '3000-inosuchsandboxatall0.localhost' })
  assert.equal(JSON.parse(unknown.body).message, 'The sandbox was not found')
})
