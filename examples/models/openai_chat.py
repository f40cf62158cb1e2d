"""A model calls a function over OpenAI's Chat Completions; the code runs in a sandbox.

    pip install openai==3.57.0 e2b-code-interpreter==2.11.5
    eval "$(cay env --new-key me)"; export OPENAI_API_KEY=...
    python openai_chat.py

It prints a sentence with 37546387960. OPENAI_BASE_URL leads to any other server of this wire.
"""

import json
import os

from e2b_code_interpreter import Sandbox
from openai import OpenAI

MODEL = os.environ.get("MODEL", "gpt-5-mini")
TOOL = {
    "type": "function",
    "function": {
        "name": "run_code",
        "description": "Runs Python in a sandbox and returns what it prints. Variables stay between calls.",
        "parameters": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
    },
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
    messages = [{"role": "user", "content": "What is the sum of the squares of all primes below 10000? Compute it."}]
    with Sandbox.create(timeout=300) as sandbox:
        for _ in range(10):
            answer = client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL]).choices[0].message
            if not answer.tool_calls:
                break
            messages.append(answer)
            for call in answer.tool_calls:
                result = run_code(sandbox, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    print(answer.content)


if __name__ == "__main__":
    main()
