// Every method of files and git.
import assert from 'node:assert/strict'
import { createHash, randomBytes, randomUUID } from 'node:crypto'
import { before, test } from 'node:test'
import {
  AuthenticationError,
  FileNotFoundError,
  FileType,
  FilesystemEventType,
  GitAuthError,
  GitUpstreamError,
  InvalidArgumentError,
} from 'e2b'
import { eventually, sandbox, uncalled, watch } from './world.mjs'

const big = randomBytes(5 << 20)
const arrayBuffer = (b) => b.buffer.slice(b.byteOffset, b.byteOffset + b.byteLength)

/** The shared sandbox and a new directory of it. */
async function place() {
  const sbx = await sandbox()
  const at = `/home/user/${randomUUID()}`
  assert.equal(await sbx.files.makeDir(at), true)
  return { sbx, files: sbx.files, at }
}

async function drain(stream) {
  const chunks = []
  for await (const chunk of stream) chunks.push(chunk)
  return Buffer.concat(chunks)
}

let classes

before(async () => {
  const sbx = await sandbox()
  const handle = await sbx.files.watchDir('/tmp', () => {})
  await handle.stop()
  classes = [sbx.files, sbx.git, handle].map((object) => object.constructor)
  watch(...classes)
})

test('write and read in every format', async () => {
  const { files, at } = await place()
  for (const opts of [{}, { gzip: true }, { useOctetStream: true }]) {
    const info = await files.write(`${at}/a b/é.txt`, 'hällo', opts)
    assert.deepEqual([info.path, info.name, info.type], [`${at}/a b/é.txt`, 'é.txt', FileType.FILE])
    assert.equal(info.metadata, undefined)
    assert.equal(await files.read(info.path, { gzip: opts.gzip }), 'hällo')
    assert.equal(Buffer.from(await files.read(info.path, { format: 'bytes' })).toString(), 'hällo')
    assert.equal(await (await files.read(info.path, { format: 'blob' })).text(), 'hällo')
    assert.equal((await drain(await files.read(info.path, { format: 'stream' }))).toString(), 'hällo')
  }
})

test('empty files', async () => {
  const { files, at } = await place()
  for (const gzip of [false, true]) {
    await files.write(`${at}/empty`, '', { gzip })
    assert.equal(await files.read(`${at}/empty`, { gzip }), '')
    assert.equal((await files.read(`${at}/empty`, { format: 'bytes', gzip })).length, 0)
    assert.equal((await files.read(`${at}/empty`, { format: 'blob', gzip })).size, 0)
    assert.equal((await drain(await files.read(`${at}/empty`, { format: 'stream', gzip }))).length, 0)
  }
})

test('five megabytes', async () => {
  const { sbx, files, at } = await place()
  for (const opts of [{}, { gzip: true }, { useOctetStream: true }]) {
    await files.write(`${at}/big`, arrayBuffer(big), opts)
    assert.ok(big.equals(Buffer.from(await files.read(`${at}/big`, { format: 'bytes', gzip: opts.gzip }))))
  }
  const stream = new Blob([big]).stream()
  await files.write(`${at}/stream`, stream)
  assert.ok(big.equals(await drain(await files.read(`${at}/stream`, { format: 'stream' }))))
  const { stdout } = await sbx.commands.run(`sha256sum ${at}/stream`)
  assert.equal(stdout.split(' ')[0], createHash('sha256').update(big).digest('hex'))
})

test('several files in one call', async () => {
  const { files, at } = await place()
  const entries = [...Array(10).keys()].map((i) => ({ path: `${at}/d${i}/f`, data: `${i}`.repeat(1000) }))
  const infos = await files.write(entries)
  assert.deepEqual(infos.map((i) => i.path), entries.map((e) => e.path))
  for (const e of entries) assert.equal(await files.read(e.path), e.data)
  assert.deepEqual((await files.writeFiles(entries)).map((i) => i.path), entries.map((e) => e.path))
  assert.deepEqual(await files.write([]), [])
})

test('paths and users', async () => {
  const { files, at } = await place()
  const name = randomUUID()
  for (const path of [name, `~/${name}`]) {
    assert.equal((await files.write(path, 'x')).path, `/home/user/${name}`)
    assert.equal(await files.read(path), 'x')
  }
  assert.equal((await files.write(name, 'x', { user: 'root' })).path, `/root/${name}`)
  for (const user of ['user', 'root']) {
    await files.write(`${at}/${user}/f`, 'x', { user })
    assert.equal((await files.getInfo(`${at}/${user}`)).owner, user)
    assert.equal((await files.getInfo(`${at}/${user}/f`)).owner, user)
  }
})

