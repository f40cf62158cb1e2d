"""Tries patches of a repository whose tests need a database, each in a fork of one prepared sandbox.

    python task.py GIT_URL PATCH…

    TEMPLATE=docker                      the template of the sandbox
    TESTS="python3 -m unittest -q"       the tests of the repository
"""

import os
import pathlib
import sys

from e2b import CommandExitException, Sandbox

REPOSITORY = "/home/user/repository"
TESTS = os.environ.get("TESTS", "python3 -m unittest -q")


def tests(sandbox):
    """Whether the repository's tests pass, and their last line."""
    try:
        run = sandbox.commands.run(TESTS, cwd=REPOSITORY, timeout=600)
    except CommandExitException as failed:
        run = failed
    return run.exit_code == 0, (run.stdout + run.stderr).strip().splitlines()[-1]


def main(url, patches):
    sandbox = Sandbox.create(os.environ.get("TEMPLATE", "docker"), timeout=3600)
    try:
        sandbox.commands.run(f"git clone --quiet {url} {REPOSITORY}", timeout=600)
        sandbox.commands.run("docker-compose up -d", cwd=REPOSITORY, timeout=600)
        print("unpatched:", *tests(sandbox))
        # Each fork has the repository and the database as they are now, running.
        for patch, fork in zip(patches, sandbox.fork(count=len(patches), timeout=900)):
            if isinstance(fork, Exception):
                raise fork
            with fork:
                fork.files.write("/tmp/patch", pathlib.Path(patch).read_text())
                fork.commands.run("git apply /tmp/patch", cwd=REPOSITORY)
                print(f"{pathlib.Path(patch).name}:", *tests(fork))
    finally:
        sandbox.kill()


main(sys.argv[1], sys.argv[2:])
