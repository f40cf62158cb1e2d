import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Sandbox } from '@e2b/code-interpreter'

test('the quickstart prints what the README says', async () => {
  const sbx = await Sandbox.create()
  const { logs } = await sbx.runCode("print('hello world')")
  assert.deepEqual(logs, { stdout: ['hello world\n'], stderr: [] })
  const names = (await sbx.files.list('/')).map((entry) => entry.name)
  for (const name of ['etc', 'home', 'usr']) assert.ok(names.includes(name), name)
  await sbx.kill()
})
