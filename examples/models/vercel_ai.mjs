/* A tool of the Vercel AI SDK that runs code in a sandbox.

    npm install ai@7.0.173 @ai-sdk/openai@4.0.118 zod@4.6.7 @e2b/code-interpreter@2.8.0
    eval "$(cay env --new-key me)"; export OPENAI_API_KEY=...
    node vercel_ai.mjs

It prints a sentence with 37546387960. Any provider of the SDK takes the place of OpenAI's.
*/

import { openai } from '@ai-sdk/openai'
import { Sandbox } from '@e2b/code-interpreter'
import { generateText, stepCountIs, tool } from 'ai'
import { z } from 'zod'

const sandbox = await Sandbox.create({ timeoutMs: 300_000 })
try {
  const { text } = await generateText({
    model: openai(process.env.MODEL ?? 'gpt-5-mini'),
    prompt: 'What is the sum of the squares of all primes below 10000? Compute it.',
    stopWhen: stepCountIs(10),
    tools: {
      run_code: tool({
        description: 'Runs Python in a sandbox and returns what it prints. Variables stay between calls.',
        inputSchema: z.object({ code: z.string() }),
        execute: async ({ code }) => {
          const run = await sandbox.runCode(code)
          return run.error ? run.error.traceback : run.logs.stdout.join('') + (run.text ?? '')
        },
      }),
    },
  })
  console.log(text)
} finally {
  await sandbox.kill()
}
