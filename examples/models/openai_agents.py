"""An agent of the OpenAI Agents SDK with a tool that runs code in a sandbox.

    pip install openai-agents==0.24.0 e2b-code-interpreter==2.11.5
    eval "$(cay env --new-key me)"; export OPENAI_API_KEY=...
    python openai_agents.py

It prints a sentence with 37546387960.
"""

import asyncio
import os

from agents import Agent, Runner, function_tool, set_tracing_disabled
from e2b_code_interpreter import AsyncSandbox

MODEL = os.environ.get("MODEL", "gpt-5-mini")


async def main():
    set_tracing_disabled(True)  # traces would leave for OpenAI
    async with await AsyncSandbox.create(timeout=300) as sandbox:

        @function_tool
        async def run_code(code: str) -> str:
            """Runs Python in a sandbox and returns what it prints. Variables stay between calls."""
            run = await sandbox.run_code(code)
            return run.error.traceback if run.error else "".join(run.logs.stdout) + (run.text or "")

        agent = Agent("analyst", model=MODEL, tools=[run_code])
        answer = await Runner.run(agent, "What is the sum of the squares of all primes below 10000? Compute it.")
    print(answer.final_output)


if __name__ == "__main__":
    asyncio.run(main())
