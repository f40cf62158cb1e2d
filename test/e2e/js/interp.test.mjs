// The code interpreter through the unmodified JavaScript SDK.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { InvalidArgumentError, NotFoundError, TimeoutError } from 'e2b'
import { interpreter } from './world.mjs'

const PNG = Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a])

test("a model's answer", async () => {
  const ci = await interpreter()
  const execution = await ci.runCode("word='strawberry'\ncount=word.count('r')\ncount")
  assert.equal(execution.text, '3')
  await ci.runCode('x = 1')
  assert.equal((await ci.runCode('x += 1; x')).text, '2')
})

test('logs, callbacks and errors', async () => {
  const ci = await interpreter()
  const seen = []
  const execution = await ci.runCode(
    "import sys\nprint('one', flush=True)\nprint('two', file=sys.stderr, flush=True)\n1/0",
    {
      onStdout: (message) => seen.push(message.line),
      onStderr: (message) => seen.push(message.line),
      onError: (error) => seen.push(error.name),
    },
  )
  assert.deepEqual(seen, ['one\n', 'two\n', 'ZeroDivisionError'])
  assert.deepEqual(execution.logs, { stdout: ['one\n'], stderr: ['two\n'] })
  assert.equal(execution.error.value, 'division by zero')
  assert.match(execution.error.traceback, /1\/0/)
})

test('data analysis', async () => {
  const ci = await interpreter()
  const rows = Array.from({ length: 10_000 }, (_, i) => `${'abc'[i % 3]},${i}`)
  await ci.files.write('dataset.csv', ['kind,value', ...rows].join('\n'))
  const execution = await ci.runCode(`
import pandas as pd
import matplotlib.pyplot as plt
frame = pd.read_csv("dataset.csv")
plt.plot(frame["value"][:10], label="first")
plt.xlabel("Time (s)")
plt.show()
len(frame)
`)
  assert.equal(execution.error, undefined)
  assert.equal(execution.text, '10000')
  const [picture] = execution.results
  assert.deepEqual(Buffer.from(picture.png, 'base64').subarray(0, 8), PNG)
  assert.equal(picture.chart.type, 'line')
  assert.equal(picture.chart.x_unit, 's')
  assert.equal(picture.chart.elements[0].points.length, 10)
})

test('contexts', async () => {
  const ci = await interpreter()
  const context = await ci.createCodeContext({ cwd: '/tmp' })
  assert.equal((await ci.runCode('import os; mine = 1; os.getcwd()', { context })).text, '/tmp')
  assert.equal((await ci.runCode('mine')).error.name, 'NameError')
  assert.ok((await ci.listCodeContexts()).some(({ id }) => id === context.id))
  await ci.restartCodeContext(context)
  assert.equal((await ci.runCode('mine', { context })).error.name, 'NameError')
  await ci.removeCodeContext(context)
  // The SDK leaves the timer of a refused request running, which holds the process.
  await assert.rejects(ci.runCode('1', { context, requestTimeoutMs: 60_000 }), NotFoundError)
})

test('environment', async () => {
  const ci = await interpreter()
  const read = "import os; os.environ.get('OF_CALL', 'none')"
  assert.equal((await ci.runCode(read, { envs: { OF_CALL: 'c' } })).text, 'c')
  assert.equal((await ci.runCode(read)).text, 'none')
})

test('a timeout interrupts', async () => {
  const ci = await interpreter()
  await ci.runCode('kept = 7')
  await assert.rejects(ci.runCode('while True: pass', { timeoutMs: 2_000 }), TimeoutError)
  assert.equal((await ci.runCode('kept')).text, '7')
})

test('other languages', async () => {
  const ci = await interpreter()
  await ci.runCode('const word = "strawberry"', { language: 'js' })
  assert.equal((await ci.runCode('word.split("r").length - 1', { language: 'js' })).text, '3')
  const seen = []
  const execution = await ci.runCode('console.log("one"); console.error("two"); throw new RangeError("three")', {
    language: 'javascript',
    onStdout: (message) => seen.push(message.line),
    onStderr: (message) => seen.push(message.line),
    onError: (error) => seen.push(error.name),
  })
  assert.deepEqual(seen, ['one\n', 'two\n', 'RangeError'])
  assert.equal(execution.error.value, 'three')
  const typed = await ci.runCode('const lengthOf = (text: string): number => text.length\nlengthOf(word)', { language: 'ts' })
  assert.equal(typed.text, '10')
  await ci.runCode('x=5', { language: 'bash' })
  const shell = await ci.runCode('echo $x; false', { language: 'bash' })
  assert.deepEqual(shell.logs.stdout, ['5\n'])
  assert.equal(shell.error.value, '1')
})

