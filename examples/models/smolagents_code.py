"""A CodeAgent of smolagents: all that its model writes runs in a sandbox.

    pip install "smolagents[e2b,openai]==1.26.0"
    eval "$(cay env --new-key me)"; export OPENAI_API_KEY=...
    python smolagents_code.py

It prints 37546387960. The framework makes the sandbox itself: variables lead it here.
"""

import os

from smolagents import CodeAgent, OpenAIModel

MODEL = os.environ.get("MODEL", "gpt-5-mini")


def main():
    model = OpenAIModel(MODEL, api_base=os.environ.get("OPENAI_BASE_URL"), api_key=os.environ["OPENAI_API_KEY"])
    with CodeAgent(tools=[], model=model, executor_type="e2b", max_steps=10) as agent:
        print(agent.run("What is the sum of the squares of all primes below 10000? Compute it."))


if __name__ == "__main__":
    main()
