"""Docker in sandboxes of the templates docker and devcontainer, driven by E2B's SDK.

    make test-docker              builds the templates in a data directory of its own first, and ends with the
                                  egress suite from inside a sandbox
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
        for name in ("docker", "devcontainer"):
            server.cay("template", "add", name, timeout=1800)
        print(f"✓ templates ({time.monotonic() - begun:.0f} s)", flush=True)
        env = {**server.env, **server.sdk_env(server.new_key()), "NO_COLOR": "1"}
        select = env.get("CAY_E2E_RUN")
        failed = subprocess.call(
            [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", "--durations=8", *(["-k", select] if select else []), "."],
            cwd=HERE, env={**env, "PYTHONPATH": ":".join(f"{world.ROOT}/test/{part}" for part in ("e2e", "e2e/python", "life"))})
    finally:
        server.cay("down", check=False)
    # The egress suite once more, by root of a sandbox with these capabilities.
    if not select:
        failed |= subprocess.call(["go", "test", "-count=1", "-timeout=20m", "-run=TestEgress$", "./test/egress"], cwd=world.ROOT, env={**os.environ, "CAY_EGRESS_GUEST": "docker"})
    sys.exit(failed)


if __name__ == "__main__":
    main()
