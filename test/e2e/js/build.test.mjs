// The Template builder: a build, its cache, its tags, and a failed step.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { mkdtemp, mkdir, writeFile, symlink } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import * as e2b from 'e2b'

const run = randomBytes(8).toString('hex') // so that no earlier run has filled the cache
const name = () => 't-' + randomBytes(6).toString('hex')

async function build(template, alias) {
  const lines = []
  const info = await e2b.Template.build(template, alias, {
    cpuCount: 1, memoryMB: 512, onBuildLogs: (entry) => lines.push(entry.message),
  })
  return { info, lines, ran: lines.filter((line) => line.includes('[builder') && !line.includes('[std')) }
}

async function context() {
  const dir = await mkdtemp(join(tmpdir(), 'cay-build-'))
  await mkdir(join(dir, 'folder', 'sub'), { recursive: true })
  await writeFile(join(dir, 'folder', 'sub', 'b.txt'), 'b')
  await writeFile(join(dir, 'folder', 'a.txt'), 'a')
  await symlink('a.txt', join(dir, 'folder', 'link'))
  return dir
}

test('build, build again, tag', async () => {
  const dir = await context()
  const flow = (last) => e2b.Template({ fileContextPath: dir })
    .fromTemplate('base')
    .setEnvs({ RUN: run, GREETING: 'hi there' })
    .runCmd(`echo $RUN > ~/run`)
    .copy('folder', 'dest', { mode: 0o755 })
    .runCmd(`echo ${last} > last`)
    .setStartCmd('python3 -m http.server 8000', e2b.waitForURL('http://localhost:8000'))
  const alias = name()
  const first = await build(flow('one'), alias)
  assert.equal(first.ran.length, 4)
  assert(!first.ran.some((line) => line.startsWith('CACHED')), first.lines.join('\n'))
  const sbx = await e2b.Sandbox.create(alias)
  try {
    const text = (await sbx.commands.run('cat ~/last; echo $GREETING; cat dest/sub/b.txt dest/link; stat -c " %a" dest/a.txt; curl -s localhost:8000/last')).stdout
    assert.equal(text, 'one\nhi there\nba 755\none\n')
  } finally {
    await sbx.kill()
  }
  const second = await build(flow('two'), `${alias}:v2`)
  assert.deepEqual(second.ran.map((line) => line.startsWith('CACHED')), [true, true, true, false])
  assert.equal(second.info.templateId, first.info.templateId)
  assert.deepEqual((await e2b.Template.getTags(alias)).map((t) => t.tag).sort(), ['default', 'v2'])
  assert.deepEqual((await e2b.Template.assignTags(`${alias}:v2`, 'latest')).tags, ['latest'])
  await e2b.Template.removeTags(alias, 'v2')
  assert.equal(await e2b.Template.exists(alias), true)
  assert.equal(await e2b.Template.exists(name()), false)
})

test('a failed step', async () => {
  const template = e2b.Template().fromTemplate('base').runCmd('echo why >&2; exit 3')
  await assert.rejects(build(template, name()), (error) =>
    error instanceof e2b.BuildError && /failed to run command .*: exit status 3/.test(error.message))
})

test('a Dockerfile', async () => {
  const dir = await context()
  const template = e2b.Template({ fileContextPath: dir }).fromDockerfile(
    'FROM e2bdev/base\nENV A=1\nRUN echo docker > /docker\nCOPY folder/a.txt /opt/\nUSER worker\nWORKDIR /srv/app\nCMD sleep 1000\n')
    .setReadyCmd(e2b.waitForTimeout(0))
  const alias = name()
  await build(template, alias)
  const sbx = await e2b.Sandbox.create(alias)
  try {
    assert.equal((await sbx.commands.run('cat /docker /opt/a.txt; id -un; pwd; echo $A')).stdout, 'docker\naworker\n/srv/app\n1\n')
  } finally {
    await sbx.kill()
  }
})
