"""Hostile pages in a real Chromium. Arguments: the proxy's address and that of a
server elsewhere. Prints one line for each attack that succeeds."""

import sys

from playwright.sync_api import sync_playwright

PROXY, ELSEWHERE = sys.argv[1], sys.argv[2]
VICTIM, NEIGHBOUR, THIEF = (f"http://127.0.0.1:{PROXY}/s/{name}/3000/" for name in ("victim", "neighbour", "thief"))
SAME_SITE, CROSS_SITE = f"http://127.0.0.1:{ELSEWHERE}/", f"http://localhost:{ELSEWHERE}/"


def broken(what):
    print(what, flush=True)


def frames(page, *addresses):
    """Shows addresses in frames, all at once, and returns what each shows."""
    page.evaluate(
        """(all) => Promise.all(all.map((src) => new Promise((done) => {
             const frame = Object.assign(document.createElement("iframe"), { src, onload: done })
             document.body.append(frame)
             setTimeout(done, 50000)
           })))""", list(addresses))
    page.wait_for_timeout(500)
    return [frame.evaluate("document.body?.innerText ?? ''") for frame in page.frames[1:]]


def clears(context):
    page = context.new_page()
    page.goto(VICTIM)
    page.evaluate("localStorage.kept = 'yes'")
    page.goto(NEIGHBOUR + "clear")
    page.goto(VICTIM)
    if page.evaluate("localStorage.kept") != "yes":
        broken("a page cleared the storage of another sandbox")
    if "session=secret" not in page.inner_text("body"):
        broken("a page cleared the cookies of another sandbox")


def framed_elsewhere(context):
    page = context.new_page()
    page.goto(CROSS_SITE)
    for text in frames(page, VICTIM, THIEF):
        if "page of" in text:
            broken(f"another site shows a sandbox in a frame: {text}")


def framed_nearby(context):
    """A page of another port of this host gets cookies into its frames. A browser
    that asks for two teams at once may be shown neither, and never both."""
    page = context.new_page()
    page.goto(SAME_SITE)
    shown = {text.split()[2] for text in frames(page, VICTIM, THIEF) + frames(page, THIEF, VICTIM) if "page of" in text}
    if len(shown) > 1:
        broken(f"frames of two teams are shown: {shown}")


def framed_alone(context):
    page = context.new_page()
    page.goto(SAME_SITE)
    if not any("page of" in text for text in frames(page, VICTIM)):
        broken("another port of this host cannot show a sandbox in a frame")


def windows(context):
    page = context.new_page()
    page.goto(CROSS_SITE)
    page.evaluate("(all) => all.forEach((at) => window.open(at))", [VICTIM, THIEF])
    for _ in range(600):  # a busy machine needs a while for two windows
        page.wait_for_timeout(100)
        if len(context.pages) > 2:
            break
    opened = [tab for tab in context.pages if tab != page]
    for tab in opened:
        tab.wait_for_url(lambda url: url != "about:blank")
    shown = {tab.inner_text("body").split()[2] for tab in opened if "page of" in tab.inner_text("body")}
    if len(opened) != 2 or len(shown) > 1:
        broken(f"windows of two teams are shown: {shown} of {len(opened)}")


def fetches(context):
    """Requests that do not say whose page they are from."""
    page = context.new_page()
    other = context.new_page()
    for address in (NEIGHBOUR, SAME_SITE):
        other.goto(address)
        page.goto(VICTIM)  # opened last
        for policy in ("no-referrer", "same-origin"):
            if policy == "same-origin" and address == NEIGHBOUR:
                continue  # says whose it is
            text = other.evaluate(
                """async (policy) => {
                     try { return await (await fetch(%r, { referrerPolicy: policy, credentials: "include" })).text() }
                     catch (e) { return String(e) }
                   }""" % f"http://127.0.0.1:{PROXY}/secret", policy)
            if "session=secret" in text:
                broken(f"a page at {address} ({policy}) reads the session of the page opened last: {text}")
        if address != SAME_SITE:
            continue
        if other.evaluate(
                """(at) => new Promise((done) => {
                     const socket = new WebSocket(at)
                     socket.onopen = () => done(true)
                     socket.onerror = () => done(false)
                   })""", f"ws://127.0.0.1:{PROXY}/socket"):
            broken("a page of another port joins a websocket of the page opened last")
    if not page.evaluate("fetch('/secret').then((answer) => answer.text())").startswith("asked by session=secret"):
        broken("a page does not reach its own path")
    page.evaluate("history.pushState(null, '', '/of/its/own')")
    if not page.evaluate("fetch('/secret').then((answer) => answer.text())").startswith("asked by session=secret"):
        broken("a page with a path of its own does not reach its own path")


def refuses(context):
    page = context.new_page()
    page.goto(VICTIM)
    if "session=secret" not in page.reload().text():
        broken("a page has no session")
    page.goto(THIEF)
    if "page of" in page.inner_text("body"):
        broken("a browser that is bound shows another team's page")
    if context.new_page().goto(VICTIM).url != VICTIM:
        broken("the mark of a bound browser stays in the address line")


with sync_playwright() as play:
    browser = play.chromium.launch(executable_path="/usr/bin/chromium", timeout=120_000,
                                   args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"])
    for attack in (clears, framed_elsewhere, framed_nearby, framed_alone, *[windows] * 5, fetches, refuses):
        context = browser.new_context()
        context.set_default_timeout(60_000)
        attack(context)
        context.close()
    browser.close()
print("done", flush=True)
