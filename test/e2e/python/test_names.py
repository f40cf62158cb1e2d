"""The road by name on one machine without DNS: a server that was told nothing, what `cay env` prints, and programs
that have nothing else: curl, both Python SDKs, the JavaScript SDK, a browser.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest

import chromium
import world

SDK = world.ROOT / "build" / "sdk"

PLAIN = {name: value for name, value in os.environ.items()
         if not name.startswith(("E2B_", "SSL_", "NODE_", "CURL_", "REQUESTS_"))}


@pytest.fixture(scope="module")
def server():
    """The server without the settings that are a road of their own."""
    told = {"CAY_DOMAIN": "", "CAY_TLS": "", "CAY_PATHS": ""}
    with world.started_anew(**told) as server:
        yield server


@pytest.fixture(scope="module")
def env(server):
    """The words of `cay env`, and nothing else of where the server is."""
    said = json.loads(server.cay("--json", "env").stdout)
    assert said["E2B_DOMAIN"] == f"cay.localhost:{server.port}"
    assert "E2B_API_URL" not in said and "E2B_SANDBOX_URL" not in said
    return {**PLAIN, **said, "E2B_API_KEY": os.environ["E2B_API_KEY"]}


def run(*command, env, **kw):
    return subprocess.run(command, env=env, text=True, capture_output=True, timeout=300, **kw)


PYTHON = """
import asyncio
import urllib.request
import e2b, e2b_code_interpreter

SERVE = "python3 -m http.server 3000 -d site"
LISTENS = "for i in $(seq 300); do ss -Htln sport = :3000 | grep -q . && exit 0; sleep 0.1; done; exit 1"

def get(url):
    return urllib.request.urlopen(url, timeout=60).read().decode()

box = e2b_code_interpreter.Sandbox.create("code-interpreter-python")
try:
    assert box.run_code("6 * 7").text == "42"
    box.files.write("site/index.html", "by name")
    box.commands.run(SERVE, background=True, timeout=0)
    box.commands.run(LISTENS)
    assert get("https://" + box.get_host(3000)) == "by name"
    assert get(box.download_url("site/index.html")) == "by name"
finally:
    box.kill()

async def main():
    box = await e2b_code_interpreter.AsyncSandbox.create("code-interpreter-python")
    try:
        assert (await box.run_code("6 * 7")).text == "42"
        await box.files.write("site/index.html", "by name")
        await box.commands.run(SERVE, background=True, timeout=0)
        await box.commands.run(LISTENS)
        assert await asyncio.to_thread(get, "https://" + box.get_host(3000)) == "by name"
    finally:
        await box.kill()

asyncio.run(main())
print("all of it")
"""


def test_python(env):
    done = run(sys.executable, "-W", "error::DeprecationWarning:e2b", "-c", PYTHON, env=env)
    assert (done.stdout, done.returncode) == ("all of it\n", 0), done.stderr


JAVASCRIPT = """
import assert from 'node:assert/strict'
import { Sandbox } from '@e2b/code-interpreter'

