"""E2B's Desktop SDKs, unmodified, against the template `desktop`.

    make test-desktop             builds the template in a data directory of its own first
    CAY_DESKTOP_PART=console …    only the console's part
    CAY_E2E_RUN=stream …          only Python tests whose names match
"""

import os
import pathlib
import subprocess
import sys
import time

import world

HERE = pathlib.Path(__file__).resolve().parent
MODULES = world.ROOT / "build" / "sdk" / "desktop-js"


def javascript(env):
    """Runs the JavaScript test beside the packages, from where its imports resolve."""
    copy = MODULES / "desktop.test.mjs"
    copy.write_bytes((HERE / "desktop.test.mjs").read_bytes())
    return subprocess.call(["node", "--test", "--test-reporter=spec", copy.name], cwd=MODULES, env=env)


def console(env, server):
    """The same screens in the console, in Chromium."""
    where = world.ROOT / "test" / "console"
    python = world.ROOT / "build" / "sdk" / "python" / "bin" / "python"  # which has Playwright
    return subprocess.call(
        [python, "-m", "pytest", "-q", "-rP", "--tb=short", "-p", "no:cacheprovider", "desktop.py"], cwd=where,
        env={**env, "CONSOLE_API": server.url, "CONSOLE_KEY": server.new_key(), "CAY_CONSOLE_SHOTS": str(world.ROOT / "build" / "console" / "shots"),
             "PYTHONPATH": f"{world.ROOT}/test/e2e:{world.ROOT}/test/e2e/python", "PYTHONDONTWRITEBYTECODE": "1"})


def main():
    part = os.environ.pop("CAY_DESKTOP_PART", "")  # the server knows no variables of tests
    server = world.aside("desktop", 7187, "10.221.0.0/16", "cydsk")
    server.start()
    try:
        begun = time.monotonic()
        server.cay("template", "add", "desktop", timeout=1800)
        print(f"✓ template ({time.monotonic() - begun:.0f} s)", flush=True)
        env = {**server.env, **server.sdk_env(server.new_key())}
        if part == "console":
            sys.exit(console(env, server))
        code = subprocess.call(
            [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", "--durations=8",
             *(["-k", env["CAY_E2E_RUN"]] if env.get("CAY_E2E_RUN") else []), "."],
            cwd=HERE, env={**env, "PYTHONPATH": f"{world.ROOT}/test/e2e:{world.ROOT}/test/e2e/python"})
        sys.exit(javascript(env) or code or console(env, server))
    finally:
        server.cay("down", check=False)


if __name__ == "__main__":
    main()
