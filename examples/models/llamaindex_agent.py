"""An agent of LlamaIndex with a tool that runs code in a sandbox.

    pip install llama-index-core==0.14.25 llama-index-llms-openai-like==0.8.1 e2b-code-interpreter==2.11.5
    eval "$(cay env --new-key me)"; export OPENAI_API_KEY=...
    python llamaindex_agent.py

It prints a sentence with 37546387960. OPENAI_BASE_URL leads to any server of OpenAI's wire.
"""

import asyncio
import os

from e2b_code_interpreter import AsyncSandbox
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai_like import OpenAILike

MODEL = os.environ.get("MODEL", "gpt-5-mini")
BASE = os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1")


async def main():
    model = OpenAILike(MODEL, api_base=BASE, api_key=os.environ["OPENAI_API_KEY"], is_chat_model=True, is_function_calling_model=True)
    async with await AsyncSandbox.create(timeout=300) as sandbox:

        async def run_code(code: str) -> str:
            """Runs Python in a sandbox and returns what it prints. Variables stay between calls."""
            run = await sandbox.run_code(code)
            return run.error.traceback if run.error else "".join(run.logs.stdout) + (run.text or "")

        agent = FunctionAgent(tools=[run_code], llm=model)
        answer = await agent.run("What is the sum of the squares of all primes below 10000? Compute it.")
    print(answer)


if __name__ == "__main__":
    asyncio.run(main())
