"""The words of a server besides its results: whether to try again, how a sandbox
was paused, tags and default templates. The SDK's own clients read all of it."""

import contextlib
import http.server
import os
import threading
import urllib.error
import urllib.request
import uuid

import e2b
import pytest
from e2b.api.client.api.tags import (
    get_templates_template_id_tags_count as tags_count,
    get_templates_template_id_tags_exists as tag_exists,
    get_templates_template_id_tags_groups as tag_groups,
    get_templates_template_id_tags_tag_assignments as tag_assignments,
)
from e2b.api.client.api.templates import get_default_templates, get_templates_template_id
from e2b.api.client_sync import get_api_client
from e2b.connection_config import ConnectionConfig

API = os.environ["E2B_API_URL"]


@contextlib.contextmanager
def counted():
    """An address in front of the server, and the requests that came by it."""
    seen = []

    class Forward(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self):
            seen.append(f"{self.command} {self.path.split('?')[0]}")
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "connection", "accept-encoding")}
            request = urllib.request.Request(API + self.path, data=body or None, headers=headers, method=self.command)
            try:
                answer = urllib.request.urlopen(request, timeout=120)
            except urllib.error.HTTPError as refused:
                answer = refused
            with answer:
                text = answer.read()
                self.send_response(answer.status)
                for k, v in answer.headers.items():
                    if k.lower() not in ("content-length", "transfer-encoding", "connection", "date"):
                        self.send_header(k, v)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

        do_GET = do_POST = do_DELETE = forward

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Forward)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def silence(box):
    """Stops the agent inside, which nothing but root's wish does."""
    with pytest.raises(e2b.TimeoutException):
        box.commands.run("kill -STOP 1; sleep 60", user="root", request_timeout=5, timeout=5)


def test_an_agent_that_does_not_answer(create):
    box = create("base")
    box.files.write("/home/user/kept", "kept")
    silence(box)
    with counted() as (url, seen):
        with pytest.raises(e2b.ServiceBusyException, match="does not answer"):
            box.pause(strict=True, api_url=url)
        with pytest.raises(e2b.ServiceBusyException, match="does not answer"):
            box.pause(mode="filesystem", api_url=url)
        assert len(seen) == 2, f"the SDK tried again: {seen}"
    info = e2b.Sandbox.get_info(box.sandbox_id)
    assert (info.state, info.envd_unresponsive_at_pause) == (e2b.SandboxState.RUNNING, None)

    assert box.pause() is True
    assert e2b.Sandbox.get_info(box.sandbox_id).envd_unresponsive_at_pause is True
    listed = e2b.Sandbox.list(query=e2b.SandboxQuery(state=[e2b.SandboxState.PAUSED]), limit=100)
    assert [s.envd_unresponsive_at_pause for s in listed.next_items() if s.sandbox_id == box.sandbox_id] == [True]
    with counted() as (url, seen):
        with pytest.raises(e2b.GuestUnresponsiveException, match="did not answer"):
            e2b.Sandbox.connect(box.sandbox_id, api_url=url)
        assert len(seen) == 1, f"the SDK tried again: {seen}"
    again = e2b.Sandbox.connect(box.sandbox_id, on_resume="reboot", timeout=300)
    assert again.files.read("/home/user/kept") == "kept"
    assert again.commands.run("echo up").stdout == "up\n"
    assert again.pause(strict=True) is True


def test_pause_modes(create):
    box = create("base")
    client = get_api_client(ConnectionConfig())
    detail = lambda: client.get_httpx_client().get(f"/sandboxes/{box.sandbox_id}").json()
    assert "pauseMode" not in detail()
    for mode, told in (("full", "full"), ("filesystem", "filesystem")):
        assert box.pause(mode=mode) is True
        assert detail()["pauseMode"] == told
        box = e2b.Sandbox.connect(box.sandbox_id, timeout=300)


def test_idempotency_codes(create):
    key = f"e2e-{uuid.uuid4()}"
    box = create("base", idempotency_key=key, metadata={"a": "1"})
    same = e2b.Sandbox.create("base", timeout=300, idempotency_key=key, metadata={"a": "1"})
    assert same.sandbox_id == box.sandbox_id
    with counted() as (url, seen):
        with pytest.raises(e2b.SandboxException, match="another request") as refused:
            e2b.Sandbox.create("base", timeout=300, idempotency_key=key, metadata={"a": "2"}, api_url=url)
        assert refused.value.status_code == 422
        assert len(seen) == 1, f"the SDK tried again: {seen}"


