// Sandboxes from outside: create, list, info, time, kill.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, test } from 'node:test'
import * as e2b from 'e2b'
import { eventually } from './world.mjs'

const { Sandbox } = e2b
const made = []

async function create(options = {}) {
  const sandbox = await Sandbox.create({ timeoutMs: 300_000, ...options })
  made.push(sandbox)
  return sandbox
}

after(() => Promise.all(made.map((sandbox) => sandbox.kill())))

const idsOf = (list) => list.map((info) => info.sandboxId)

/** Whether an error is of a class or one made from it. */
const of = (name) => (error) => error instanceof e2b[name]

test('info', async () => {
  const sandbox = await create({ metadata: { who: 'ann' }, timeoutMs: 120_000 })
  const info = await sandbox.getInfo()
  assert.equal(info.sandboxId, sandbox.sandboxId)
  assert.equal(info.name, 'base')
  assert.deepEqual(info.metadata, { who: 'ann' })
  assert.equal(info.state, 'running')
  assert.equal(info.endAt - info.startedAt, 120_000)
})

test('environment', async () => {
  const sandbox = await create({ envs: { GREETING: 'hello there' } })
  assert.equal((await sandbox.commands.run('echo $GREETING')).stdout, 'hello there\n')
})

test('list by metadata and by pages', async () => {
  const mark = randomUUID()
  const odd = await create({ metadata: { mark, 'user name': 'a&b=c+d%20ü' } })
  const others = [await create({ metadata: { mark } }), await create({ metadata: { mark } })]
  const found = await Sandbox.list({ query: { metadata: { mark, 'user name': 'a&b=c+d%20ü' } } }).nextItems()
  assert.deepEqual(idsOf(found), [odd.sandboxId])
  const pages = Sandbox.list({ query: { metadata: { mark }, state: ['running'] }, limit: 2 })
  assert.deepEqual(idsOf(await pages.nextItems()), [others[1].sandboxId, others[0].sandboxId])
  assert.ok(pages.hasNext)
  assert.deepEqual(idsOf(await pages.nextItems()), [odd.sandboxId])
  assert.ok(!pages.hasNext)
})

test('set a timeout, connect', async () => {
  const sandbox = await create()
  await sandbox.setTimeout(200_000)
  const { endAt } = await sandbox.getInfo()
  await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 10_000 })
  assert.deepEqual((await sandbox.getInfo()).endAt, endAt)
  const again = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 900_000 })
  assert.ok((await again.getInfo()).endAt > endAt)
  await sandbox.files.write('note.txt', 'kept')
  assert.equal(await again.files.read('note.txt'), 'kept')
})

test('past its timeout a sandbox is gone', async () => {
  const sandbox = await create({ timeoutMs: 5_000 })
  await eventually(async () => !(await sandbox.isRunning()))
  await assert.rejects(sandbox.getInfo(), of('NotFoundError'))
})

test('kill', async () => {
  const sandbox = await create()
  assert.equal(await sandbox.isRunning(), true)
  assert.equal(await sandbox.kill(), true)
  assert.equal(await sandbox.isRunning(), false)
  assert.equal(await sandbox.kill(), false)
  await assert.rejects(Sandbox.connect(sandbox.sandboxId), of('NotFoundError'))
})

test('killed in mid-stream', async () => {
  const sandbox = await create()
  let up
  const started = new Promise((resolve) => (up = resolve))
  const command = await sandbox.commands.run('echo up; exec sleep 600', {
    background: true,
    timeoutMs: 0,
    onStdout: () => up(),
  })
  const ended = assert.rejects(command.wait(), of('TimeoutError'))
  await started
  await sandbox.kill()
  await ended
})

test('wrong key, unknown template, wrong timeout', async () => {
  await assert.rejects(Sandbox.create({ apiKey: 'e2b_' + '0'.repeat(40) }), of('AuthenticationError'))
  await assert.rejects(Sandbox.create('no-such-template'), /404.*not found/s)
  await assert.rejects(Sandbox.create({ timeoutMs: -1000 }), /400.*timeout/s)
})
