"""The one port: host labels, routing headers, and what strangers get."""

import http.client
import json
import os
import urllib.parse

import e2b
import pytest

import world

SERVER = urllib.parse.urlparse(os.environ["E2B_API_URL"])


@pytest.fixture(scope="module")
def web(sbx):
    """A web server on port 3000 of the shared sandbox."""
    sbx.files.write("/home/user/site/index.html", "hello from inside")
    sbx.commands.run("python3 -m http.server 3000 --bind 127.0.0.1 -d /home/user/site", background=True, timeout=0)
    sbx.commands.run("for i in $(seq 300); do ss -Htln sport = :3000 | grep -q . && exit 0; sleep 0.1; done; exit 1",
                     timeout=60)
    return sbx


def get(path="/", host=None, headers=None, method="GET"):
    kind = http.client.HTTPSConnection if SERVER.scheme == "https" else http.client.HTTPConnection
    connection = kind(SERVER.hostname, SERVER.port, timeout=60)
    connection.request(method, path, headers={**({"Host": host} if host else {}), **(headers or {})})
    reply = connection.getresponse()
    body = reply.read().decode()
    connection.close()
    return reply, body


def test_web_server_by_host(web):
    for domain in (f"localhost:{SERVER.port}", "example.test"):
        reply, body = get(host=f"3000-{web.sandbox_id}.{domain}")
        assert (reply.status, body) == (200, "hello from inside")


def test_web_server_by_headers(web):
    reply, body = get(headers={"E2b-Sandbox-Id": web.sandbox_id, "E2b-Sandbox-Port": "3000"})
    assert (reply.status, body) == (200, "hello from inside")


SERVERS = """
import http.server, socket, socketserver, threading
for port, bind in enumerate(("127.0.0.1", "0.0.0.0", "::", "::1"), 3101):
    class Server(socketserver.ThreadingTCPServer):  # HTTPServer asks DNS for its name
        address_family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(self.server.server_address[0].encode())
    threading.Thread(target=Server((bind, port), Handler).serve_forever).start()
"""


def test_every_way_to_listen(sbx):
    sbx.files.write("/tmp/servers.py", SERVERS)
    sbx.commands.run("python3 /tmp/servers.py", background=True, timeout=0)
    sbx.commands.run("for i in $(seq 300); do ss -Htln sport = :3104 | grep -q . && exit 0; sleep 0.1; done; exit 1", timeout=60)
    for port, bind in enumerate(("127.0.0.1", "0.0.0.0", "::", "::1"), 3101):
        reply, body = get(host=f"{port}-{sbx.sandbox_id}.localhost")
        assert (reply.status, body) == (200, bind)


def test_by_path(web):
    """An address without names: what a page loads from a path of its own comes from its sandbox."""
    prefix = f"/s/{web.sandbox_id}/3000"
    reply, body = get(f"{prefix}/", headers={"Accept": "text/html"})
    assert (reply.status, body) == (200, "hello from inside")
    opened = reply.getheader("Set-Cookie").split(";")[0]
    page = {"Referer": f"http://{SERVER.netloc}{prefix}/", "Host": SERVER.netloc}
    reply, _ = get("/index.html?v=1", headers=page)
    assert (reply.status, reply.getheader("Location")) == (307, f"{prefix}/index.html?v=1")
    # Without a referrer its sender is unknown: a page of another sandbox could have sent it.
    reply, _ = get("/index.html?v=1", headers={"Cookie": opened})
    assert reply.status == 404
    reply, body = get("/sandboxes", headers={**page, "Cookie": opened, "X-API-KEY": os.environ["E2B_API_KEY"]})
    assert reply.status == 200 and isinstance(json.loads(body), list)
    reply, _ = get(prefix)
    assert (reply.status, reply.getheader("Location")) == (307, f"{prefix}/")


