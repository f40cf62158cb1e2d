// Every error that the SDK raises from commands, pty, files and git; those of
// files and git servers are in files.test.mjs.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import * as e2b from 'e2b'
import { sandbox } from './world.mjs'

const of = (name, text = /./) => (error) => error instanceof e2b[name] && text.test(error.message)
const size = { cols: 80, rows: 24, onData: () => {} }

/** A call of each module. */
const oneOfEach = (sbx) => ({
  'commands.run': () => sbx.commands.run('true'),
  'commands.list': () => sbx.commands.list(),
  'pty.create': () => sbx.pty.create(size),
  'files.read': () => sbx.files.read('/etc/hostname'),
  'files.write': () => sbx.files.write('/tmp/f', 'x'),
  'files.list': () => sbx.files.list('/'),
  'git.status': () => sbx.git.status('/tmp'),
})

async function all(sbx, expected) {
  for (const [name, call] of Object.entries(oneOfEach(sbx))) {
    await assert.rejects(call, expected, name)
  }
}

test('wrong token', async () => {
  const { sandboxId } = await sandbox()
  const stranger = new e2b.Sandbox({ sandboxId, envdVersion: '0.6.13', envdAccessToken: '0'.repeat(64) })
  await all(stranger, of('AuthenticationError'))
})

test('killed and paused sandboxes do not run', async () => {
  const killed = await e2b.Sandbox.create({ timeoutMs: 60_000 })
  await killed.kill()
  // The start of a stream says that there is no such sandbox, the rest that it
  // has probably reached its end.
  const gone = (error) => error instanceof e2b.TimeoutError || error instanceof e2b.SandboxNotFoundError
  await all(killed, gone)
  assert.equal(await killed.isRunning(), false)
  const paused = await e2b.Sandbox.create({ timeoutMs: 60_000 })
  try {
    await paused.pause()
    await all(paused, gone)
  } finally {
    await paused.kill()
  }
})

test('refusals', async () => {
  const sbx = await sandbox()
  const mute = await sbx.commands.run('sleep 1000', { background: true })
  for (const [name, text, call] of [
    ['InvalidArgumentError', /cwd '\/none' does not exist/, () => sbx.pty.create({ ...size, cwd: '/none' })],
    ['AuthenticationError', /invalid username: 'x'/, () => sbx.pty.create({ ...size, user: 'x' })],
    ['AuthenticationError', /invalid username: 'x'/, () => sbx.git.status('/tmp', { user: 'x' })],
    ['SandboxError', /stdin not enabled or closed/, () => sbx.commands.sendStdin(mute.pid, 'x')],
    ['SandboxError', /tty not started/, () => sbx.pty.sendInput(mute.pid, new Uint8Array([1]))],
    ['SandboxError', /tty not started/, () => sbx.pty.resize(mute.pid, { cols: 80, rows: 24 })],
    ['CommandExitError', /exit status 7/, () => sbx.commands.run('exit 7')],
    ['TimeoutError', /./, () => sbx.commands.run('sleep 1000', { timeoutMs: 1000 })],
  ]) {
    await assert.rejects(call, of(name, text), `${name} ${text}`)
  }
  await mute.kill()
})
