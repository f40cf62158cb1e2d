"""The gateway of tools inside a sandbox, driven by E2B's SDKs, unmodified, and by
clients of the Model Context Protocol.

    make test-gateway             builds the template in a data directory of its own first
    CAY_E2E_RUN=secrets …         only Python tests whose names match
"""

import os
import pathlib
import subprocess
import sys
import time

import world

HERE = pathlib.Path(__file__).resolve().parent
SDK = world.ROOT / "build" / "sdk"


def javascript(env):
    """Runs the JavaScript test beside the packages, from where its imports resolve."""
    copy = SDK / "js" / "gateway.test.mjs"
    copy.write_bytes((HERE / "gateway.test.mjs").read_bytes())
    try:
        return subprocess.call(["node", "--test", "--test-reporter=spec", copy.name], cwd=copy.parent, env=env)
    finally:
        copy.unlink()


def main():
    server = world.aside("gateway", 7191, "10.225.0.0/16", "cygtw")
    server.start(templates=["base"])
    try:
        begun = time.monotonic()
        server.cay("template", "add", "mcp-gateway", timeout=1800)
        print(f"✓ template ({time.monotonic() - begun:.0f} s)", flush=True)
        env = {**server.env, **server.sdk_env(server.new_key()), "NO_COLOR": "1"}
        code = subprocess.call(
            [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", "--durations=8",
             *(["-k", env["CAY_E2E_RUN"]] if env.get("CAY_E2E_RUN") else []), "."],
            cwd=HERE, env={**env, "PYTHONPATH": f"{world.ROOT}/test/e2e:{world.ROOT}/test/e2e/python"})
        sys.exit(code or (0 if env.get("CAY_E2E_RUN") else javascript(env)))
    finally:
        server.cay("down", check=False)


if __name__ == "__main__":
    main()
