// Sandboxes that are paused, resumed, woken, forked and saved.
import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import * as e2b from 'e2b'
import { eventually } from './world.mjs'

const { Sandbox } = e2b
const made = []

async function create(...args) {
  const options = typeof args.at(-1) === 'object' ? args.pop() : {}
  const sandbox = await Sandbox.create(...args, { timeoutMs: 300_000, ...options })
  made.push(sandbox)
  return sandbox
}

after(() => Promise.all(made.map((sandbox) => sandbox.kill())))

const bootID = async (sandbox) => (await sandbox.commands.run('cat /proc/sys/kernel/random/boot_id')).stdout

test('pause and resume', async () => {
  const sandbox = await create({ metadata: { who: 'js' }, envs: { GIVEN: 'at creation' } })
  await sandbox.files.write('/home/user/note', 'kept')
  const process = await sandbox.commands.run('sleep 100000', { background: true })
  process.wait().catch(() => {}) // the pause cuts its stream
  const boot = await bootID(sandbox)

  assert.equal(await sandbox.pause(), true)
  assert.equal(await sandbox.pause(), false)
  assert.equal(await sandbox.isRunning(), false)
  assert.equal((await Sandbox.getInfo(sandbox.sandboxId)).state, 'paused')
  await assert.rejects(sandbox.commands.run('true'))
  await assert.rejects(sandbox.setTimeout(60_000))

  const again = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 300_000 })
  assert.equal(again.sandboxId, sandbox.sandboxId)
  assert.equal(await bootID(sandbox), boot) // the old tokens open it
  assert.equal(await again.files.read('/home/user/note'), 'kept')
  assert.equal((await again.commands.run('echo $GIVEN')).stdout, 'at creation\n')
  assert.ok((await again.commands.list()).some((p) => p.pid === process.pid))
  assert.equal(await again.commands.kill(process.pid), true)

  await again.pause()
  assert.equal(await sandbox.kill(), true)
  assert.equal(await sandbox.kill(), false)
})

test('pause without memory', async () => {
  const sandbox = await create({ envs: { GIVEN: 'at creation' } })
  await sandbox.files.write('/home/user/note', 'kept')
  const boot = await bootID(sandbox)
  assert.equal(await sandbox.pause({ keepMemory: false }), true)
  assert.equal(await sandbox.pause({ keepMemory: false }), false)
  assert.equal(await sandbox.isRunning(), false)
  await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 300_000 })
  assert.notEqual(await bootID(sandbox), boot) // the old tokens open it
  assert.equal(await sandbox.files.read('/home/user/note'), 'kept')
  assert.equal((await sandbox.commands.run('echo $GIVEN')).stdout, 'at creation\n')
})

test('time limits pause, traffic wakes', async () => {
  const sandbox = await create({ timeoutMs: 300_000, lifecycle: { onTimeout: 'pause', autoResume: true } })
  assert.deepEqual((await sandbox.getInfo()).lifecycle, { autoResume: true, onTimeout: 'pause' })
  await sandbox.setTimeout(0)
  await eventually(async () => (await Sandbox.getInfo(sandbox.sandboxId)).state === 'paused')
  assert.equal((await sandbox.commands.run('echo awake')).stdout, 'awake\n')
  assert.equal((await sandbox.getInfo()).state, 'running')
})

test('forks', async () => {
  const sandbox = await create()
  await sandbox.files.write('/home/user/note', 'source')
  const forks = await sandbox.fork({ count: 2, timeoutMs: 300_000 })
  made.push(...forks)
  assert.equal(new Set([sandbox, ...forks].map((s) => s.sandboxId)).size, 3)
  for (const fork of forks) {
    assert.equal(await fork.files.read('/home/user/note'), 'source')
    await fork.files.write('/home/user/note', 'fork')
  }
  assert.equal(await sandbox.files.read('/home/user/note'), 'source')
  await assert.rejects(sandbox.fork({ count: 0 }))
})

test('snapshots', async () => {
  const sandbox = await create()
  await sandbox.files.write('/home/user/note', 'saved')
  const { snapshotId } = await sandbox.createSnapshot()
  await sandbox.files.write('/home/user/note', 'newer')
  const child = await create(snapshotId)
  assert.equal(await child.files.read('/home/user/note'), 'saved')
  const listed = await Sandbox.listSnapshots({ sandboxId: sandbox.sandboxId }).nextItems()
  assert.deepEqual(listed.map((s) => s.snapshotId), [snapshotId])
  await child.kill()
  assert.equal(await Sandbox.deleteSnapshot(snapshotId), true)
  assert.equal(await Sandbox.deleteSnapshot(snapshotId), false)
})
