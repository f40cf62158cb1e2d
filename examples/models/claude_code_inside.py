"""Claude Code inside a sandbox: it has a shell there, and no key; Cay adds that on the way out.

    pip install e2b==2.63.0
    eval "$(cay env --new-key me)"; export ANTHROPIC_API_KEY=...
    python claude_code_inside.py

It prints a sentence with 37546387960. The operator adds the template once: cay template add claude-agent.
ANTHROPIC_BASE_URL leads to any other server of this wire; one on a private network is for the server's
operator to open (CAY_MODEL_OPEN).
"""

import os
import shlex

import httpx
from e2b import Sandbox

MODEL = os.environ.get("MODEL", "claude-sonnet-5")
QUESTION = "What is the sum of the squares of all primes below 10000? Compute it with python3."
SETTINGS = {"ANTHROPIC_BASE_URL": "http://models.cay.internal", "ANTHROPIC_API_KEY": "none", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}


def provider():
    """Tells Cay of the model's server and its key, as `cay model set` does."""
    with httpx.Client(base_url=os.environ["E2B_API_URL"], headers={"X-API-Key": os.environ["E2B_API_KEY"]}) as cay:
        value = {"value": os.environ["ANTHROPIC_API_KEY"]}
        if cay.post("/secrets", json={"name": "anthropic-key", **value}).status_code == 409:
            cay.post("/secrets/anthropic-key", json=value).raise_for_status()
        cay.put("/cay/v1/models/anthropic", json={
            "wire": "anthropic", "url": os.environ.get("ANTHROPIC_BASE_URL", "https://api.anthropic.com"), "secret": "anthropic-key"}).raise_for_status()


def main():
    provider()
    # It reaches the model, and nothing else.
    with Sandbox.create("claude-agent", timeout=900, network={"deny_out": ["0.0.0.0/0"], "allow_out": ["models.cay.internal"]}) as sandbox:
        words = ["claude", "--print", "--model", MODEL, "--allowedTools", "Bash", "--", QUESTION]
        print(sandbox.commands.run(shlex.join(words) + " < /dev/null", timeout=600, envs=SETTINGS).stdout)


if __name__ == "__main__":
    main()
