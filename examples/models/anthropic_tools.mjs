/* A model uses a tool over Anthropic's Messages; the code runs in a sandbox.

    npm install @anthropic-ai/sdk@1.14.0 @e2b/code-interpreter@2.8.0
    eval "$(cay env --new-key me)"; export ANTHROPIC_API_KEY=...
    node anthropic_tools.mjs

It prints a sentence with 37546387960.
*/

import Anthropic from '@anthropic-ai/sdk'
import { Sandbox } from '@e2b/code-interpreter'

const model = process.env.MODEL ?? 'claude-sonnet-5'
const tool = {
  name: 'run_code',
  description: 'Runs Python in a sandbox and returns what it prints. Variables stay between calls.',
  input_schema: { type: 'object', properties: { code: { type: 'string' } }, required: ['code'] },
}

// The result of a call; an error is marked, so that the model tries again.
async function runCode(sandbox, call) {
  const result = { type: 'tool_result', tool_use_id: call.id }
  if (typeof call.input?.code !== 'string') return { ...result, content: 'run_code takes one string, code', is_error: true }
  const run = await sandbox.runCode(call.input.code)
  if (run.error) return { ...result, content: run.error.traceback, is_error: true }
  return { ...result, content: run.logs.stdout.join('') + (run.text ?? '') }
}

const client = new Anthropic()
const messages = [{ role: 'user', content: 'What is the sum of the squares of all primes below 10000? Compute it.' }]
const sandbox = await Sandbox.create({ timeoutMs: 300_000 })
let answer
try {
  for (let turn = 0; turn < 10; turn++) {
    answer = await client.messages.create({ model, max_tokens: 4096, messages, tools: [tool] })
    if (answer.stop_reason !== 'tool_use') break
    const calls = answer.content.filter((part) => part.type === 'tool_use')
    messages.push({ role: 'assistant', content: answer.content })
    messages.push({ role: 'user', content: await Promise.all(calls.map((call) => runCode(sandbox, call))) })
  }
} finally {
  await sandbox.kill()
}
console.log(answer.content.map((part) => part.text ?? '').join(''))