test('metadata', async () => {
  const { files, at } = await place()
  const metadata = { author: 'me', k: 'v 1' }
  assert.deepEqual((await files.write(`${at}/f`, 'x', { metadata })).metadata, metadata)
  assert.deepEqual((await files.getInfo(`${at}/f`)).metadata, metadata)
  assert.deepEqual((await files.list(at))[0].metadata, metadata)
  assert.deepEqual((await files.rename(`${at}/f`, `${at}/g`)).metadata, metadata)
  await files.write(`${at}/g`, 'x')
  assert.equal((await files.getInfo(`${at}/g`)).metadata, undefined)
})

test('list', async () => {
  const { files, at } = await place()
  for (const f of ['b/2/x', 'b/1', 'a']) await files.write(`${at}/${f}`, 'text')
  const names = async (opts) => (await files.list(at, opts)).map((e) => e.path.slice(at.length + 1))
  assert.deepEqual(await names(), ['a', 'b'])
  assert.deepEqual(await names({ depth: 2 }), ['a', 'b', 'b/1', 'b/2'])
  assert.deepEqual(await names({ depth: 9 }), ['a', 'b', 'b/1', 'b/2', 'b/2/x'])
  const [a, b] = await files.list(at)
  assert.deepEqual([a.type, a.size, a.mode, a.permissions, a.owner], [FileType.FILE, 4, 0o644, '-rw-r--r--', 'user'])
  assert.deepEqual([b.type, b.mode, b.permissions], [FileType.DIR, 0o755, 'drwxr-xr-x'])
  assert.ok(a.modifiedTime instanceof Date)
})

test('exists, rename, remove, makeDir', async () => {
  const { files, at } = await place()
  await files.write(`${at}/f`, 'x')
  assert.deepEqual([await files.exists(`${at}/f`), await files.exists(`${at}/g`)], [true, false])
  assert.equal((await files.rename(`${at}/f`, `${at}/new/g`)).path, `${at}/new/g`)
  assert.equal(await files.read(`${at}/new/g`), 'x')
  assert.equal(await files.makeDir(`${at}/new`), false)
  await files.remove(`${at}/new`)
  await files.remove(`${at}/new`)
  assert.deepEqual(await files.list(at), [])
})

test('links', async () => {
  const { sbx, files, at } = await place()
  await files.write(`${at}/f`, 'text')
  await sbx.commands.run(`ln -s f ${at}/link`)
  const info = await files.getInfo(`${at}/link`)
  assert.deepEqual([info.symlinkTarget, info.permissions], [`${at}/f`, 'Lrwxrwxrwx'])
  assert.equal(await files.read(`${at}/link`), 'text')
})

test('watchDir', async () => {
  const { files, at } = await place()
  const seen = []
  let ended = false
  const handle = await files.watchDir(at, (e) => void seen.push(e), {
    recursive: true,
    includeEntry: true,
    timeoutMs: 0,
    onExit: () => void (ended = true),
  })
  const saw = (name, type) => eventually(() => seen.find((e) => e.name === name && e.type === type))
  await files.write(`${at}/f`, 'x')
  assert.equal((await saw('f', FilesystemEventType.CREATE)).entry.path, `${at}/f`)
  await saw('f', FilesystemEventType.WRITE)
  assert.deepEqual(seen.map((e) => e.type), ['create', 'chmod', 'write'])
  await files.rename(`${at}/f`, `${at}/g`)
  await saw('f', FilesystemEventType.RENAME)
  await files.remove(`${at}/g`)
  await saw('g', FilesystemEventType.REMOVE)
  await files.write(`${at}/a/b/c/f`, 'x')
  for (const name of ['a', 'a/b', 'a/b/c', 'a/b/c/f']) await saw(name, FilesystemEventType.CREATE)
  await saw('a/b/c/f', FilesystemEventType.WRITE)
  await handle.stop()
  await eventually(() => ended)
})

test('errors', async () => {
  const { files, at } = await place()
  await files.write(`${at}/f`, 'x')
  const none = `${at}/none`
  for (const call of [
    () => files.read(none),
    () => files.read(none, { format: 'stream' }),
    () => files.list(none),
    () => files.getInfo(none),
    () => files.rename(none, `${at}/g`),
    () => files.watchDir(none, () => {}),
  ]) {
    await assert.rejects(call, FileNotFoundError)
  }
  for (const call of [
    () => files.read(at),
    () => files.list(at, { depth: 0 }),
    () => files.list(`${at}/f`),
    () => files.makeDir(`${at}/f`),
    () => files.write(at, 'x'),
    () => files.write(`${at}/f/g`, 'x'),
    () => files.write([{ path: `${at}/g`, data: '1' }, { path: `${at}/./g`, data: '2' }]),
    () => files.watchDir(`${at}/f`, () => {}),
    () => files.write(`${at}/f`, 'x', { metadata: { k: 'é' } }),
  ]) {
    await assert.rejects(call, InvalidArgumentError)
  }
  for (const call of [
    () => files.read('x', { user: 'nobod' }),
    () => files.write('x', 'x', { user: 'nobod' }),
    () => files.list('x', { user: 'nobod' }),
  ]) {
    await assert.rejects(call, (e) => e instanceof AuthenticationError && /invalid username: 'nobod'/.test(e.message))
  }
})

