/* An agent of Mastra with a tool that runs code in a sandbox.

    npm install @mastra/core@1.71.0 @ai-sdk/openai@4.0.118 zod@4.6.7 @e2b/code-interpreter@2.8.0
    eval "$(cay env --new-key me)"; export OPENAI_API_KEY=...
    node mastra_agent.mjs

It prints a sentence with 37546387960.
*/

import { openai } from '@ai-sdk/openai'
import { Sandbox } from '@e2b/code-interpreter'
import { Agent } from '@mastra/core/agent'
import { createTool } from '@mastra/core/tools'
import { z } from 'zod'

const sandbox = await Sandbox.create({ timeoutMs: 300_000 })
const runCode = createTool({
  id: 'run_code',
  description: 'Runs Python in a sandbox and returns what it prints. Variables stay between calls.',
  inputSchema: z.object({ code: z.string() }),
  execute: async ({ code }) => {
    const run = await sandbox.runCode(code)
    return run.error ? run.error.traceback : run.logs.stdout.join('') + (run.text ?? '')
  },
})

const agent = new Agent({
  id: 'analyst',
  name: 'analyst',
  instructions: 'You compute with run_code.',
  model: openai(process.env.MODEL ?? 'gpt-5-mini'),
  tools: { run_code: runCode },
})
try {
  const { text } = await agent.generate('What is the sum of the squares of all primes below 10000? Compute it.', { maxSteps: 10 })
  console.log(text)
} finally {
  await sandbox.kill()
}
