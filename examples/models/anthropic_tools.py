"""A model uses a tool over Anthropic's Messages; the code runs in a sandbox.

    pip install anthropic==2.14.0 e2b-code-interpreter==2.11.5
    eval "$(cay env --new-key me)"; export ANTHROPIC_API_KEY=...
    python anthropic_tools.py

It prints a sentence with 37546387960.
"""

import os

from anthropic import Anthropic
from e2b_code_interpreter import Sandbox

MODEL = os.environ.get("MODEL", "claude-sonnet-5")
TOOL = {
    "name": "run_code",
    "description": "Runs Python in a sandbox and returns what it prints. Variables stay between calls.",
    "input_schema": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
}


def run_code(sandbox, call):
    """The result of a call; an error is marked, so that the model tries again."""
    result = {"type": "tool_result", "tool_use_id": call.id}
    if not isinstance(call.input.get("code"), str):
        return {**result, "content": "run_code takes one string, code", "is_error": True}
    run = sandbox.run_code(call.input["code"])
    if run.error:
        return {**result, "content": run.error.traceback, "is_error": True}
    return {**result, "content": "".join(run.logs.stdout) + (run.text or "")}


def main():
    client = Anthropic()
    messages = [{"role": "user", "content": "What is the sum of the squares of all primes below 10000? Compute it."}]
    with Sandbox.create(timeout=300) as sandbox:
        for _ in range(10):
            answer = client.messages.create(model=MODEL, max_tokens=4096, messages=messages, tools=[TOOL])
            if answer.stop_reason != "tool_use":
                break
            messages.append({"role": "assistant", "content": answer.content})
            messages.append({"role": "user", "content": [run_code(sandbox, part) for part in answer.content if part.type == "tool_use"]})
    print("".join(part.text for part in answer.content if part.type == "text"))


if __name__ == "__main__":
    main()
