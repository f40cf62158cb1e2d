"""An agent of Pydantic AI with a tool that runs code in a sandbox, and a typed answer.

    pip install "pydantic-ai-slim[openai]==2.68.0" e2b-code-interpreter==2.11.5
    eval "$(cay env --new-key me)"; export OPENAI_API_KEY=...
    python pydantic_ai_agent.py

It prints 37546387960.
"""

import asyncio
import os

from e2b_code_interpreter import AsyncSandbox
from pydantic import BaseModel
from pydantic_ai import Agent, RunContext

MODEL = os.environ.get("MODEL", "gpt-5-mini")


class Answer(BaseModel):
    number: int


agent = Agent(f"openai-chat:{MODEL}", deps_type=AsyncSandbox, output_type=Answer)


@agent.tool
async def run_code(context: RunContext[AsyncSandbox], code: str) -> str:
    """Runs Python in a sandbox and returns what it prints. Variables stay between calls."""
    run = await context.deps.run_code(code)
    return run.error.traceback if run.error else "".join(run.logs.stdout) + (run.text or "")


async def main():
    async with await AsyncSandbox.create(timeout=300) as sandbox:
        answer = await agent.run("What is the sum of the squares of all primes below 10000? Compute it.", deps=sandbox)
    print(answer.output.number)


if __name__ == "__main__":
    asyncio.run(main())
