"""An agent of LangChain with a tool that runs code in a sandbox.

    pip install langchain==1.5.2 langchain-openai==1.7.4 e2b-code-interpreter==2.11.5
    eval "$(cay env --new-key me)"; export OPENAI_API_KEY=...
    python langchain_agent.py

It prints a sentence with 37546387960. Any model of LangChain takes the place of OpenAI's.
"""

import os

from e2b_code_interpreter import Sandbox
from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

MODEL = os.environ.get("MODEL", "gpt-5-mini")


def main():
    with Sandbox.create(timeout=300) as sandbox:

        @tool
        def run_code(code: str) -> str:
            """Runs Python in a sandbox and returns what it prints. Variables stay between calls."""
            run = sandbox.run_code(code)
            return run.error.traceback if run.error else "".join(run.logs.stdout) + (run.text or "")

        agent = create_agent(ChatOpenAI(model=MODEL), [run_code])
        question = "What is the sum of the squares of all primes below 10000? Compute it."
        answer = agent.invoke({"messages": [{"role": "user", "content": question}]})
    print(answer["messages"][-1].text)


if __name__ == "__main__":
    main()
