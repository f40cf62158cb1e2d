import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { test } from 'node:test'

// programs reads a page's programs in JavaScript, each with the output below it.
// The tests run in build/sdk/MODULES/tests.
function programs(page) {
  const text = readFileSync(new URL('../../../../' + page, import.meta.url), 'utf8')
  return [...text.matchAll(/^```js\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?/gms)].map(([, code, output]) => ({ code, output }))
}

const run = (code) => execFileSync(process.execPath, ['--input-type=module', '-e', code], { encoding: 'utf8' })

test('the README prints what it says', () => {
  const [{ code }, ...others] = programs('README.md')
  assert.equal(others.length, 0)
  const output = run(code + 'await sbx.kill()\n')
  assert.ok(output.includes("{ stdout: [ 'hello world\\n' ], stderr: [] }"), output)
  for (const name of ['etc', 'home', 'usr']) assert.ok(output.includes(`name: '${name}'`), name)
})

test('the quickstart prints what it says', () => {
  const [{ code, output }, ...others] = programs('docs/use/quickstart.md')
  assert.equal(others.length, 0)
  assert.equal(run(code), output)
})
