// The words of a server besides its results; both ages of the SDK read it.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { test } from 'node:test'
import * as e2b from 'e2b'

const create = (t, ...args) => e2b.Sandbox.create(...args, { timeoutMs: 300_000 }).then((sbx) => {
  t.after(() => e2b.Sandbox.kill(sbx.sandboxId))
  return sbx
})

test('a sandbox whose agent does not answer is resumed from its files alone', async (t) => {
  const sbx = await create(t, 'base')
  await sbx.files.write('/home/user/kept', 'kept')
  await assert.rejects(() => sbx.commands.run('kill -STOP 1; sleep 60', { user: 'root', timeoutMs: 5_000, requestTimeoutMs: 5_000 }))
  assert.equal(await e2b.Sandbox.pause(sbx.sandboxId), true)
  await assert.rejects(() => e2b.Sandbox.connect(sbx.sandboxId), (error) => /409/.test(error.message) && /did not answer/.test(error.message))
  const reply = await fetch(`${process.env.E2B_API_URL}/v2/sandboxes/${sbx.sandboxId}/connect`, {
    method: 'POST', headers: { 'X-API-Key': process.env.E2B_API_KEY, 'Content-Type': 'application/json' },
    body: JSON.stringify({ memory: false }),
  })
  assert.equal(reply.status, 201)
  const again = await e2b.Sandbox.connect(sbx.sandboxId, { timeoutMs: 300_000 })
  assert.equal(await again.files.read('/home/user/kept'), 'kept')
})

test('snapshots have tags', async (t) => {
  const name = `e2e-${randomUUID().slice(0, 13)}`
  const sbx = await create(t, 'base')
  await sbx.files.write('/home/user/version', '1')
  const first = await sbx.createSnapshot({ name: `${name}:v1` })
  assert.match(first.snapshotId, new RegExp(`/${name}:v1$`))
  await sbx.files.write('/home/user/version', '2')
  const second = await sbx.createSnapshot({ name })
  const child = await create(t, first.snapshotId)
  assert.equal(await child.files.read('/home/user/version'), '1')
  assert.equal(await e2b.Sandbox.deleteSnapshot(second.snapshotId), true)
  assert.equal(await e2b.Sandbox.deleteSnapshot(second.snapshotId), false)
  await child.kill()
  assert.equal(await e2b.Sandbox.deleteSnapshot(first.snapshotId), true)
})

test('an id that nothing can have is refused', async () => {
  await assert.rejects(() => e2b.Sandbox.connect('NOT_AN_ID'), /400/)
  assert.equal(await e2b.Sandbox.kill('i0000'), false)
})
