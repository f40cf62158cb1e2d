// The checkpoint tree as a JavaScript program has it: the SDK, and Cay's own
// routes over plain HTTP.
import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import { Sandbox } from 'e2b'

const made = []
after(() => Promise.all(made.map((sandbox) => sandbox.kill())))

async function cay(method, path, body) {
  const reply = await fetch(`${process.env.E2B_API_URL}/cay/v1${path}`, {
    method, headers: { 'X-API-Key': process.env.E2B_API_KEY, 'Content-Type': 'application/json' },
    body: body && JSON.stringify(body),
  })
  const text = await reply.text()
  return { status: reply.status, body: text ? JSON.parse(text) : null }
}

async function ok(method, path, body) {
  const { status, body: answer } = await cay(method, path, body)
  assert.ok(status < 300, `${method} ${path}: ${status} ${JSON.stringify(answer)}`)
  return answer
}

test('checkpoint, branch, compare, promote, go back', async () => {
  const sandbox = await Sandbox.create({ timeoutMs: 300_000 })
  made.push(sandbox)
  const path = `/sandboxes/${sandbox.sandboxId}`
  await sandbox.files.write('/home/user/note', 'one\n')
  const first = await ok('POST', `${path}/checkpoints`, { label: 'first' })

  const forks = await ok('POST', `/checkpoints/${first.checkpointID}/fork`, { count: 2, timeout: 300 })
  const [a, b] = await Promise.all(forks.map((f) => Sandbox.connect(f.sandbox.sandboxID)))
  made.push(a, b)
  await b.files.write('/home/user/note', 'two\n')
  assert.equal(await a.files.read('/home/user/note'), 'one\n')

  const changed = await ok('GET', `/sandboxes/${b.sandboxId}/diff`)
  assert.deepEqual(changed.changes.filter((c) => c.path === '/home/user/note').map((c) => [c.change, c.diff]), [['changed',
    '--- a/home/user/note\n+++ b/home/user/note\n@@ -1,1 +1,1 @@\n-one\n+two\n']])

  const moved = await ok('POST', `${path}/promote`, { branch: b.sandboxId })
  assert.equal(moved.sandboxID, sandbox.sandboxId)
  assert.equal(await sandbox.files.read('/home/user/note'), 'two\n')
  const tree = await ok('GET', `${path}/checkpoints`)
  assert.deepEqual(tree.branches.map((t) => t.sandboxID).sort(), [a.sandboxId, sandbox.sandboxId].sort())
  assert.ok(tree.checkpoints.some((n) => n.parentID === first.checkpointID))

  await ok('POST', `${path}/rollback`, { checkpointID: first.checkpointID })
  assert.equal(await sandbox.files.read('/home/user/note'), 'one\n')
  assert.equal((await cay('POST', `${path}/rollback`, { checkpointID: 'snothing' })).status, 404)
  assert.equal((await cay('DELETE', `/checkpoints/${first.checkpointID}`)).status, 409) // in use
})
