"""Secrets that a real sandbox uses and never sees, with both SDKs.

The upstream is a TLS server of our own at a public-looking address; the server
is started anew with an authority and a name server that know it.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import ssl
import subprocess
import time
import urllib.parse
import urllib.request
import uuid

import e2b
import jwt
import pytest
from e2b import ALL_TRAFFIC

import world
from internet import NAMES, Internet, Names, certificate


API, OTHER = NAMES


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The server with an internet that it trusts; as before after."""
    directory = tmp_path_factory.mktemp("upstream")
    ca, leaf = certificate(directory)
    bundle = directory / "bundle.pem"
    bundle.write_text(pathlib.Path(ssl.get_default_verify_paths().cafile or "/etc/ssl/certs/ca-certificates.crt").read_text() + ca.read_text())
    with Internet(str(leaf)) as internet:
        first, second = internet.addresses
        names = Names({API: first, OTHER: second})
        try:
            with world.started_anew(CAY_RESOLVERS=names.address, SSL_CERT_FILE=str(bundle)) as server:
                server.names, server.internet = names, internet
                yield server
        finally:
            names.close()


@pytest.fixture
def secret(server):
    name, value = f"key-{uuid.uuid4().hex[:8]}", f"v4lue-{uuid.uuid4().hex}"
    e2b.Secret.create(name, value)
    yield name, value
    e2b.Secret.destroy(name)


def rules(name):
    return {API: [{"transform": {"headers": {"Authorization": "Bearer " + e2b.Secret.fill(name)}}}]}


def post(sandbox, url, *options):
    """The answer's headers and JSON; what is not JSON is returned as text."""
    run = sandbox.commands.run(
        f"curl -sS -m 60 -D /tmp/head {' '.join(options)} -d payload {url} -o /tmp/body; cat /tmp/head; echo @@@; cat /tmp/body", timeout=90)
    head, body = run.stdout.split("@@@\n")
    with contextlib.suppress(ValueError):
        body = json.loads(body)
    return head, body


def digest(value):
    return hashlib.sha256(f"Bearer {value}".encode()).hexdigest()


def leaks(server, value, since):
    """Files that hold a value, of those written since: logs, records, snapshots."""
    found = []
    parts = (server.data / part for part in ("logs", "snapshots"))
    for file in [server.log, *server.data.glob("*"), *(file for part in parts for file in world.files_of(part))]:
        with contextlib.suppress(FileNotFoundError):
            if file.is_file() and file.stat().st_mtime >= since and \
                    subprocess.run(["grep", "-qzaF", value, str(file)], env={"LC_ALL": "C"}).returncode == 0:
                found.append(str(file))
    return found


def test_a_secret_is_used_and_never_seen(server, secret, create):
    name, value = secret
    since = time.time() - 5
    sandbox = create(network={"rules": rules(name)})
    head, got = post(sandbox, f"https://{API}/")
    # The upstream had the real one; the guest sees stars of the same length.
    assert got.get("digest") == digest(value) and got["host"] == API, got
    assert got["body"] == hashlib.sha256(b"payload").hexdigest()
    assert got["key"] == "Bearer " + "*" * len(value) and f"x-key: Bearer {'*' * len(value)}" in head.lower().replace("bearer", "Bearer")

    # A new value is used from the next request on.
    fresh = f"v4lue-{uuid.uuid4().hex}"
    e2b.Secret.update(name, fresh)
    assert post(sandbox, f"https://{API}/")[1]["digest"] == digest(fresh)

    # It goes nowhere else: not in the clear, not to another name of the same server.
    _, refused = post(sandbox, f"http://{API}/")
    assert "without TLS" in str(refused)
    _, elsewhere = post(sandbox, f"https://{OTHER}/", "-k", "-H 'Authorization: none'")
    assert elsewhere["digest"] == hashlib.sha256(b"none").hexdigest()
    _, misled = post(sandbox, f"https://{API}/", f"-H 'Host: {OTHER}'")
    assert "not the server name" in str(misled)

    inside = sandbox.commands.run("cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'; env", user="root").stdout
    assert value not in inside and fresh not in inside
    sandbox.pause()
    assert leaks(server, value, since) == [] and leaks(server, fresh, since) == []
    sandbox = sandbox.connect()
    assert post(sandbox, f"https://{API}/")[1]["digest"] == digest(fresh)