def test_requests_that_no_look_up_helps():
    for call in (
        lambda: e2b.Sandbox.connect("NOT_AN_ID"),
        lambda: e2b.Sandbox.get_info("NOT_AN_ID"),
        lambda: e2b.Sandbox.set_timeout("i0000", 10**9),
        lambda: e2b.Sandbox.create("no-such-template", timeout=10**8),
    ):
        with pytest.raises(e2b.SandboxException) as refused:
            call()
        assert refused.value.status_code == 400, refused.value
    assert e2b.Sandbox.kill("i0000") is False


def test_tags_of_snapshots(create):
    name = f"e2e-{uuid.uuid4().hex[:12]}"
    box = create("base")
    box.files.write("/home/user/version", "1")
    first = box.create_snapshot(name=f"{name}:v1")
    box.files.write("/home/user/version", "2")
    second = box.create_snapshot(name=name)
    children = []
    assert first.snapshot_id.endswith(f"/{name}:v1") and first.names[0].endswith(f"/{name}")
    assert second.snapshot_id.endswith(f"/{name}:default") and second.names[0].endswith(f"/{name}")
    try:
        for snapshot, version in ((first, "1"), (second, "2")):
            children.append(create(snapshot.snapshot_id))
            assert children[-1].files.read("/home/user/version") == version
        for asked, found in ((name, second), (f"{name}:v1", first)):  # a bare name has the tag default
            assert [s.snapshot_id for s in box.list_snapshots(name=asked).next_items()] == [found.snapshot_id]

        builds = {t.tag: t.build_id for t in e2b.Template.get_tags(name)}
        assert set(builds) == {"v1", "default"}
        told = e2b.Template.assign_tags(f"{name}:{builds['v1']}", ["stable"])
        assert told.build_id == builds["v1"] and told.tags == ["stable"]
        children.append(create(f"{name}:stable"))
        assert children[-1].files.read("/home/user/version") == "1"
        pages_of_tags(name, builds)
    finally:
        for made in children:
            made.kill()
        assert e2b.Sandbox.delete_snapshot(first.snapshot_id) is True
        assert e2b.Sandbox.delete_snapshot(first.snapshot_id) is False
        e2b.Template.remove_tags(name, "stable")
        assert e2b.Sandbox.delete_snapshot(second.snapshot_id) is True


def pages_of_tags(name, builds):
    """The history of a template's tags, by the SDK's generated client."""
    client = get_api_client(ConnectionConfig())
    assert tags_count.sync(name, client=client).total == 3
    known = tag_exists.sync(name, client=client, tag="Stable")
    assert known.exists and known.normalized_tag == "stable"
    assert not tag_exists.sync(name, client=client, tag="none").exists
    page = tag_groups.sync(name, client=client, tags_limit=2)
    rest = tag_groups.sync(name, client=client, tags_limit=2, tags_cursor=page.next_cursor)
    groups = [*page.tags, *rest.tags]
    assert [g.tag for g in groups] == ["stable", "default", "v1"] and rest.next_cursor is None
    assert not any(g.has_more for g in groups)
    moved = tag_assignments.sync(name, "stable", client=client)
    assert [str(a.build_id) for a in moved.data] == [str(builds["v1"])]
    assert moved.data[0].build_finished_at is not None and moved.next_cursor is None


def test_default_templates():
    client = get_api_client(ConnectionConfig())
    found = get_default_templates.sync(client=client)
    assert [t.template_id for t in found] == sorted(t.template_id for t in found)
    names = {alias for t in found for alias in t.aliases}
    assert {"base", "code-interpreter-v1"} <= names
    assert all(t.is_default and t.description and t.build_status == "ready" for t in found)
    base = get_templates_template_id.sync("base", client=client)
    assert base.is_default and base.builds and base.cpu_count == 2


def test_old_builds_say_where_to_go():
    request = urllib.request.Request(
        f"{API}/templates", data=b'{"dockerfile":"FROM debian"}', method="POST",
        headers={"X-API-Key": os.environ["E2B_API_KEY"], "Content-Type": "application/json"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    assert refused.value.code == 410 and refused.value.headers["Should-Retry"] == "false"
    assert "/v3/templates" in refused.value.read().decode()


def test_the_first_cpu_sample_is_measured(create, eventually):
    box = create("base")
    busy = box.commands.run("while :; do :; done", background=True)
    first = eventually(lambda: box.get_metrics())[0]
    busy.kill()
    assert first.cpu_used_pct > 0
    assert round(first.cpu_used_pct, 2) == first.cpu_used_pct
