/* A model calls a function over OpenAI's Chat Completions; the code runs in a sandbox.

    npm install openai@7.57.0 @e2b/code-interpreter@2.8.0
    eval "$(cay env --new-key me)"; export OPENAI_API_KEY=...
    node openai_chat.mjs

It prints a sentence with 37546387960. OPENAI_BASE_URL leads to any other server of this wire.
*/

import { Sandbox } from '@e2b/code-interpreter'
import OpenAI from 'openai'

const model = process.env.MODEL ?? 'gpt-5-mini'
const tool = {
  type: 'function',
  function: {
    name: 'run_code',
    description: 'Runs Python in a sandbox and returns what it prints. Variables stay between calls.',
    parameters: { type: 'object', properties: { code: { type: 'string' } }, required: ['code'] },
  },
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
const messages = [{ role: 'user', content: 'What is the sum of the squares of all primes below 10000? Compute it.' }]
const sandbox = await Sandbox.create({ timeoutMs: 300_000 })
try {
  for (let turn = 0; turn < 10; turn++) {
    const { message } = (await client.chat.completions.create({ model, messages, tools: [tool] })).choices[0]
    messages.push(message)
    if (!message.tool_calls?.length) break
    for (const call of message.tool_calls)
      messages.push({ role: 'tool', tool_call_id: call.id, content: await runCode(sandbox, call.function.arguments) })
  }
} finally {
  await sandbox.kill()
}
console.log(messages.at(-1).content)
