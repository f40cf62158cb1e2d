"""A model calls a function over OpenAI's Responses; the code runs in a sandbox.

    pip install openai==3.57.0 e2b-code-interpreter==2.11.5
    eval "$(cay env --new-key me)"; export OPENAI_API_KEY=...
    python openai_responses.py

It prints a sentence with 37546387960.
"""

import json
import os

from e2b_code_interpreter import Sandbox
from openai import OpenAI

MODEL = os.environ.get("MODEL", "gpt-5-mini")
TOOL = {
    "type": "function",
    "name": "run_code",
    "description": "Runs Python in a sandbox and returns what it prints. Variables stay between calls.",
    "parameters": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"], "additionalProperties": False},
    "strict": True,
}


def run_code(sandbox, arguments):
    """Arguments may be nonsense: the model is told so and can try again."""
    try:
        code = json.loads(arguments)["code"]
    except (ValueError, KeyError, TypeError) as err:
        return f"these arguments are not {{\"code\": …}}: {err!r}"
    run = sandbox.run_code(code)
    return run.error.traceback if run.error else "".join(run.logs.stdout) + (run.text or "")


def main():
    client = OpenAI()
    turns = [{"role": "user", "content": "What is the sum of the squares of all primes below 10000? Compute it."}]
    with Sandbox.create(timeout=300) as sandbox:
        for _ in range(10):
            answer = client.responses.create(model=MODEL, input=turns, tools=[TOOL])
            turns += answer.output
            calls = [item for item in answer.output if item.type == "function_call"]
            if not calls:
                break
            for call in calls:
                result = run_code(sandbox, call.arguments)
                turns.append({"type": "function_call_output", "call_id": call.call_id, "output": result})
    print(answer.output_text)


if __name__ == "__main__":
    main()