test('signed URLs', async () => {
  const { sbx, files, at } = await place()
  await files.write(`${at}/f`, 'text')
  const get = async (url, headers) => {
    const answer = await fetch(url, { headers })
    return [answer.status, await answer.text()]
  }
  assert.deepEqual(await get(await sbx.downloadUrl(`${at}/f`)), [200, 'text'])
  const timed = { user: 'user', useSignatureExpiration: 60 }
  assert.deepEqual(await get(await sbx.downloadUrl(`${at}/f`, timed)), [200, 'text'])
  const expired = await sbx.downloadUrl(`${at}/f`, { useSignatureExpiration: -10 })
  const routed = { 'E2b-Sandbox-Id': sbx.sandboxId, 'E2b-Sandbox-Port': '49983' }
  assert.deepEqual(await get(expired, routed), [401, '{"code":401,"message":"signature is already expired"}'])
  // Without a path the form's file name decides.
  const form = new FormData()
  form.append('file', new Blob(['up']), `${at}/dir/up.txt`)
  const answer = await fetch(await sbx.uploadUrl(), { method: 'POST', body: form })
  assert.equal(answer.status, 200)
  assert.equal((await answer.json())[0].path, `${at}/dir/up.txt`)
  assert.equal(await files.read(`${at}/dir/up.txt`), 'up')
})

test('git', async () => {
  const { sbx, files, at } = await place()
  const { git } = sbx
  const url = 'git://127.0.0.1:9420'
  await files.makeDir(`${at}/srv`)
  const daemon = await sbx.commands.run(
    `git daemon --reuseaddr --base-path=${at}/srv --export-all --enable=receive-pack --listen=127.0.0.1 --port=9420`,
    { background: true, timeoutMs: 0 },
  )
  await sbx.commands.run('until (exec 3<>/dev/tcp/127.0.0.1/9420) 2>/dev/null; do sleep 0.1; done')
  const repo = `${at}/clone`
  await git.configureUser('Me', 'me@example.com')
  await git.init(`${at}/srv/r.git`, { bare: true, initialBranch: 'main' })
  await git.clone(`${url}/r.git`, { path: repo })
  assert.equal(await git.remoteGet(repo, 'origin'), `${url}/r.git`)
  await files.write(`${repo}/a.txt`, '1')
  assert.deepEqual((await git.status(repo)).fileStatus.map((f) => [f.name, f.status]), [['a.txt', 'untracked']])
  await git.add(repo)
  await git.commit(repo, 'first', { authorName: 'Other', authorEmail: 'other@example.com' })
  await git.push(repo, { remote: 'origin', branch: 'main' })
  const status = await git.status(repo)
  assert.deepEqual([status.currentBranch, status.upstream, status.isClean], ['main', 'origin/main', true])
  await git.createBranch(repo, 'topic')
  await files.write(`${repo}/b.txt`, '2')
  await git.add(repo, { files: ['b.txt'] })
  await git.commit(repo, 'second')
  await assert.rejects(() => git.pull(repo), GitUpstreamError)
  await git.push(repo, { remote: 'origin', branch: 'topic' })
  await git.checkoutBranch(repo, 'main')
  assert.deepEqual((await git.branches(repo)).branches.sort(), ['main', 'topic'])
  await git.pull(repo, { remote: 'origin', branch: 'topic' })
  assert.equal(await files.read(`${repo}/b.txt`), '2')
  await git.deleteBranch(repo, 'topic', { force: true })
  assert.equal((await git.branches(repo)).currentBranch, 'main')
  await files.write(`${repo}/b.txt`, 'changed')
  await git.restore(repo, { paths: ['b.txt'] })
  assert.equal(await files.read(`${repo}/b.txt`), '2')
  await git.reset(repo, { mode: 'hard', target: 'HEAD~1' })
  assert.equal(await files.exists(`${repo}/b.txt`), false)
  await git.setConfig('user.name', 'Local', { scope: 'local', path: repo })
  assert.equal(await git.getConfig('user.name', { scope: 'local', path: repo }), 'Local')
  await git.remoteAdd(repo, 'second', `${url}/r.git`, { overwrite: true })
  await git.dangerouslyAuthenticate({ username: 'me', password: 'secret', host: 'example.com' })
  assert.equal(await files.read('/home/user/.git-credentials'), 'https://me:secret@example.com\n')
  await assert.rejects(() => git.clone(`${url}/none.git`, { path: `${at}/none` }), GitAuthError)
  await daemon.kill()
})

test('every method was called', () => {
  // Methods that TypeScript calls private are there all the same.
  const inner = ['Git.getRemoteUrl', 'Git.resolveRemoteName', 'Git.withRemoteCredentials']
  assert.deepEqual(uncalled(...classes).filter((name) => !inner.includes(name)), [])
})
