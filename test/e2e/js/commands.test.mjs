// Every method of commands and pty.
import assert from 'node:assert/strict'
import { before, test } from 'node:test'
import * as e2b from 'e2b'
import { eventually, sandbox, uncalled, watch } from './world.mjs'

const missing = 2 ** 31 - 1
const of = (name, text = /./) => (error) => error instanceof e2b[name] && text.test(error.message)

let classes

before(async () => {
  const sbx = await sandbox()
  const handle = await sbx.commands.run('true', { background: true })
  classes = [sbx.commands, sbx.pty, handle].map((object) => object.constructor)
  watch(...classes)
})

test('run', async () => {
  const sbx = await sandbox()
  let out = ''
  let err = ''
  const result = await sbx.commands.run('echo out; echo err >&2', {
    onStdout: (text) => { out += text },
    onStderr: (text) => { err += text },
  })
  assert.deepEqual([result.stdout, result.stderr, result.exitCode], ['out\n', 'err\n', 0])
  assert.deepEqual([out, err], ['out\n', 'err\n'])
})

test('run fails', async () => {
  const sbx = await sandbox()
  await assert.rejects(sbx.commands.run('echo out; exit 3'), (error) =>
    error instanceof e2b.CommandExitError && error.exitCode === 3 && error.stdout === 'out\n' && error.error === 'exit status 3')
})

test('user, directory, environment', async () => {
  const sbx = await sandbox()
  const run = async (cmd, options) => (await sbx.commands.run(cmd, options)).stdout
  assert.equal(await run('whoami; pwd'), 'user\n/home/user\n')
  assert.equal(await run('whoami; echo $HOME', { user: 'root' }), 'root\n/root\n')
  assert.equal(await run('pwd', { cwd: '/tmp' }), '/tmp\n')
  assert.equal(await run('echo $A', { envs: { A: 'b c' } }), 'b c\n')
})

test('refusals', async () => {
  const sbx = await sandbox()
  await assert.rejects(sbx.commands.run('true', { cwd: '/not/here' }), of('InvalidArgumentError', /cwd '\/not\/here' does not exist/))
  await assert.rejects(sbx.commands.run('true', { user: 'root123' }), of('AuthenticationError', /invalid username: 'root123'/))
  await assert.rejects(sbx.commands.run('sleep 1000', { timeoutMs: 1000 }), of('TimeoutError'))
})

test('unknown process', async () => {
  const sbx = await sandbox()
  await assert.rejects(sbx.commands.connect(missing), of('NotFoundError', /not found/))
  await assert.rejects(sbx.commands.sendStdin(missing, 'x'), of('NotFoundError', /not found/))
  await assert.rejects(sbx.pty.connect(missing), of('NotFoundError', /not found/))
  await assert.rejects(sbx.pty.sendInput(missing, new Uint8Array([1])), of('NotFoundError', /not found/))
  await assert.rejects(sbx.pty.resize(missing, { cols: 80, rows: 24 }), of('NotFoundError', /not found/))
  assert.equal(await sbx.commands.kill(missing), false)
  assert.equal(await sbx.pty.kill(missing), false)
})

test('background, stdin, connect, list, kill', async () => {
  const sbx = await sandbox()
  const cat = await sbx.commands.run('cat', { background: true, stdin: true })
  const other = await sbx.commands.connect(cat.pid)
  assert((await sbx.commands.list()).some((p) => p.pid === cat.pid && p.args.at(-1) === 'cat'))
  await sbx.commands.sendStdin(cat.pid, 'hello\n')
  await eventually(() => cat.stdout === 'hello\n' && other.stdout === 'hello\n')
  await cat.sendStdin('again\n')
  await eventually(() => other.stdout === 'hello\nagain\n')
  await cat.disconnect()
  await sbx.commands.closeStdin(cat.pid)
  assert.equal((await other.wait()).exitCode, 0)
  const last = await sbx.commands.run('cat', { background: true, stdin: true })
  await last.closeStdin()
  assert.equal((await last.wait()).stdout, '')

  const sleep = await sbx.commands.run('sleep 1000', { background: true })
  assert.equal(await sleep.kill(), true)
  await assert.rejects(sleep.wait(), (error) =>
    error instanceof e2b.CommandExitError && error.exitCode === -1 && error.error === 'signal: killed')
  assert.equal(await sbx.commands.kill(sleep.pid), false)
})

test('many at once', async () => {
  const sbx = await sandbox()
  const results = await Promise.all(Array.from({ length: 30 }, (_, i) => sbx.commands.run(`echo ${i}`)))
  assert.deepEqual(results.map((r) => r.stdout), results.map((_, i) => `${i}\n`))
})

test('pty', async () => {
  const sbx = await sandbox()
  const bytes = (text) => new TextEncoder().encode(text)
  let seen = ''
  const onData = (data) => { seen += new TextDecoder().decode(data) }
  const pty = await sbx.pty.create({ cols: 101, rows: 33, onData, timeoutMs: 0 })
  await sbx.pty.sendInput(pty.pid, bytes('stty size; echo $TERM\n'))
  await eventually(() => seen.includes('33 101') && seen.includes('xterm-256color'))
  await sbx.pty.resize(pty.pid, { cols: 90, rows: 20 })
  await sbx.pty.sendInput(pty.pid, bytes('stty size\n'))
  await eventually(() => seen.includes('20 90'))
  await pty.disconnect()
  const again = await sbx.pty.connect(pty.pid, { onData, timeoutMs: 0 })
  await sbx.pty.sendInput(pty.pid, bytes('echo back-$((40 + 2))\n'))
  await eventually(() => seen.includes('back-42'))
  assert.equal(await sbx.pty.kill(pty.pid), true)
  await assert.rejects(again.wait(), (error) => error instanceof e2b.CommandExitError && error.error === 'signal: killed')
})

test('every method was called', () => assert.deepEqual(uncalled(...classes), []))
