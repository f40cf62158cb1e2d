"""Codex inside a sandbox: it has a shell there, and no key; Cay adds that on the way out.

    pip install e2b==2.63.0
    eval "$(cay env --new-key me)"; export OPENAI_API_KEY=...
    python codex_inside.py

It prints a sentence with 37546387960. The operator adds the template once: cay template add codex.
OPENAI_BASE_URL leads to any other server of this wire; one on a private network is for the server's
operator to open (CAY_MODEL_OPEN).
"""

import os
import shlex

import httpx
from e2b import Sandbox

MODEL = os.environ.get("MODEL", "gpt-5.5")
QUESTION = "What is the sum of the squares of all primes below 10000? Compute it with python3."
SETTINGS = """
model_provider = "cay"

[model_providers.cay]
name = "Models of Cay"
base_url = "http://models.cay.internal/v1"
wire_api = "responses"
"""


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
    # It reaches the model, and nothing else. The sandbox is Codex's, so that it needs none of its own.
    with Sandbox.create("codex", timeout=900, network={"deny_out": ["0.0.0.0/0"], "allow_out": ["models.cay.internal"]}) as sandbox:
        sandbox.files.write("/home/user/.codex/config.toml", SETTINGS)
        words = ["codex", "exec", "--model", MODEL, "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--", QUESTION]
        print(sandbox.commands.run(shlex.join(words) + " < /dev/null", timeout=600).stdout)


if __name__ == "__main__":
    main()
