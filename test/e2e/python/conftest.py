"""Fixtures of the end-to-end tests; run.py gives the environment."""

import time

import e2b
import e2b.retry
import e2b.sandbox_async.commands.command
import e2b.sandbox_async.commands.pty
import e2b.sandbox_async.filesystem.filesystem
import e2b.sandbox_async.git
import e2b.sandbox_sync.commands.command
import e2b.sandbox_sync.commands.pty
import e2b.sandbox_sync.filesystem.filesystem
import e2b.sandbox_sync.git
import e2b_code_interpreter
import pytest

import methods
import world

COMMANDS = [
    e2b.sandbox_sync.commands.command.Commands, e2b.sandbox_async.commands.command.Commands,
    e2b.sandbox_sync.commands.pty.Pty, e2b.sandbox_async.commands.pty.Pty,
    e2b.CommandHandle, e2b.AsyncCommandHandle, e2b.AsyncCommandInputHandle,
]
FILES = [
    e2b.sandbox_sync.filesystem.filesystem.Filesystem, e2b.sandbox_async.filesystem.filesystem.Filesystem,
    e2b.WatchHandle, e2b.AsyncWatchHandle,
    e2b.sandbox_sync.git.Git, e2b.sandbox_async.git.Git,
]
methods.watch(*COMMANDS, *FILES)


@pytest.fixture(scope="module")
def sbx():
    """One sandbox of the template base for all tests of a file."""
    sandbox = e2b.Sandbox.create(timeout=900)
    yield sandbox
    sandbox.kill()


@pytest.fixture(scope="module")
def ci():
    """One code interpreter for all tests of a file."""
    sandbox = e2b_code_interpreter.Sandbox.create(timeout=900)
    yield sandbox
    sandbox.kill()


@pytest.fixture
def create():
    """Creates sandboxes that the test does not have to kill."""
    made = []

    def make(*args, kind=e2b.Sandbox, **kw):
        sandbox = kind.create(*args, **{"timeout": 300, **kw})
        made.append(sandbox)
        return sandbox

    yield make
    for sandbox in made:
        sandbox.kill()


@pytest.fixture(scope="session")
def eventually():
    """Calls until the result is true; fails after a generous deadline."""

    def wait(probe, seconds=60):
        deadline = time.monotonic() + seconds
        while True:
            result = probe()
            if result:
                return result
            assert time.monotonic() < deadline, f"not true after {seconds} s: {probe}"
            time.sleep(0.1)

    return wait


@pytest.fixture
def waits(monkeypatch):
    """How long the Python SDK decided to wait before it tries again, for each answer; None is not at all."""
    decided = []
    decide = e2b.retry._retry_delay
    monkeypatch.setattr(e2b.retry, "_retry_delay", lambda *args: decided.append(decide(*args)) or decided[-1])
    return decided


@pytest.fixture
def uncalled(request):
    """Says which methods of some classes no test called until now."""
    if request.config.option.keyword:
        pytest.skip("only some tests were asked for")
    return methods.uncalled


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    log = world.Server().log
    item.server_log_begins = log.stat().st_size if log.exists() else 0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A failed test's report has what the server logged since the test began."""
    report = yield
    log = world.Server().log
    if report.failed and log.exists():
        with open(log, errors="replace") as lines:
            lines.seek(item.server_log_begins)
            report.sections.append(("the server's log", "".join(lines.readlines()[-60:])))
    return report
