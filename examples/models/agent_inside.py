"""An agent inside a sandbox calls the model without a key: Cay adds it on the way out.

    pip install e2b-code-interpreter==2.11.5
    eval "$(cay env --new-key me)"; export OPENAI_API_KEY=...
    python agent_inside.py

It prints a sentence with 37546387960. OPENAI_BASE_URL leads to any other server of this wire;
one on a private network is for the server's operator to open (CAY_MODEL_OPEN).
"""

import os

import httpx
from e2b_code_interpreter import Sandbox

MODEL = os.environ.get("MODEL", "gpt-5-mini")
AGENT = r'''
import contextlib, io, json, sys, traceback, urllib.request

TOOL = {"type": "function", "function": {
    "name": "run_code", "description": "Runs Python and returns what it prints.",
    "parameters": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}}}

def ask(messages):
    body = json.dumps({"model": sys.argv[1], "messages": messages, "tools": [TOOL]}).encode()
    request = urllib.request.Request("http://models.cay.internal/v1/chat/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as reply:
        return json.load(reply)["choices"][0]["message"]

def run(arguments):
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(json.loads(arguments)["code"], {})
    except Exception:
        return traceback.format_exc(limit=1)
    return printed.getvalue()

messages = [{"role": "user", "content": "What is the sum of the squares of all primes below 10000? Compute it."}]
for _ in range(10):
    answer = ask(messages)
    if not answer.get("tool_calls"):
        break
    messages.append(answer)
    messages += [{"role": "tool", "tool_call_id": call["id"], "content": run(call["function"]["arguments"])} for call in answer["tool_calls"]]
print(answer["content"])
'''


def provider():
    """Tells Cay of the model's server and its key, as `cay model set` does."""
    with httpx.Client(base_url=os.environ["E2B_API_URL"], headers={"X-API-Key": os.environ["E2B_API_KEY"]}) as cay:
        value = {"value": os.environ["OPENAI_API_KEY"]}
        if cay.post("/secrets", json={"name": "openai-key", **value}).status_code == 409:
            cay.post("/secrets/openai-key", json=value).raise_for_status()
        cay.put("/cay/v1/models/openai", json={
            "wire": "openai", "url": os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1"), "secret": "openai-key"}).raise_for_status()


def main():
    provider()
    # It reaches the model, and nothing else.
    with Sandbox.create(timeout=300, network={"deny_out": ["0.0.0.0/0"], "allow_out": ["models.cay.internal"]}) as sandbox:
        sandbox.files.write("/tmp/agent.py", AGENT)
        print(sandbox.commands.run(f"python3 /tmp/agent.py {MODEL}", timeout=240).stdout, end="")


if __name__ == "__main__":
    main()
