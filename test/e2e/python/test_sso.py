"""Logins of people at an OpenID provider, with the real command line, and keys for a CI's tokens, with the real SDK."""

import base64
import hashlib
import http.cookiejar
import http.server
import json
import os
import re
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid

import e2b
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

import world


class Provider:
    """An OpenID provider on loopback, at which Ann is always logged in."""

    def __init__(self):
        self.key = rsa.generate_private_key(65537, 2048)
        self.codes = {}
        provider = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                path, _, query = self.path.partition("?")
                asked = dict(urllib.parse.parse_qsl(query))
                if path == "/.well-known/openid-configuration":
                    return self.answer({"issuer": provider.url, "authorization_endpoint": provider.url + "/authorize",
                                        "token_endpoint": provider.url + "/token", "jwks_uri": provider.url + "/keys"})
                if path == "/keys":
                    public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(provider.key.public_key()))
                    return self.answer({"keys": [{**public, "kid": "one", "use": "sig", "alg": "RS256"}]})
                code = uuid.uuid4().hex
                provider.codes[code] = asked
                self.send_response(302)
                self.send_header("Location", asked["redirect_uri"] + "?" + urllib.parse.urlencode({"code": code, "state": asked["state"]}))
                self.end_headers()

            def do_POST(self):
                form = dict(urllib.parse.parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode()))
                asked = provider.codes.pop(form["code"])
                challenge = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).decode().rstrip("=")
                assert challenge == asked["code_challenge"]
                self.answer({"access_token": "x", "token_type": "Bearer", "id_token": provider.sign(
                    aud="cay", sub="ann", email="ann@example.com", email_verified=True, groups=["platform"], nonce=asked["nonce"])})

            def answer(self, what):
                body = json.dumps(what).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def sign(self, **claims):
        now = int(time.time())
        return jwt.encode({"iss": self.url, "iat": now, "exp": now + 300, "jti": uuid.uuid4().hex, **claims},
                          self.key, algorithm="RS256", headers={"kid": "one"})


@pytest.fixture(scope="module")
def provider():
    provider = Provider()
    rule = {"issuer": provider.url, "audience": "cay-ci", "claims": {"repository": "acme/*"}, "team": "default",
            "scopes": ["sandboxes:read", "sandboxes:write", "sandboxes:exec"], "lifetime": "10m"}
    url = os.environ["E2B_API_URL"]
    with world.started_anew(CAY_URL=url, CAY_OIDC_ISSUER=provider.url, CAY_OIDC_CLIENT_ID="cay",
                            CAY_OIDC_RULES="group:platform -> team default as developer", CAY_TOKEN_EXCHANGE=json.dumps([rule])):
        yield provider
    provider.server.shutdown()


def cay(home, *args, **kw):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("E2B_", "CAY_"))}
    return subprocess.Popen([str(world.CAY), *args], env={**env, "HOME": str(home), "E2B_API_URL": os.environ["E2B_API_URL"]},
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **kw)


def says(home, *args):
    run = cay(home, *args)
    out, err = run.communicate(timeout=60)
    return run.returncode, out + err


def test_login_over_a_terminal(provider, tmp_path):
    login = cay(tmp_path, "login", "--no-browser")
    address = login.stderr.readline().split()[1]
    code = login.stderr.readline().split()[1]
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))
    page = browser.open(address).read().decode()
    assert code in page and "ann@example.com" in page
    proof = re.search(r'name="proof" value="([^"]+)"', page).group(1)
    answer = urllib.parse.urlencode({"proof": proof, "answer": "yes"}).encode()
    assert "logged in" in browser.open(os.environ["E2B_API_URL"] + "/cay/v1/login/answer", data=answer).read().decode()
    out, err = login.communicate(timeout=60)
    assert login.returncode == 0 and "ann@example.com" in out, err

    status, text = says(tmp_path, "whoami")
    assert status == 0 and "default" in text and "developer" in text
    status, text = says(tmp_path, "sandbox", "list", "--json")
    assert status == 0, text
    status, text = says(tmp_path, "key", "create", "mine")
    assert status != 0 and "keys:write" in text
    assert says(tmp_path, "logout")[0] == 0
    status, text = says(tmp_path, "whoami")
    assert status != 0 and "cay login" in text


def exchange(token):
    request = urllib.request.Request(os.environ["E2B_API_URL"] + "/cay/v1/token-exchange", data=json.dumps({"token": token}).encode(),
                                     headers={"Content-Type": "application/json"}, method="POST")
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as e:
        return e.code, json.load(e)


def test_a_key_for_a_job(provider):
    token = provider.sign(aud="cay-ci", sub="repo:acme/app", repository="acme/app")
    status, made = exchange(token)
    assert status == 201, made
    with e2b.Sandbox.create(api_key=made["key"], timeout=60) as sandbox:
        assert sandbox.commands.run("echo from a job").stdout == "from a job\n"
    assert exchange(token) == (401, {**exchange(token)[1], "error_code": "token_replayed"})
    assert exchange(provider.sign(aud="cay-ci", sub="x", repository="evil/app"))[1]["error_code"] == "token_refused"
    assert exchange(provider.sign(aud="other", sub="x", repository="acme/app"))[1]["error_code"] == "token_audience_wrong"
