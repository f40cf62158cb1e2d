"""A model proposes several ways; each is tried in a fork of one live sandbox, and the best goes on.

    pip install openai==3.57.0 e2b-code-interpreter==2.11.5
    eval "$(cay env --new-key me)"; export OPENAI_API_KEY=...
    python tree_search.py

It prints each branch's error, and that the sandbox goes on as the best one.
"""

import json
import os
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from e2b_code_interpreter import Sandbox
from openai import OpenAI

MODEL = os.environ.get("MODEL", "gpt-5-mini")
API = os.environ.get("E2B_API_URL") or "https://api." + os.environ["E2B_DOMAIN"]

# Every branch has this in memory when it begins.
PREPARE = """
import numpy as np
random = np.random.default_rng(7)
x = np.linspace(-3, 3, 400)
y = np.sin(2 * x) + 0.3 * x + random.normal(0, 0.05, x.size)
"""
ERROR = "print(float(np.mean((model(x[1::2]) - y[1::2]) ** 2)))"
QUESTION = """x and y are numpy arrays in a Python session. Propose four programs that each set `model`,
a function of x that is fitted to x[::2] and y[::2] in another way. The one that is best at the other points is kept."""
TOOL = {
    "type": "function",
    "function": {
        "name": "try_all",
        "description": "Runs each program in its own copy of the session and returns the errors.",
        "parameters": {"type": "object", "properties": {"programs": {"type": "array", "items": {"type": "string"}}}, "required": ["programs"]},
    },
}


def cay(path, body):
    request = urllib.request.Request(
        f"{API}/cay/v1{path}", method="POST", data=json.dumps(body).encode(),
        headers={"X-API-Key": os.environ["E2B_API_KEY"], "Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as reply:
        return json.loads(reply.read() or "null")


def attempt(branch, program):
    run = branch.run_code(f"{program}\n{ERROR}")
    return float("inf") if run.error else float(run.logs.stdout[-1])


def try_all(parent, programs):
    """Tries programs in forks, side by side, and goes on as the best one."""
    start = cay(f"/sandboxes/{parent.sandbox_id}/checkpoints", {})["checkpointID"]
    forks = cay(f"/checkpoints/{start}/fork", {"count": len(programs), "timeout": 300})
    branches = [Sandbox.connect(fork["sandbox"]["sandboxID"], timeout=300) for fork in forks]
    try:
        with ThreadPoolExecutor(len(branches)) as pool:
            errors = list(pool.map(attempt, branches, programs))
        best = errors.index(min(errors))
        cay(f"/sandboxes/{parent.sandbox_id}/promote", {"branch": branches[best].sandbox_id})
        return errors, best
    finally:
        for branch in branches:
            branch.kill()


def programs_of(arguments):
    try:
        programs = json.loads(arguments)["programs"]
        assert programs and all(isinstance(program, str) for program in programs)
        return programs[:8]
    except (ValueError, KeyError, TypeError, AssertionError):
        return None


def main():
    client = OpenAI()
    messages = [{"role": "user", "content": QUESTION}]
    with Sandbox.create(timeout=300) as parent:
        parent.run_code(PREPARE)
        for _ in range(10):
            answer = client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL]).choices[0].message
            if not answer.tool_calls:
                break
            messages.append(answer)
            for call in answer.tool_calls:
                programs, result = programs_of(call.function.arguments), "try_all takes a list of strings, programs"
                if programs:
                    errors, best = try_all(parent, programs)
                    result = "\n".join(f"program {n}: error {error:.4f}" for n, error in enumerate(errors)) + f"\nprogram {best} is kept"
                    print(result)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        print(answer.content)
        print("the sandbox goes on with a", parent.run_code("type(model).__name__").text, "in memory")


if __name__ == "__main__":
    main()
