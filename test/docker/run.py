"""Docker in sandboxes of the template docker, driven by E2B's SDK.

    make test-docker              builds the template in a data directory of its own first
    CAY_E2E_RUN=compose …         only tests whose names match
"""

import os
import pathlib
import subprocess
import sys
import time

import world

HERE = pathlib.Path(__file__).resolve().parent


def main():
    server = world.aside("docker", 7194, "10.228.0.0/16", "cydkr")
    server.start(templates=["base"])
    try:
        begun = time.monotonic()
        server.cay("template", "add", "docker", timeout=1800)
        print(f"✓ template ({time.monotonic() - begun:.0f} s)", flush=True)
        env = {**server.env, **server.sdk_env(server.new_key()), "NO_COLOR": "1"}
        sys.exit(subprocess.call(
            [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", "--durations=8",
             *(["-k", env["CAY_E2E_RUN"]] if env.get("CAY_E2E_RUN") else []), "."],
            cwd=HERE, env={**env, "PYTHONPATH": f"{world.ROOT}/test/e2e:{world.ROOT}/test/e2e/python"}))
    finally:
        server.cay("down", check=False)


if __name__ == "__main__":
    main()