const box = await Sandbox.create('code-interpreter-python')
try {
  assert.equal((await box.runCode('6 * 7')).text, '42')
  await box.files.write('site/index.html', 'by name')
  await box.commands.run('python3 -m http.server 3000 -d site', { background: true, timeoutMs: 0 })
  await box.commands.run('for i in $(seq 300); do ss -Htln sport = :3000 | grep -q . && exit 0; sleep 0.1; done; exit 1')
  assert.equal(await (await fetch(`https://${box.getHost(3000)}`)).text(), 'by name')
  assert.equal(await (await fetch(await box.downloadUrl('site/index.html'))).text(), 'by name')
  console.log('all of it')
} finally {
  await box.kill()
}
"""


def test_javascript(env):
    tests = SDK / "js" / "tests"
    tests.mkdir(exist_ok=True)
    script = tests / "names.mjs"
    script.write_text(JAVASCRIPT)
    done = run("node", str(script), env=env)
    assert (done.stdout, done.returncode) == ("all of it\n", 0), done.stderr


def test_curl_and_cay(server, env):
    for family in ("-4", "-6"):
        done = run("curl", "-sS", family, "-o", "/dev/null", "-w", "%{http_code} %{remote_ip}",
                   f"https://api.cay.localhost:{server.port}/health", env=env)
        assert done.stdout.split() == ["204", "127.0.0.1" if family == "-4" else "::1"], done.stderr
    # The client of another machine's server goes by the name too.
    elsewhere = {**env, "CAY_LISTEN": "127.0.0.1:1"}
    done = run(str(world.CAY), "run", "-", env=elsewhere, input="print('by name')")
    assert done.stdout == "by name\n", done.stderr


def page(sandbox):
    sandbox.files.write("site/index.html", "<title>by name</title>")
    sandbox.commands.run("python3 -m http.server 3000 -d site", background=True, timeout=0)


# In a mount namespace of its own, whose certificates and users are copies.
APART = """
set -e
for dir in /etc/ssl/certs /usr/local/share/ca-certificates; do
  mkdir -p "$0$dir"; cp -a $dir/. "$0$dir"; mount --bind "$0$dir" $dir
done
"$@"
exec curl -sS -o /dev/null -w '%{http_code}' "$URL"
"""


def test_install_trust(server, create, eventually, tmp_path):
    """Afterwards curl and a browser trust the server without any variable."""
    home = tmp_path / "home"
    home.mkdir()
    url = f"https://api.cay.localhost:{server.port}/health"
    ours = {name: value for name, value in server.env.items() if name.startswith("CAY_") and "E2E" not in name}
    apart = {"PATH": os.environ["PATH"], "HOME": str(home), "URL": url, **ours}
    assert run("curl", "-sS", url, env={"PATH": os.environ["PATH"]}).returncode != 0
    for _ in range(2):  # the second call finds what the first has done
        done = run("unshare", "--mount", "--", "sh", "-c", APART, str(tmp_path / "etc"),
                   str(world.CAY), "env", "--install-trust", env=apart)
        assert done.returncode == 0 and done.stdout.endswith("204"), done
    sandbox = create()
    page(sandbox)
    port = server.port
    with chromium.launched(port, home) as browser:
        tab = browser.new_page()
        address = f"https://3000-{sandbox.sandbox_id}.cay.localhost:{port}/"
        eventually(lambda: tab.goto(address).status == 200)
        assert tab.title() == "by name"
        assert tab.evaluate("isSecureContext")


def test_where_names_do_not_resolve(server, tmp_path):
    """`cay env` says so, and prints an address that works there; getHost has its name all the same."""
    conf = tmp_path / "nsswitch.conf"
    conf.write_text("hosts: files dns\n")
    script = 'mount --bind "$0" /etc/nsswitch.conf && exec "$@"'
    done = run("unshare", "--mount", "--", "sh", "-c", script, str(conf), str(world.CAY), "env", env={**PLAIN, **server.env})
    lines = done.stdout.splitlines()
    assert f"export E2B_DOMAIN=cay.localhost:{server.port}" in lines, done
    assert f"export E2B_API_URL=http://localhost:{server.port}" in lines
    assert f"export E2B_SANDBOX_URL=http://localhost:{server.port}" in lines
    assert any("--install-names" in line for line in lines if line.startswith("# "))


def test_bundle_keeps_what_was_trusted(server, tmp_path):
    """A company's own authority, which a variable names, is trusted as before."""
    theirs = tmp_path / "theirs.pem"
    run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=theirs",
        "-keyout", "/dev/null", "-out", str(theirs), env=PLAIN, check=True)
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"):
        env = {**PLAIN, **server.env, name: str(theirs)}
        said = json.loads(subprocess.run([str(world.CAY), "--json", "env"], env=env, check=True, capture_output=True).stdout)
        assert theirs.read_text().strip() in pathlib.Path(said[name]).read_text(), name
        assert server.cay("cert", "--pem").stdout.strip() in pathlib.Path(said[name]).read_text()
