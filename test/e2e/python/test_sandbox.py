"""Sandboxes from outside: create, list, info, time, kill; sync and async."""

import asyncio
import uuid

import pytest
from e2b import (
    AsyncSandbox,
    AuthenticationException,
    NotFoundException,
    Sandbox,
    SandboxException,
    SandboxQuery,
    SandboxState,
    TimeoutException,
)


def pages(paginator):
    while paginator.has_next:
        yield [info.sandbox_id for info in paginator.next_items()]


def test_info(create):
    sandbox = create("base", metadata={"who": "ann"}, timeout=120)
    info = sandbox.get_info()
    assert info.sandbox_id == sandbox.sandbox_id
    assert info.name == "base"
    assert info.metadata == {"who": "ann"}
    assert info.state == SandboxState.RUNNING
    assert (info.end_at - info.started_at).total_seconds() == 120
    assert info.cpu_count > 0 and info.memory_mb > 0


def test_environment(create):
    sandbox = create(envs={"GREETING": "hello there"})
    assert sandbox.commands.run("echo $GREETING").stdout == "hello there\n"
    assert sandbox.commands.run("echo $GREETING", envs={"GREETING": "bye"}).stdout == "bye\n"


def test_list_by_metadata(create):
    mark = uuid.uuid4().hex
    odd = create(metadata={"mark": mark, "user name": "a&b=c+d%20ü"})
    plain = create(metadata={"mark": mark})
    everything = Sandbox.list(query=SandboxQuery(metadata={"mark": mark})).next_items()
    assert [info.sandbox_id for info in everything] == [plain.sandbox_id, odd.sandbox_id]
    query = SandboxQuery(metadata={"mark": mark, "user name": "a&b=c+d%20ü"})
    assert [info.sandbox_id for info in Sandbox.list(query=query).next_items()] == [odd.sandbox_id]
    assert Sandbox.list(query=SandboxQuery(metadata={"mark": "none"})).next_items() == []
    query = SandboxQuery(metadata={"mark": mark}, state=[SandboxState.PAUSED])
    assert Sandbox.list(query=query).next_items() == []


def test_list_by_pages(create):
    mark = uuid.uuid4().hex
    made = [create(metadata={"mark": mark}).sandbox_id for _ in range(3)]
    found = list(pages(Sandbox.list(query=SandboxQuery(metadata={"mark": mark}), limit=2)))
    assert found == [[made[2], made[1]], [made[0]]]


def test_set_timeout_and_connect(create):
    sandbox = create(timeout=300)
    sandbox.set_timeout(200)
    end = sandbox.get_info().end_at
    Sandbox.connect(sandbox.sandbox_id, timeout=10)
    assert sandbox.get_info().end_at == end
    again = Sandbox.connect(sandbox.sandbox_id, timeout=900)
    assert again.get_info().end_at > end
    sandbox.files.write("note.txt", "kept")
    assert again.files.read("note.txt") == "kept"


def test_past_its_timeout(create, eventually):
    sandbox = create(timeout=5)
    eventually(lambda: not sandbox.is_running())
    eventually(lambda: sandbox.sandbox_id not in
               [info.sandbox_id for info in Sandbox.list(limit=100).next_items()])
    with pytest.raises(NotFoundException):
        sandbox.get_info()


def test_kill():
    with Sandbox.create() as sandbox:
        assert sandbox.is_running()
        assert sandbox.kill()
        assert not sandbox.is_running()
        assert not sandbox.kill()
        with pytest.raises(NotFoundException):
            Sandbox.connect(sandbox.sandbox_id)
        with pytest.raises(NotFoundException):
            sandbox.set_timeout(60)


def test_with_ends_it():
    with Sandbox.create() as sandbox:
        assert sandbox.commands.run("echo in").stdout == "in\n"
    assert not sandbox.is_running()
    with pytest.raises(TimeoutException):
        sandbox.commands.run("true")


def test_killed_in_mid_stream(create):
    sandbox = create()
    command = sandbox.commands.run("echo up; exec sleep 600", background=True, timeout=0)
    with pytest.raises(TimeoutException):
        command.wait(on_stdout=lambda _: sandbox.kill())


def test_wrong_key():
    with pytest.raises(AuthenticationException):
        Sandbox.create(api_key="e2b_" + "0" * 40)


def test_unknown_template():
    with pytest.raises(SandboxException, match="(?s)404.*not found"):
        Sandbox.create("no-such-template")


def test_wrong_timeout():
    with pytest.raises(SandboxException, match="(?s)400.*timeout"):
        Sandbox.create(timeout=-1)


def test_metrics(create, eventually):
    sandbox = create()
    sample = eventually(sandbox.get_metrics)[-1]
    assert 0 < sample.mem_used <= sample.mem_total
    assert sample.cpu_count > 0 and sample.disk_total > 0


async def test_async_life():
    mark = uuid.uuid4().hex
    async with await AsyncSandbox.create(metadata={"mark": mark}, envs={"A": "1"}, timeout=300) as sandbox:
        assert (await sandbox.commands.run("echo $A")).stdout == "1\n"
        info = await sandbox.get_info()
        assert info.metadata == {"mark": mark}
        found = await AsyncSandbox.list(query=SandboxQuery(metadata={"mark": mark})).next_items()
        assert [each.sandbox_id for each in found] == [sandbox.sandbox_id]
        await AsyncSandbox.connect(sandbox.sandbox_id, timeout=10)
        assert (await sandbox.get_info()).end_at == info.end_at
        await sandbox.set_timeout(100)
        assert (await sandbox.get_info()).end_at < info.end_at
    assert not await sandbox.is_running()
    assert not await sandbox.kill()


async def test_async_many_at_once():
    made = await asyncio.gather(*[AsyncSandbox.create(timeout=300) for _ in range(4)])
    try:
        said = await asyncio.gather(*[each.commands.run("echo $E2B_SANDBOX_ID") for each in made])
        assert [result.stdout.strip() for result in said] == [each.sandbox_id for each in made]
    finally:
        assert all(await asyncio.gather(*[each.kill() for each in made]))


async def test_async_killed_in_mid_stream():
    sandbox = await AsyncSandbox.create(timeout=300)
    killed = asyncio.Event()
    command = await sandbox.commands.run("echo up; exec sleep 600", background=True, timeout=0,
                                         on_stdout=lambda _: killed.set())
    await asyncio.wait_for(killed.wait(), 60)
    await sandbox.kill()
    with pytest.raises(TimeoutException):
        await command.wait()


async def test_async_wrong_key_and_template():
    with pytest.raises(AuthenticationException):
        await AsyncSandbox.create(api_key="e2b_" + "0" * 40)
    with pytest.raises(SandboxException, match="(?s)404.*not found"):
        await AsyncSandbox.create("no-such-template")