def test_a_secret_that_is_gone(server, create):
    name = f"key-{uuid.uuid4().hex[:8]}"
    e2b.Secret.create(name, "x" * 20)
    sandbox = create(network={"rules": rules(name)})
    assert post(sandbox, f"https://{API}/")[1]["key"] == "Bearer " + "*" * 20
    assert e2b.Secret.destroy(name)
    head, body = post(sandbox, f"https://{API}/")
    assert " 403" in head and "cannot be read" in str(body)


def test_domains_by_the_name_server(server, create):
    """A real TLS server, allowed by name alone; nothing else is asked or reached."""
    sandbox = create(network={"allow_out": [API], "deny_out": [ALL_TRAFFIC]})
    _, got = post(sandbox, f"https://{API}/", "-k")
    assert got["host"] == API
    for url in (f"https://{OTHER}/", f"https://{server.internet.addresses[1]}/"):
        run = sandbox.commands.run(f"curl -skS -m 60 {url} || echo refused", timeout=90)
        assert run.stdout.endswith("refused\n"), run
    asked = f"tunnel-{uuid.uuid4().hex[:8]}.{OTHER}"
    sandbox.commands.run(f"getent hosts {asked} || true")
    assert asked not in server.names.asked


def identity(server, sandbox):
    """The claims of the sandbox's token as the upstream got it, checked as any service does that knows the issuer's name."""
    _, got = post(sandbox, f"https://{API}/")
    scheme, token = got["backwards"][::-1].split(" ")
    assert scheme == "Bearer" and got["key"] == "Bearer " + "*" * len(token)
    with urllib.request.urlopen(os.environ["E2B_API_URL"] + "/.well-known/openid-configuration") as answer:
        about = json.load(answer)
    keys = jwt.PyJWKClient(os.environ["E2B_API_URL"] + urllib.parse.urlparse(about["jwks_uri"]).path)
    return jwt.decode(token, keys.get_signing_key_from_jwt(token), algorithms=["RS256"], audience="sts.example", issuer=about["issuer"],
                      options={"require": ["iss", "sub", "aud", "iat", "exp", "jti"]}), token


def test_identity_tokens(server, create):
    iam = {"tokens": {"cloud": e2b.Secret.iam_token(audience="sts.example", token_type="JWT-SVID")}}
    sandbox = create(iam=iam, network={"rules": {API: [
        {"transform": lambda ctx: {"headers": {"Authorization": "Bearer " + ctx.iam.tokens["cloud"]}}}]}})
    said, token = identity(server, sandbox)
    assert said["sub"].startswith("spiffe://") and said["sub"].endswith(f"/sandbox/{sandbox.sandbox_id}")
    assert 0 < said["exp"] - said["iat"] <= 300
    assert identity(server, sandbox)[1] == token  # more than half of its life is left
    with pytest.raises(jwt.InvalidAudienceError):
        jwt.decode(token, jwt.PyJWKClient(os.environ["E2B_API_URL"] + "/.well-known/jwks.json").get_signing_key_from_jwt(token), algorithms=["RS256"], audience="other")

    # A fork is another sandbox, a resumed one is the same.
    fork, = sandbox.fork(count=1, timeout=300)
    try:
        assert identity(server, fork)[0]["sub"].endswith(f"/sandbox/{fork.sandbox_id}")
    finally:
        fork.kill()
    sandbox.pause()
    sandbox.connect()
    assert identity(server, sandbox)[0]["sub"] == said["sub"]
    inside = sandbox.commands.run("cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'; env", user="root").stdout
    assert token not in inside

    # Rules name tokens that are there; without TLS none is sent.
    assert "without TLS" in str(post(sandbox, f"http://{API}/")[1])
    with pytest.raises(e2b.SandboxException, match="no identity token"):
        sandbox.update_network({"rules": {API: [{"transform": {"headers": {"X": "${e2b.identity.tokens.none}"}}}]}})


