"""The console in Chromium, on a real server with real sandboxes: real.py.

    make test-console             after the flows on a machine in memory
    CAY_CONSOLE_RUN=terminal …    only tests whose names match
"""

import subprocess
import sys

import world


def main():
    server = world.Server()
    # The server knows no variables of tests.
    ours = {name: server.env.pop(name) for name in ("CAY_CONSOLE_RUN", "CAY_CONSOLE_SHOTS") if name in server.env}
    if server.healthy():
        sys.exit(f"something already answers on {server.url}: end it first")
    server.start()
    try:
        run = ours.get("CAY_CONSOLE_RUN", "all")
        sys.exit(subprocess.call(
            [sys.executable, "-m", "pytest", "-q", "-rP", "--tb=short", "-p", "no:cacheprovider", "--durations=9",
             *(["-k", run] if run != "all" else []), "real.py"],
            cwd=world.ROOT / "test" / "console",
            env={**server.env, **ours, "CONSOLE_API": server.url, "CONSOLE_KEY": server.new_key(),
                 "PYTHONPATH": f"{world.ROOT}/test/e2e:{world.ROOT}/test/e2e/python", "PYTHONDONTWRITEBYTECODE": "1"}))
    finally:
        server.cay("down", check=False)


if __name__ == "__main__":
    main()
