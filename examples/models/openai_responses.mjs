/* A model calls a function over OpenAI's Responses; the code runs in a sandbox.

    npm install openai@7.57.0 @e2b/code-interpreter@2.8.0
    eval "$(cay env --new-key me)"; export OPENAI_API_KEY=...
    node openai_responses.mjs

It prints a sentence with 37546387960.
*/

import { Sandbox } from '@e2b/code-interpreter'
import OpenAI from 'openai'

const model = process.env.MODEL ?? 'gpt-5-mini'
const tool = {
  type: 'function',
  name: 'run_code',
  description: 'Runs Python in a sandbox and returns what it prints. Variables stay between calls.',
  parameters: { type: 'object', properties: { code: { type: 'string' } }, required: ['code'], additionalProperties: false },
  strict: true,
}

// Arguments may be nonsense: the model is told so and can try again.
async function runCode(sandbox, text) {
  let code
  try {
    code = JSON.parse(text).code
  } catch (err) {
    return `these arguments are no JSON: ${err.message}`
  }
  if (typeof code !== 'string') return 'run_code takes one string, code'
  const run = await sandbox.runCode(code)
  return run.error ? run.error.traceback : run.logs.stdout.join('') + (run.text ?? '')
}

const client = new OpenAI()
const turns = [{ role: 'user', content: 'What is the sum of the squares of all primes below 10000? Compute it.' }]
const sandbox = await Sandbox.create({ timeoutMs: 300_000 })
let answer
try {
  for (let turn = 0; turn < 10; turn++) {
    answer = await client.responses.create({ model, input: turns, tools: [tool] })
    turns.push(...answer.output)
    const calls = answer.output.filter((item) => item.type === 'function_call')
    if (!calls.length) break
    for (const call of calls)
      turns.push({ type: 'function_call_output', call_id: call.call_id, output: await runCode(sandbox, call.arguments) })
  }
} finally {
  await sandbox.kill()
}
console.log(answer.output_text)
