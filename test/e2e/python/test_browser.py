"""Sandboxes in a real browser by the path form: a Vite dev server, two sandboxes
in two tabs, sessions, an app that routes in the browser, and an error page."""

import io
import os
import tarfile
import time
import urllib.parse

import pytest
from playwright.sync_api import TimeoutError as TooLate

import chromium
import world

SERVER = urllib.parse.urlparse(os.environ["E2B_API_URL"])
VITE = world.ROOT / "build" / "sdk" / "vite" / "node_modules"
APP = {
    "index.html": """<!doctype html><link rel="icon" href="data:,"><h1 id="text"></h1><img src="/red.svg">
        <script type="module" src="/main.js"></script>""",
    "red.svg": '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><rect width="9" height="9" fill="red"/></svg>',
    "style.css": "h1 { color: rgb(1, 2, 3) }",
    "main.js": """import "./style.css"
        import { text } from "/text.js"
        const show = (text) => { document.querySelector("#text").textContent = text }
        show(text)
        import.meta.hot.accept("/text.js", (changed) => show(changed.text))
        window.session = () => new Promise((resolve, reject) => {
          const socket = new WebSocket("/session")
          socket.onmessage = (event) => { resolve(event.data); socket.close() }
          socket.onerror = () => reject("no websocket")
        })""",
    # A session that begins in an answer and is looked for in a websocket.
    "vite.config.js": """import { createHash } from "node:crypto"
        const guid = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        const session = (request, socket) => {
          if (request.url !== "/session") return
          const accept = createHash("sha1").update(request.headers["sec-websocket-key"] + guid).digest("base64")
          const said = Buffer.from(request.headers.cookie ?? "none")
          socket.on("error", () => {})
          socket.write("HTTP/1.1 101 Yes\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\nSec-WebSocket-Accept: " + accept + "\\r\\n\\r\\n")
          socket.write(Buffer.concat([Buffer.from([0x81, said.length]), said]))
        }
        export default { plugins: [{ name: "session", configureServer(server) {
          server.httpServer.on("upgrade", session)
          server.middlewares.use("/login", (request, response) => {
            response.setHeader("Set-Cookie", "user=" + process.env.NAME + "; Path=/; HttpOnly")
            response.end()
          })
        } }] }""",
}


@pytest.fixture(scope="module")
def browser():
    with chromium.launched(SERVER.port, host=SERVER.hostname) as browser:
        yield browser


@pytest.fixture
def context(browser):
    """Like a new profile: no cookies."""
    context = browser.new_context(ignore_https_errors=True)
    context.set_default_timeout(60_000)
    yield context
    context.close()


def packed():
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        tar.add(VITE, "app/node_modules")
        for name, text in {**APP, "text.js": said("one")}.items():
            info = tarfile.TarInfo(f"app/{name}")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return out.getvalue()


def said(text):
    return f'export const text = "{text}"'


def address(box, path="", port=5173):
    return f"{SERVER.scheme}://127.0.0.1:{SERVER.port}/s/{box.sandbox_id}/{port}/{path}"


@pytest.fixture
def vite(create, eventually):
    """Sandboxes with a dev server each."""
    tar = packed()

    def serve(name):
        box = create()
        box.files.write("/home/user/app.tar", tar)
        box.commands.run("tar -C /home/user --no-same-owner -xf /home/user/app.tar", timeout=300)
        box.commands.run(f"cd app && NAME={name} node node_modules/vite/bin/vite.js --host 127.0.0.1 --strictPort",
                         background=True, timeout=0)
        box.commands.run("for i in $(seq 1200); do ss -Htln sport = :5173 | grep -q . && exit 0; sleep 0.2; done; exit 1", timeout=300)
        return box

    return serve


def opened(context, box):
    """A tab that shows the app and is joined to its dev server."""
    tab = context.new_page()
    with tab.expect_console_message(lambda message: "[vite] connected" in message.text):
        tab.goto(address(box))
    shows(tab, "one")
    tab.evaluate("window.loaded = 'once'")
    return tab


def shows(tab, text, timeout=60_000):
    tab.wait_for_function("(text) => document.querySelector('#text')?.textContent === text", arg=text, timeout=timeout)


def change(tab, box, text):
    """Edits the app until the tab shows it, without a load of the page."""
    deadline = time.monotonic() + 60
    while True:
        box.files.write("/home/user/app/text.js", said(text))
        try:
            shows(tab, text, 10_000)
            break
        except TooLate:
            assert time.monotonic() < deadline, f"no change of {tab.url}: {tab.inner_text('body')}"
    assert tab.evaluate("window.loaded") == "once"


def test_dev_servers_in_two_tabs(context, vite):
    first, second = vite("first"), vite("second")
    one = opened(context, first)
    assert one.evaluate("getComputedStyle(document.querySelector('h1')).color") == "rgb(1, 2, 3)"
    assert one.evaluate("document.images[0].decode().then(() => document.images[0].naturalWidth)") == 9
    other = opened(context, second)
    change(one, first, "of the first")
    change(other, second, "of the second")
    shows(one, "of the first")

    # A session of the last page that was opened reaches a websocket outside its
    # prefix, and does so again for a page that is opened again.
    for tab, name in ((other, "second"), (one, "first")):
        tab.goto(address(first if tab is one else second))
        assert tab.evaluate("fetch('/login').then((answer) => answer.ok)")
        assert tab.evaluate("session()") == f"user={name}"
    other.reload()
    assert other.evaluate("session()") == "user=second"
    assert {cookie["name"] for cookie in context.cookies(address(first))} >= {"cay_opened", "user"}

    # An app that routes in the browser is found again by its own path.
    other.evaluate("history.pushState(null, '', '/about/me')")
    other.reload()
    assert other.url == address(second, "about/me")
    shows(other, "of the second")


def test_error_page(context, sbx):
    tab = context.new_page()
    tab.set_viewport_size({"width": 320, "height": 480})
    asked = []
    tab.on("request", lambda request: asked.append(request.url))
    answer = tab.goto(address(sbx, port=4567))
    assert (answer.status, tab.title()) == (502, "Closed Port")
    assert f"The sandbox {sbx.sandbox_id} is running" in tab.inner_text("p")
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    # Nothing but the page, which the browser may be sent to once more, bound to its team.
    assert {url.removesuffix("?cay-bound=1") for url in asked} == {address(sbx, port=4567)}