test('contexts of other languages', async () => {
  const ci = await interpreter()
  assert.ok((await ci.listCodeContexts()).some(({ language }) => language === 'javascript'))
  const context = await ci.createCodeContext({ cwd: '/tmp', language: 'bash' })
  assert.deepEqual((await ci.runCode('pwd', { context })).logs.stdout, ['/tmp\n'])
  await ci.removeCodeContext(context)
})

test('R and Java', async () => {
  const ci = await interpreter()
  assert.equal((await ci.runCode('6 * 7', { language: 'r' })).text, '[1] 42')
  const plot = await ci.runCode('plot(1:3)', { language: 'r' })
  assert.deepEqual(Buffer.from(plot.results[0].png, 'base64').subarray(0, 8), PNG)
  assert.equal((await ci.runCode('int x = 6; x * 7', { language: 'java' })).text, '42')
  const failed = await ci.runCode('int[] none = {}; none[1]', { language: 'java' })
  assert.equal(failed.error.name, 'java.lang.ArrayIndexOutOfBoundsException')
})

test("numpy's values and plotly", async () => {
  const ci = await interpreter()
  const mixed = await ci.runCode("import numpy as np\n{'a': np.float64(1.5), 'b': [np.int32(2), np.bool_(True)], 'c': np.arange(3)}")
  assert.deepEqual(mixed.results[0].json, { a: 1.5, b: [2, true], c: [0, 1, 2] })
  const shown = await ci.runCode('import plotly.graph_objects as go\ngo.Figure(go.Bar(x=[1], y=[2]))')
  assert.equal(shown.error, undefined)
  assert.match(shown.results[0].html, /plotly/)
})

test('bad input', async (t) => {
  const ci = await interpreter()
  const bad = (name, run) => t.test(name, async () => {
    await run()
    assert.equal((await ci.runCode('1 + 1')).text, '2', 'the sandbox lives on')
  })
  await bad('unknown language, context or directory', async () => {
    await assert.rejects(ci.runCode('1', { language: 'cobol', requestTimeoutMs: 60_000 }), /400/)
    const context = await ci.createCodeContext()
    await ci.removeCodeContext(context)
    await assert.rejects(ci.runCode('1', { context, requestTimeoutMs: 60_000 }), NotFoundError)
    await assert.rejects(ci.createCodeContext({ cwd: '/no/such/directory' }), /400/)
  })
  await bad('language and context', async () => {
    const [context] = await ci.listCodeContexts()
    await assert.rejects(ci.runCode('1', { context, language: 'python' }), InvalidArgumentError)
  })
  await bad('ten megabytes of code', async () => {
    const execution = await ci.runCode(`text = '${'x'.repeat(10_000_000)}'\nlen(text)`)
    assert.equal(execution.text, '10000000')
  })
  await bad('output without end', async () => {
    await assert.rejects(ci.runCode("while True: print('x' * 100_000)", { timeoutMs: 1_500 }), TimeoutError)
  })
  await bad('output that is no text', async () => {
    const execution = await ci.runCode("import sys\nsys.stdout.buffer.write(b'a\\xff\\xfeb\\n')\nsys.stdout.flush()")
    assert.deepEqual(execution.logs.stdout, ['a\ufffd\ufffdb\n'])
  })
  await bad('characters over the borders of packets', async () => {
    const execution = await ci.runCode("print('aé😀' * 100_000)")
    assert.ok(execution.logs.stdout.join('') === 'aé😀'.repeat(100_000) + '\n', 'what was printed has come whole')
  })
  // The SDK looks through all that it has at each packet, so that it may not
  // end in time.
  await bad('a result of a hundred megabytes', async () => {
    try {
      assert.equal((await ci.runCode("'x' * 100_000_000", { timeoutMs: 2_000 })).text.length, 100_000_000)
    } catch (error) {
      assert.ok(error instanceof TimeoutError, error)
    }
  })
})
