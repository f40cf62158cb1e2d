"""A crew of CrewAI whose agent has a tool that runs code in a sandbox.

    pip install crewai==1.15.30 e2b-code-interpreter==2.11.5
    eval "$(cay env --new-key me)"; export OPENAI_API_KEY=...
    python crewai_crew.py

It prints a sentence with 37546387960.
"""

import os

os.environ.setdefault("CREWAI_DISABLE_TELEMETRY", "true")

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool
from e2b_code_interpreter import Sandbox

MODEL = os.environ.get("MODEL", "gpt-5-mini")


def main():
    with Sandbox.create(timeout=300) as sandbox:

        @tool("run_code")
        def run_code(code: str) -> str:
            """Runs Python in a sandbox and returns what it prints. Variables stay between calls."""
            run = sandbox.run_code(code)
            return run.error.traceback if run.error else "".join(run.logs.stdout) + (run.text or "")

        analyst = Agent(role="analyst", goal="exact numbers", backstory="You compute with run_code.",
                        llm=LLM(model=f"openai/{MODEL}"), tools=[run_code], max_iter=10)
        task = Task(description="What is the sum of the squares of all primes below 10000? Compute it.",
                    expected_output="a sentence with the number", agent=analyst)
        print(Crew(agents=[analyst], tasks=[task]).kickoff())


if __name__ == "__main__":
    main()