def test_from_javascript(server, secret):
    name, value = secret
    modules = world.ROOT / "build" / "sdk" / "js"
    if not shutil.which("node") or not modules.exists():
        pytest.skip("NOT TESTED HERE: node or its SDK is missing")
    target = modules / "tests" / "network.mjs"
    target.parent.mkdir(exist_ok=True)
    target.write_bytes((world.ROOT / "test" / "e2e" / "js" / "network.mjs").read_bytes())
    env = {**os.environ, "SECRET": name, "DIGEST": digest(value), "API": API, "ADDRESSES": ",".join(server.internet.addresses)}
    run = subprocess.run(["node", "--test", "--test-reporter=spec", str(target)], env=env, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr


def replace_network(sandbox, **policy):
    """A policy with the fields that the SDKs have no word for."""
    request = urllib.request.Request(
        f"{os.environ['E2B_API_URL']}/sandboxes/{sandbox.sandbox_id}/network", json.dumps(policy).encode(), method="PUT",
        headers={"X-API-Key": os.environ["E2B_API_KEY"], "Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 204


def approvals(*args):
    """cay approvals as the operator, who may decide what the tests' key asks."""
    run = subprocess.run([str(world.CAY), "--json", "approvals", *args, "--team", "default"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def waiting(sandbox, eventually):
    """The one question of a sandbox."""
    return eventually(lambda: approvals("list", "-s", sandbox.sandbox_id))[0]


def test_a_host_is_asked_about(server, create, eventually):
    sandbox = create()
    replace_network(sandbox, askOut=[API, f"*.{OTHER}"], denyOut=[ALL_TRAFFIC])
    server.names.asked.discard(API)  # other tests ask for it
    fetch = f"curl -sS -m 60 https://{API}/ -d payload -k"
    first = sandbox.commands.run(fetch, background=True, timeout=90)
    question = waiting(sandbox, eventually)
    assert question["kind"] == "egress" and question["title"] == f"Reach {API} at port 443" and question["askedBy"]["kind"] == "sandbox", question
    assert API not in server.names.asked

    # The key that made the sandbox is the asking party's; the sandbox's token opens nothing.
    own = subprocess.run([str(world.CAY), "approvals", "approve", question["id"]], capture_output=True, text=True)
    assert own.returncode == 1 and "cannot decide" in own.stderr, own

    assert approvals("approve", question["id"], "--remember", "hour")["state"] == "approved"
    assert json.loads(first.wait().stdout)["host"] == API
    assert json.loads(sandbox.commands.run(fetch, timeout=90).stdout)["host"] == API  # remembered
    again = subprocess.run([str(world.CAY), "approvals", "deny", question["id"], "--team", "default"], capture_output=True, text=True)
    assert again.returncode == 1 and "approved" in again.stderr

    # A no, in words; nothing of the name is asked outside, whatever the guest puts into it.
    tunnel = f"data-{uuid.uuid4().hex[:8]}.{OTHER}"
    refused = sandbox.commands.run(f"curl -sS -m 60 http://{tunnel}/; true", background=True, timeout=90)
    approvals("deny", waiting(sandbox, eventually)["id"])
    said = json.loads(refused.wait().stdout)
    assert said["code"] == 403 and "denied" in said["rule"], said
    assert tunnel not in server.names.asked

    # A remembered decision outlives a pause; a fork asks anew.
    sandbox.pause()
    sandbox = sandbox.connect()
    assert json.loads(sandbox.commands.run(fetch, timeout=90).stdout)["host"] == API
    fork, = sandbox.fork(count=1, timeout=300)
    try:
        run = fork.commands.run(fetch, background=True, timeout=90)
        approvals("approve", waiting(fork, eventually)["id"])
        assert json.loads(run.wait().stdout)["host"] == API
        # One that ends while it waits leaves no question.
        fork.commands.run(f"curl -sS -m 60 http://{tunnel}/", background=True, timeout=90)
        question = waiting(fork, eventually)
    finally:
        fork.kill()
    eventually(lambda: approvals("show", question["id"])["state"] == "expired")


def test_a_secret_is_asked_about(server, secret, create, eventually):
    name, value = secret
    sandbox = create()
    replace_network(sandbox, rules={API: [dict(rules(name)[API][0], approve=True)]})
    run = sandbox.commands.run(f"curl -sS -m 60 'https://{API}/pay?token=hidden' -d payload", background=True, timeout=90)
    question = waiting(sandbox, eventually)
    assert question["kind"] == "secret" and "POST /pay" in question["body"] and name in question["body"], question
    assert "hidden" not in question["body"] and value not in str(question)
    approvals("approve", question["id"])
    assert json.loads(run.wait().stdout)["digest"] == digest(value)
    denied = sandbox.commands.run(f"curl -sS -m 60 https://{API}/ -d payload", background=True, timeout=90)
    approvals("deny", waiting(sandbox, eventually)["id"])
    assert json.loads(denied.wait().stdout)["code"] == 403
