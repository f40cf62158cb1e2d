// The files of a volume, in every form that the SDK knows.
import assert from 'node:assert/strict'
import { randomBytes, randomUUID } from 'node:crypto'
import { after, before, test } from 'node:test'
import * as e2b from 'e2b'

const { Volume } = e2b
const of = (name) => (error) => error instanceof e2b[name]
let volume

before(async () => {
  volume = await Volume.create(`js-${randomUUID().slice(0, 8)}`)
})
after(() => Volume.destroy(volume.volumeId))

/** A directory of the test's own. */
async function root() {
  const path = `/${randomUUID().slice(0, 8)}`
  await volume.makeDir(path)
  return path
}

/** Bytes in pieces. */
function stream(...parts) {
  return new ReadableStream({
    start(controller) {
      for (const part of parts) controller.enqueue(part)
      controller.close()
    },
  })
}

test('text, bytes, blobs and streams go both ways', async () => {
  const dir = await root()
  const much = new Uint8Array(randomBytes(3 << 20))
  const text = new TextEncoder().encode('grüß\n')
  for (const [name, data, want] of [
    ['text', 'grüß\n', text],
    ['bytes', much.buffer, much],
    ['blob', new Blob([text]), text],
    ['stream', stream(much.slice(0, 1 << 20), much.slice(1 << 20)), much],
    ['empty', '', new Uint8Array()],
  ]) {
    const path = `${dir}/${name}`
    const entry = await volume.writeFile(path, data)
    assert.deepEqual([entry.name, entry.path, entry.type, entry.size], [name, path, 'file', want.length])
    assert.deepEqual(await volume.readFile(path, { format: 'bytes' }), want)
    assert.deepEqual(new Uint8Array(await (await volume.readFile(path, { format: 'blob' })).arrayBuffer()), want)
    if (name !== 'empty') {
      const parts = []
      for await (const part of await volume.readFile(path, { format: 'stream' })) parts.push(part)
      assert.equal(Buffer.compare(Buffer.concat(parts), Buffer.from(want)), 0)
    }
    if (want === text) assert.equal(await volume.readFile(path), 'grüß\n')
  }
  assert.equal(await volume.readFile(`${dir}/empty`), '')
})

test('directories and metadata', async () => {
  const dir = await root()
  const made = await volume.makeDir(`${dir}/a/b`, { force: true, mode: 0o750, uid: 7, gid: 8 })
  assert.deepEqual([made.type, made.mode, made.uid, made.gid], ['directory', 0o750, 7, 8])
  await volume.writeFile(`${dir}/a/f`, 'x', { mode: 0o600, uid: 5, gid: 6 })
  await volume.writeFile(`${dir}/c/d/e`, 'x', { force: true })
  assert.deepEqual((await volume.list(dir)).map((entry) => entry.name), ['a', 'c'])
  assert.deepEqual((await volume.list(dir, { depth: 3 })).map((entry) => entry.path),
    ['a', 'a/b', 'a/f', 'c', 'c/d', 'c/d/e'].map((name) => `${dir}/${name}`))
  const info = await volume.getInfo(`${dir}/a/f`)
  assert.deepEqual([info.mode, info.uid, info.gid, info.size], [0o600, 5, 6, 1])
  for (const stamp of [info.atime, info.mtime, info.ctime]) assert.ok(Math.abs(Date.now() - stamp) < 3_600_000)
  assert.equal((await volume.updateMetadata(`${dir}/a/f`, { mode: 0o640 })).mode, 0o640)
  assert.equal(await volume.exists(`${dir}/a/f`), true)
  await volume.remove(`${dir}/a`)
  assert.equal(await volume.exists(`${dir}/a/f`), false)
})

test('what is not there, and what is refused', async () => {
  const dir = await root()
  const none = `${dir}/none`
  for (const call of [
    () => volume.readFile(none), () => volume.readFile(none, { format: 'stream' }), () => volume.getInfo(none),
    () => volume.list(none), () => volume.remove(none), () => volume.updateMetadata(none, { mode: 0o600 }),
    () => volume.makeDir(`${none}/d`), () => volume.writeFile(`${none}/f`, 'x'),
  ]) await assert.rejects(call, of('VolumePathNotFoundError'))
  for (const [call, words] of [
    [() => volume.makeDir(dir), /exists/], [() => volume.remove('/'), /root/], [() => volume.list(dir, { depth: 1000 }), /depth/],
    [() => volume.writeFile(dir, 'x'), /directory/], [() => volume.getInfo('a'.repeat(300)), /long/],
  ]) await assert.rejects(call, (error) => of('VolumeError')(error) && words.test(error.message))
  const wrong = new Volume(volume.volumeId, volume.name, `${volume.token.slice(0, -1)}x`)
  await assert.rejects(wrong.readFile(dir), of('AuthenticationError'))
})