def test_private_in_a_browser(create):
    """A person opens a private sandbox with its token in the address."""
    box = create(network={"allow_public_traffic": False})
    token = box.traffic_access_token
    browser = {"User-Agent": "Mozilla/5.0", "Accept": "text/html"}
    prefix = f"/s/{box.sandbox_id}/4567/"
    # First of all the browser is bound to the team, by a cookie.
    reply, _ = get(prefix, headers=browser)
    assert (reply.status, reply.getheader("Location")) == (307, f"{prefix}?cay-bound=1")
    bound = reply.getheader("Set-Cookie").split(";")[0]
    browser["Cookie"] = bound
    reply, _ = get(f"{prefix}?cay-bound=1", headers=browser)
    assert (reply.status, reply.getheader("Location")) == (307, prefix)
    reply, body = get(prefix, headers=browser)
    assert reply.status == 403 and "Missing Traffic Access Token" in body
    reply, _ = get(f"{prefix}?e2b-traffic-access-token={token}", headers=browser)
    assert (reply.status, reply.getheader("Location")) == (303, prefix)
    token_cookie = reply.getheader("Set-Cookie").split(";")[0]
    reply, body = get(prefix, headers={**browser, "Cookie": f"{bound}; {token_cookie}"})
    assert reply.status == 502 and "no service running on port" in body


def test_closed_port(sbx):
    reply, body = get(host=f"4567-{sbx.sandbox_id}.localhost")
    assert reply.status == 502
    assert json.loads(body) == {"sandboxId": sbx.sandbox_id, "port": 4567, "code": 502,
                                "message": "The sandbox is running but port is not open"}


def test_unknown_sandbox():
    reply, body = get(host="3000-inosuchsandboxatall0.localhost")
    assert reply.status == 502
    assert reply.getheader("Content-Type") == "application/json; charset=utf-8"
    assert json.loads(body) == {"sandboxId": "inosuchsandboxatall0", "code": 502,
                                "message": "The sandbox was not found"}


@pytest.mark.parametrize("path", ["/init", "/freeze", "/upgrade"])
def test_internal_routes_are_closed(sbx, path):
    reply, body = get(path, host=f"49983-{sbx.sandbox_id}.localhost", method="POST")
    assert reply.status == 404
    assert "reserved for the E2B control plane" in body


def test_agent_wants_its_token(sbx):
    reply, body = get("/envs", host=f"49983-{sbx.sandbox_id}.localhost")
    assert reply.status == 401
    assert json.loads(body)["code"] == 401


@pytest.mark.parametrize("method, path, status", [
    ("GET", "/no/such/path", 404), ("PATCH", "/sandboxes", 405), ("GET", "/sandboxes/inothere", 404)])
def test_errors_are_json(method, path, status):
    reply, body = get(path, headers={"X-API-KEY": os.environ["E2B_API_KEY"]}, method=method)
    assert reply.status == status
    assert json.loads(body)["code"] == status
    assert json.loads(body)["message"]


def test_wrong_key():
    with pytest.raises(e2b.AuthenticationException):
        e2b.Sandbox.create(api_key="e2b_" + "0" * 40)


def test_a_template_that_must_be_asked_for():
    """`desktop` is Cay's own, but costs minutes and a gigabyte: what lacks it says which command brings it."""
    server = world.Server()
    there = json.loads(server.cay("--json", "template", "list").stdout)
    if any(name.split("/")[-1] == "desktop" for one in there for name in one["names"]):
        pytest.skip("this server has it")
    with pytest.raises(e2b.SandboxException, match="cay template add desktop"):
        e2b.Sandbox.create("desktop")
    refused = server.cay("template", "add", "none", check=False)
    assert refused.returncode == 1 and "there is: code-interpreter-newer, desktop" in refused.stderr, refused


def test_unknown_template():
    with pytest.raises(e2b.SandboxException, match="404"):
        e2b.Sandbox.create(template="no-such-template")


def test_bad_timeout():
    with pytest.raises(e2b.SandboxException, match="timeout"):
        e2b.Sandbox.create(timeout=-1)
