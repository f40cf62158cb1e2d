"""The common parts of the flows of the console: pages whose errors are collected,
and calls to the server beside the browser.
"""

import json
import os
import pathlib
import re
import urllib.parse
import urllib.request

from playwright.sync_api import expect

API = os.environ["CONSOLE_API"]
PORT = urllib.parse.urlparse(API).port
HERE = f"http://console.localhost:{PORT}"
KEY = os.environ["CONSOLE_KEY"]
SHOTS = os.environ.get("CAY_CONSOLE_SHOTS")
ROOT = pathlib.Path(__file__).resolve().parents[2]
AXE = ROOT / "console" / "node_modules" / "axe-core" / "axe.min.js"

expect.set_options(timeout=20_000)


def call(method, path, body=None, **headers):
    """A request to the API, beside the browser."""
    headers = headers or {"X-API-Key": KEY}
    if body is not None:
        headers["Content-Type"] = "application/json"
    request = urllib.request.Request(API + path, method=method, headers=headers, data=None if body is None else json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=120) as answer:
        text = answer.read()
        return json.loads(text) if text else None


def operator():
    """Headers of the operator, about the team of the key."""
    return {"X-Admin-Token": os.environ["CONSOLE_ADMIN"], "X-Team-ID": call("GET", "/cay/v1/caller")["teamID"]}


def session(**headers):
    """A session of the console, by a link that the bearer of these headers asks for."""
    link = call("POST", "/cay/v1/console-links", **headers)
    return call("POST", "/cay/v1/console-sessions", {"code": link["code"]}, **{"User-Agent": "flows"})["token"]


def watched(context, allow=()):
    """A page whose errors are collected; those that match are expected."""
    page = context.new_page()
    page.set_default_timeout(20_000)
    page.errors = []

    def note(text):
        if not any(re.search(pattern, text) for pattern in [*allow, *page.allow]):
            page.errors.append(text)

    page.allow = []
    page.on("console", lambda message: note(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: note(str(error)))
    return page


def log_in(page, key):
    page.goto(HERE + "/")
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Log in", exact=True).click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()


def visit(page, path):
    page.goto(HERE + path)
    expect(page.locator("h1").first).to_be_visible()


def lose(page, path):
    """Has the next POST to a path of the API arrive, and its answer not."""
    def lost(route):
        at = urllib.parse.urlsplit(route.request.url)
        request = urllib.request.Request(API + at.path, method="POST", headers={**route.request.headers, "Host": at.netloc}, data=route.request.post_data_buffer)
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()
        route.abort()

    page.route("**" + path, lost, times=1)


def shot(page, name):
    if SHOTS:
        pathlib.Path(SHOTS).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=f"{SHOTS}/{name}.png")


def screen(page):
    return page.locator(".one:not([hidden]) .xterm-rows")


def findings(page):
    """Findings of axe-core. It is run in the page's own world, past its policy."""
    page.evaluate(AXE.read_text() + "; 0")
    got = page.evaluate("axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']})")
    return [(v["id"], [n["html"][:160] + " " + n["failureSummary"][:240] for n in v["nodes"][:3]]) for v in got["violations"]]


def everything():
    """All sandboxes, page by page."""
    found, token = [], ""
    while True:
        with urllib.request.urlopen(urllib.request.Request(API + f"/v2/sandboxes?limit=100&state=running,paused&nextToken={token}", headers={"X-API-Key": KEY}), timeout=60) as answer:
            found += json.loads(answer.read())
            token = answer.headers.get("x-next-token")
        if not token:
            return found
