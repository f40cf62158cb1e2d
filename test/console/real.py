"""Flows through the console, in Chromium, on a real server with real sandboxes."""

import datetime
import hashlib
import json
import os
import pty
import re
import socket
import statistics
import subprocess
import tarfile
import threading
import time
import urllib.error
import uuid

import chromium
import pytest
from internet import NAMES
from playwright.sync_api import expect
from steps import API, KEY, PORT, ROOT, call, findings, log_in, screen, shot, visit, watched

expect.set_options(timeout=40_000)


def sandbox(**options):
    return call("POST", "/sandboxes", {"templateID": "base", "timeout": 900, "metadata": {"by": "flows"}, **options})["sandboxID"]


@pytest.fixture
def box():
    made = sandbox()
    yield made
    try:
        call("DELETE", "/sandboxes/" + made)
    except urllib.error.HTTPError as error:
        assert error.code == 404


def shell(page, box):
    """Opens a terminal that answers."""
    visit(page, f"/sandboxes/{box}/terminal")
    expect(screen(page)).to_contain_text("$")
    return page.locator(".one:not([hidden]) .xterm-helper-textarea")


def typed(page, line, answer):
    """Types a line into the terminal that has the focus, and waits for its answer,
    which the line itself does not have."""
    assert answer not in line
    page.keyboard.type(line + "\n")
    expect(screen(page)).to_contain_text(answer)


BROKEN = "ERR_INCOMPLETE_CHUNKED"  # a pause or an end breaks the streams of terminals


def test_create_and_everything_inside(page):
    page.allow.append(BROKEN)
    visit(page, "/sandboxes/new")
    page.get_by_label("Template or snapshot").fill("base")
    page.get_by_label("Minutes").fill("20")
    page.get_by_label("When its time is up").select_option("pause")
    page.get_by_label("Traffic wakes it").check()
    page.get_by_role("button", name="Add").first.click()
    page.get_by_label("Metadata: name 1").fill("made")
    page.get_by_label("Metadata: value 1").fill("in a <browser>")
    page.get_by_role("button", name="Add").nth(1).click()
    page.get_by_label("Environment variables: name 1").fill("GREETING")
    page.get_by_label("Environment variables: value 1").fill("hällo wörld")
    page.get_by_label("Allowed out").fill("example.com")
    page.get_by_label("Denied out").fill("0.0.0.0/0")
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_role("heading", name=re.compile("^i[0-9a-z]{10}"))).to_be_visible()
    box = page.url.rsplit("/", 1)[1]
    expect(page.get_by_text("in a <browser>")).to_be_visible()
    shot(page, "real-overview")

    # A terminal inside.
    page.get_by_role("link", name="Terminal", exact=True).click()
    expect(screen(page)).to_contain_text("$")
    typed(page, "echo $GREETING $((6*7)); id -un; tty; stty size", "hällo wörld 42")
    expect(screen(page)).to_contain_text("/dev/pts/")
    typed(page, "export MARK=kept; printf '\\033[1;31mred\\033[0m 漢字 \\u00e9\\n'", "red 漢字 é")
    shot(page, "real-terminal")

    # A web server inside, on an origin of its own.
    typed(page, "mkdir -p site && echo '<h1>from inside</h1>' > site/index.html && (python3 -m http.server -d site 8000 > /dev/null 2>&1 &) ; echo start''ed", "started")
    page.get_by_role("link", name="Ports", exact=True).click()
    row = page.get_by_role("row").filter(has_text=f"8000-{box}")
    expect(row).to_be_visible()
    shot(page, "real-ports")
    with page.context.expect_page() as opened:
        row.get_by_role("button", name="Open").click()
    expect(opened.value.get_by_role("heading", name="from inside")).to_be_visible()
    assert opened.value.evaluate("location.origin") == f"http://8000-{box}.localhost:{PORT}"
    assert opened.value.evaluate("window.opener") is None and opened.value.evaluate("document.referrer") == ""
    opened.value.close()

    # A connection that the rules refuse, and why.
    page.get_by_role("link", name="Terminal", exact=True).click()
    expect(screen(page)).to_contain_text("started")
    page.locator(".one:not([hidden]) .xterm-helper-textarea").focus()
    typed(page, "python3 -c 'import socket; socket.create_connection((\"pypi.org\", 443), 5)' 2>&1 | tail -1; echo tri''ed", "tried")
    page.get_by_role("link", name="Network", exact=True).click()
    refused = page.get_by_role("row").filter(has_text="pypi.org").first
    expect(refused).to_contain_text("refused")
    shot(page, "real-network")
    refused.get_by_role("button", name="Allow").click()
    expect(page.get_by_text("Allowed for this sandbox.")).to_be_visible()
    expect(page.locator("dd").get_by_text("pypi.org")).to_be_visible()
    # Its use of the machine, and its events so far.
    page.get_by_role("link", name="Metrics", exact=True).click()
    expect(page.locator("main svg, main canvas").first).to_be_visible()
    shot(page, "real-metrics")
    page.get_by_role("link", name="Events", exact=True).click()
    expect(page.get_by_role("cell", name="sandbox.network_changed").first).to_be_visible()

    # Paused with its processes, woken by a visit to its port.
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(page.get_by_role("button", name="Resume", exact=True)).to_be_visible(timeout=60_000)
    page.get_by_role("link", name="Files", exact=True).click()
    expect(page.get_by_text("The sandbox is paused")).to_be_visible()
    shot(page, "real-paused")
    page.get_by_role("link", name="Ports", exact=True).click()
    expect(page.get_by_text("opening a port wakes it")).to_be_visible()
    page.get_by_label("Another port").fill("8000")
    with page.context.expect_page() as opened:
        page.get_by_role("button", name="Open", exact=True).click()
    expect(opened.value.get_by_role("heading", name="from inside")).to_be_visible()
    opened.value.close()
    expect(page.get_by_role("button", name="Extend", exact=True)).to_be_visible()

    # The shell is the one of before, with the screen that it had.
    page.get_by_role("link", name="Terminal", exact=True).click()
    expect(screen(page)).to_contain_text("hällo wörld 42")
    page.locator(".one:not([hidden]) .xterm-helper-textarea").focus()
    typed(page, "echo $MARK-on", "kept-on")

    # Its end, with a snapshot first, and why.
    page.get_by_role("button", name="Kill", exact=True).click()
    page.get_by_label("Save it as a snapshot first").check()
    page.allow.append("404")  # it is over: the page asks why instead
    page.get_by_role("dialog").get_by_role("button", name="Kill", exact=True).click()
    expect(page.get_by_text("ended", exact=True).first).to_be_visible(timeout=60_000)
    page.get_by_role("link", name="Overview").last.click()
    expect(page.get_by_text("Why it is over")).to_be_visible()
    shot(page, "real-over")
    page.get_by_role("link", name="Logs", exact=True).last.click()
    expect(page.get_by_role("log")).to_contain_text("process started")
    shot(page, "real-logs")


def test_a_terminal_is_shared_and_survives(page, box):
    page.allow.append(BROKEN)
    area = shell(page, box)
    typed(page, "echo first-$((6*7)); export MARK=kept", "first-42")
    # A program that fills the screen, seen whole by a second viewer and after a reload.
    typed(page, "printf '\\033[?1049h\\033[2J\\033[5;10Hin the %s' middle; read -r x; printf '\\033[?1049l'; echo le''ft", "in the middle")
    other = page.context.new_page()
    other.goto(page.url)
    expect(screen(other)).to_contain_text("in the middle")
    assert "first-42" not in screen(other).inner_text()
    page.reload()
    expect(screen(page)).to_contain_text("in the middle")
    area.focus()
    typed(page, "", "left")
    expect(screen(other)).to_contain_text("first-42")
    # Output while no page looks.
    page.keyboard.type("(sleep 1; seq -f 'row-%g' 1 3000; echo all''-rows) &\n")
    expect(screen(other)).to_contain_text("[1]")
    other.close()
    at = page.url
    visit(page, "/sessions")
    page.wait_for_timeout(3000)
    page.goto(at)
    expect(screen(page)).to_contain_text("all-rows")
    expect(screen(page)).to_contain_text("row-3000")
    page.mouse.move(600, 400)
    page.mouse.wheel(0, -3000)
    expect(screen(page)).to_contain_text(re.compile("row-2[0-9]{3}"))
    area.focus()
    typed(page, "echo $MARK-still", "kept-still")
    # Paused and resumed: the screen is there.
    page.get_by_role("button", name="Pause", exact=True).click()
    page.get_by_role("button", name="Resume", exact=True).click(timeout=60_000)
    page.get_by_role("dialog").get_by_role("button", name="Resume", exact=True).click()
    expect(screen(page)).to_contain_text("kept-still", timeout=60_000)
    area.focus()
    typed(page, "echo $MARK-again", "kept-again")
    # The sandbox ends meanwhile.
    page.allow.append("404|502|503|ERR_")
    call("DELETE", "/sandboxes/" + box)
    expect(page.get_by_text("The sandbox is over")).to_be_visible()


def test_vim_in_a_terminal(page, box):
    area = shell(page, box)
    page.keyboard.type("vim -u NONE notes.txt\n")
    expect(screen(page)).to_contain_text("notes.txt")
    expect(screen(page)).to_contain_text(re.compile("~ *~"))
    page.keyboard.type("ihällo from vim")
    page.keyboard.press("Enter")
    page.keyboard.type("second line")
    page.keyboard.press("Escape")
    shot(page, "real-vim")
    # A second viewer sees it whole, and it follows the size of the window.
    other = page.context.new_page()
    other.goto(page.url)
    expect(screen(other)).to_contain_text("second line")
    other.close()
    page.set_viewport_size({"width": 900, "height": 520})
    expect(screen(page)).to_contain_text("hällo from vim")
    area.focus()
    page.keyboard.type(":wq\n")
    expect(screen(page)).not_to_contain_text("hällo from vim")
    typed(page, "cat -A notes.txt; stty size; echo le''ft", "left")
    expect(screen(page)).to_contain_text("M-CM-$llo from vim$")
    rows, columns = map(int, re.search(r"\n?(\d+) (\d+)\s*left", screen(page).inner_text()).groups())
    assert rows < 25 and columns < 100, (rows, columns)
    page.set_viewport_size({"width": 1280, "height": 800})


def echoes_of_connect(box):
    """Times from a key to its echo, in milliseconds, by the command line, through such a
    relay as the browser's."""
    way = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=chromium.relay, args=(way, "127.0.0.1", PORT), daemon=True).start()
    at = f"http://localhost:{way.getsockname()[1]}"
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(ROOT / "bin" / "cay", ["cay", "sandbox", "connect", box], {**os.environ, "E2B_API_KEY": KEY, "E2B_API_URL": at, "E2B_SANDBOX_URL": at})
    text = b""
    while b"$ " not in text:
        text += os.read(terminal, 4096)
    times = []
    for letter in "abcdefghijklmnopqrstuvwxyz" * 2:
        begun = time.monotonic()
        os.write(terminal, letter.encode())
        while letter.encode() not in os.read(terminal, 4096):
            pass
        times.append((time.monotonic() - begun) * 1000)
        time.sleep(0.05)
    os.write(terminal, b"\x15exit\n")
    os.close(terminal)
    os.waitpid(pid, 0)
    way.close()
    return times


def test_echo_as_fast_as_connect(page, box):
    shell(page, box)
    page.evaluate("""() => { window.echo = []; let typed = '', at = 0
        document.addEventListener('keydown', (e) => { if (!e.ctrlKey && e.key.length === 1) { typed += e.key; at = performance.now() } }, true)
        window.forget = () => { typed = ''; at = 0 }
        const rows = document.querySelector('.one:not([hidden]) .xterm-rows')
        new MutationObserver(() => { if (at && rows.textContent.includes(typed)) { window.echo.push(performance.now() - at); at = 0 } })
          .observe(rows, {childList: true, subtree: true, characterData: true}) }""")
    # Other programs of the machine only add to a time: the best of three rounds counts.
    rounds, there = [], statistics.median(echoes_of_connect(box))
    while len(rounds) < 3 and (not rounds or min(rounds) > there + 30):
        begun = page.evaluate("window.echo.length")
        for i, letter in enumerate("abcdefghijklmnopqrstuvwxyz" * 2, begun):
            page.keyboard.press(letter)
            page.wait_for_function("(n) => window.echo.length > n", arg=i)
            page.wait_for_timeout(50)
        rounds.append(statistics.median(page.evaluate("(begun) => window.echo.slice(begun)", begun)))
        page.keyboard.press("Control+u")
        page.evaluate("window.forget()")
    print(f"an echo comes after {', '.join(f'{ms:.0f}' for ms in rounds)} ms on the page, after {there:.0f} ms by cay sandbox connect; load of the machine {os.getloadavg()[0]:.0f}")
    assert min(rounds) <= there + 30


def test_metrics_have_a_gap_while_paused(page, box):
    def samples():
        now = int(time.time())
        return call("GET", f"/sandboxes/{box}/metrics?start={now - 900}&end={now + 5}")

    visit(page, f"/sandboxes/{box}/metrics")
    while len(samples()) < 2:
        page.wait_for_timeout(500)
    call("POST", f"/sandboxes/{box}/pause", {})
    expect(page.get_by_text("It is paused: nothing is used now")).to_be_visible(timeout=60_000)
    before = len(samples())
    page.wait_for_timeout(30_000)  # samples are five seconds apart
    assert len(samples()) == before
    call("POST", f"/v2/sandboxes/{box}/connect", {"timeout": 900})
    while len(samples()) < before + 2:
        page.wait_for_timeout(500)
    line = page.get_by_role("img", name=re.compile("^Processor")).locator("path")
    expect(line).to_have_attribute("d", re.compile("^M[^M]+M[^M]+$"))  # two lines with a gap between
    shot(page, "real-metrics-gap")


def test_a_secret_and_a_question(page, new_context):
    """A secret in a request, which neither the sandbox nor the page sees, and a host that
    another party allows while the request waits."""
    api, other = NAMES
    name, value = "PAY_" + uuid.uuid4().hex[:8].upper(), "v4lue-" + uuid.uuid4().hex
    visit(page, "/secrets")
    page.get_by_role("button", name="New secret").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name", exact=True).fill(name)
    dialog.get_by_label("Value", exact=True).fill(value)
    dialog.get_by_role("button", name="Keep").click()
    expect(page.get_by_role("row").filter(has_text=name)).to_be_visible()
    visit(page, "/sandboxes/new")
    page.get_by_label("Allowed out").fill(api)
    page.get_by_label("Denied out").fill("0.0.0.0/0")
    page.get_by_label("Asked about").fill(other)
    page.get_by_text("A secret in requests").click()
    page.get_by_label("Host").fill(api)
    page.get_by_label("Value", exact=True).fill("Bearer ${e2b.secrets." + name + "}")
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_role("heading", name=re.compile("^i[0-9a-z]{10}"))).to_be_visible()
    box = page.url.rsplit("/", 1)[1]
    area = shell(page, box)
    digest = hashlib.sha256(f"Bearer {value}".encode()).hexdigest()
    typed(page, f"curl -sS -m 60 https://{api}/ -d payload > got; grep -c {digest} got; grep -o 'Bearer [^\"]*' got; echo as''ked", "asked")
    expect(screen(page)).to_contain_text(re.compile(r"1\s*Bearer \*{8}"))
    # A host that is asked about: the request waits, another party decides.
    decider = watched(new_context(viewport={"width": 1280, "height": 800}))
    log_in(decider, os.environ["CONSOLE_DECIDER"])
    area.focus()
    page.keyboard.type(f"curl -sS -m 60 http://{other}/ ; echo\n")
    decider.get_by_role("link", name=re.compile("^Approvals.*1")).click()
    card = decider.get_by_role("list", name="Questions that wait").get_by_role("listitem").filter(has_text=box)
    expect(card).to_contain_text(other)
    shot(decider, "real-approvals")
    assert findings(decider) == []
    expect(page.get_by_role("link", name="1 question of it waits for a decision")).to_be_visible()
    card.get_by_role("button", name="Approve").click()
    decider.get_by_label("It counts").select_option("sandbox")
    decider.get_by_role("dialog").get_by_role("button", name="Approve", exact=True).click()
    expect(screen(page)).to_contain_text(f"hello from {other}")
    # It counts for the next request too, and the page of the network says so.
    area.focus()
    typed(page, f"curl -sS -m 60 http://{other}/ | sed s/hello/again/; echo", f"again from {other}")
    page.get_by_role("link", name="Network", exact=True).click()
    expect(page.locator("dd").get_by_text(other)).to_be_visible()
    for host in (api, other):
        expect(page.get_by_role("row").filter(has_text=host).filter(has_text="allowed").first).to_be_visible()
    shot(page, "real-network-secret")
    kept = page.evaluate("document.documentElement.outerHTML + JSON.stringify([{...localStorage}, {...sessionStorage}])")
    assert value not in kept and value not in json.dumps(call("GET", f"/cay/v1/sandboxes/{box}/events"))
    assert decider.errors == []
    page.allow.append("404")  # it is over: the page asks why instead
    call("DELETE", "/sandboxes/" + box)
    visit(page, "/secrets")
    page.get_by_role("row").filter(has_text=name).get_by_role("button").last.click()
    page.get_by_role("menuitem", name=re.compile("Remove|Delete")).click()
    dialog.get_by_role("button", name=re.compile("^(Remove|Delete)$")).click()
    expect(page.get_by_role("row").filter(has_text=name)).to_have_count(0)


def test_files_up_and_down(page, box, tmp_path):
    visit(page, f"/sandboxes/{box}/files")
    big = os.urandom(24 << 20)
    (tmp_path / "big.bin").write_bytes(big)
    (tmp_path / "näme & <b>.txt").write_text("text\n")
    page.locator("input[type=file]").first.set_input_files([tmp_path / "big.bin", tmp_path / "näme & <b>.txt"], timeout=60_000)
    expect(page.get_by_text("2 files are there")).to_be_visible(timeout=60_000)
    expect(page.get_by_role("link", name="näme & <b>.txt")).to_be_visible()
    shot(page, "real-files")
    page.get_by_role("button", name="Actions on big.bin").click()
    with page.expect_download(timeout=60_000) as download:
        page.get_by_role("menuitem", name="Download", exact=True).click()
    with open(download.value.path(), "rb") as f:
        assert hashlib.sha256(f.read()).digest() == hashlib.sha256(big).digest()
    page.get_by_role("link", name="näme & <b>.txt").click()
    text = page.get_by_role("textbox", name="Text of the file")
    expect(text).to_contain_text("text")
    text.focus()
    page.keyboard.press("Control+End")
    page.keyboard.type("more")
    page.keyboard.press("Control+s")
    expect(page.get_by_text("Saved.")).to_be_visible()
    page.get_by_role("button", name="Back").click()
    page.get_by_role("button", name="New directory").click()
    page.get_by_role("dialog").get_by_label("Name").fill("sub")
    page.get_by_role("dialog").get_by_role("button", name="Make").click()
    expect(page.get_by_role("link", name="sub", exact=True)).to_be_visible()
    page.get_by_role("button", name="More actions").last.click()
    with page.expect_download(timeout=60_000) as download:
        page.get_by_role("menuitem", name="Download this directory").click()
    with tarfile.open(download.value.path()) as tar:
        names = {m.name.removeprefix("./").split("/", 1)[-1]: m for m in tar.getmembers()}
        found = next(m for name, m in names.items() if name.endswith("näme & <b>.txt"))
        assert tar.extractfile(found).read() == b"text\nmore"
    # A directory that is not there.
    page.allow.append("40[0-9]|500")
    visit(page, f"/sandboxes/{box}/files?dir=/not/there")
    expect(page.get_by_role("alert")).to_be_visible()
    shot(page, "real-files-not-there")


def test_back_and_forth(page, box):
    page.allow.append(BROKEN)
    area = shell(page, box)
    typed(page, "echo one > state; export SHELL_STATE=one; echo do''ne", "done")

    def checkpoint(label):
        page.get_by_role("link", name="Checkpoints").click()
        page.get_by_role("button", name="Checkpoint", exact=True).click()
        page.get_by_role("dialog").get_by_label("Label").fill(label)
        page.get_by_role("dialog").get_by_role("button", name="Take", exact=True).click()
        expect(page.get_by_role("button", name=re.compile("^" + label))).to_be_visible(timeout=60_000)

    checkpoint("first")
    page.get_by_role("link", name="Terminal", exact=True).click()
    expect(screen(page)).to_contain_text("done")
    area.focus()
    typed(page, "echo two > state; echo new > added; SHELL_STATE=two; echo do''ne-two", "done-two")
    checkpoint("second")
    page.get_by_role("button", name=re.compile("^first")).click()
    page.get_by_label("Compare with").select_option(index=2)
    expect(page.get_by_text("/home/user/added")).to_be_visible(timeout=60_000)
    expect(page.get_by_text("/home/user/state")).to_be_visible()
    shot(page, "real-checkpoints")
    page.get_by_role("button", name="Roll back to it").click()
    page.get_by_role("dialog").get_by_role("button", name="Roll back", exact=True).click()
    expect(page.get_by_text("It is back there")).to_be_visible(timeout=60_000)
    page.get_by_role("link", name="Terminal", exact=True).click()
    expect(screen(page)).to_contain_text("done")
    area.focus()
    typed(page, "cat state; ls added; echo was-$SHELL_STATE", "was-one")
    expect(screen(page)).to_contain_text("No such file")
    assert "done-two" not in screen(page).inner_text()
    # A fork of the second goes on from there.
    page.get_by_role("link", name="Checkpoints").click()
    page.get_by_role("button", name=re.compile("^second")).click()
    page.get_by_role("button", name="Fork from it").click()
    page.get_by_role("dialog").get_by_role("button", name="Fork", exact=True).click()
    expect(page.locator("li .tag", has_text="fork")).to_have_count(1, timeout=60_000)
    shot(page, "real-tree")
    page.locator("li .tag", has_text="fork").locator("xpath=..").get_by_role("link").click()
    expect(page.get_by_role("heading", name=box)).to_have_count(0)
    fork = page.url.split("/sandboxes/")[1].split("/")[0]
    page.get_by_role("link", name="Terminal", exact=True).click()
    expect(screen(page)).to_contain_text("done-two")
    area.focus()
    typed(page, "cat state added; echo fork-$SHELL_STATE", "fork-two")
    call("DELETE", "/sandboxes/" + fork)


def test_many_and_their_logs(page):
    batch = uuid.uuid4().hex[:8]  # paused ones of an earlier run may be there
    made = [sandbox(metadata={"batch": batch}) for _ in range(3)]
    visit(page, "/sandboxes?q=batch%3D" + batch)
    expect(page.get_by_role("link", name="Running 3")).to_be_visible()
    for verb, state in (("Pause", "Paused 3"), ("Resume", "Running 3")):
        page.get_by_role("checkbox", name="Choose all 3").check()
        page.get_by_role("button", name=verb, exact=True).click()
        page.get_by_role("dialog").get_by_role("button", name=verb, exact=True).click()
        expect(page.get_by_role("link", name=state)).to_be_visible(timeout=120_000)
        expect(page.get_by_role("dialog")).to_have_count(0)
    shot(page, "real-sandboxes")
    area = shell(page, made[0])
    typed(page, "echo say''s", "says")
    area.focus()
    # A log has what its agent said a moment ago, once it is read.
    while not any(entry["message"] == "process started" for entry in call("GET", f"/v2/sandboxes/{made[0]}/logs")["logs"]):
        page.wait_for_timeout(200)
    visit(page, "/logs")
    page.get_by_label("Find text in all logs").fill("PROCESS STARTED")
    expect(page.get_by_role("log").get_by_role("link", name=made[0]).first).to_be_visible()
    expect(page.locator("mark").first).to_have_text("process started")
    assert "q=PROCESS" in page.url
    shot(page, "real-logs-of-all")
    assert findings(page) == []
    page.get_by_label("Find text in all logs").fill("no line says this")
    expect(page.get_by_text("No line is like that")).to_be_visible()
    visit(page, "/sandboxes?q=batch%3D" + batch)
    page.get_by_role("checkbox", name="Choose all 3").check()
    page.get_by_role("button", name="Kill", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Kill", exact=True).click()
    expect(page.get_by_text("No sandbox is like that")).to_be_visible(timeout=60_000)


def test_notebook(page):
    box = sandbox(templateID="code-interpreter-v1")
    page.allow.append("Blocked|Unsafe attempt|allow-same-origin")  # by the frame's sandbox, which is wanted
    asked = []
    page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    visit(page, f"/sandboxes/{box}/notebook")

    def code(i):
        return page.get_by_role("textbox", name=f"Code of cell {i}", exact=True)

    def cell(i):
        return page.get_by_role("region", name=f"Cell {i}", exact=True)

    code(1).focus()
    page.keyboard.type("x = 20\nprint('ünïcødé')\nx + 1")
    page.keyboard.press("Shift+Enter")
    expect(cell(1)).to_contain_text("ünïcødé")
    expect(cell(1)).to_contain_text("21")
    # A second cell has the focus, and the variables of the first.
    expect(code(2)).to_be_focused()
    page.keyboard.type("import matplotlib.pyplot as plt\nplt.plot([1, x]); plt.show()")
    page.keyboard.press("Control+Enter")
    expect(cell(2).get_by_role("img", name=re.compile("^Result"))).to_be_visible(timeout=60_000)
    assert cell(2).get_by_role("img", name=re.compile("^Result")).evaluate("(i) => i.naturalWidth") > 100
    cell(2).get_by_role("button", name="chart").click()
    expect(cell(2)).to_contain_text('"line"')
    cell(2).get_by_role("button", name="picture").click()
    shot(page, "real-notebook")
    assert findings(page) == []
    # Markup of the guest: shown, without its scripts, and without reach.
    page.get_by_role("button", name="Cell", exact=True).click()
    page.keyboard.type("from IPython.display import HTML, SVG, display\n"
                       "display(HTML('<b id=b>bold</b><script>parent.document.title=\"owned\";alert(1)</script><img src=x onerror=alert(2)><form action=/login><button>press</button></form><a href=\"/sandboxes\" target=_top>out</a>'))\n"
                       "display(SVG('<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"50\" height=\"20\"><script>alert(3)</script><text y=\"15\" onload=\"alert(4)\">svg</text></svg>'))\n"
                       "print('<img src=x onerror=alert(5)>\\x1b[31m\\u202e')")
    page.allow.append("x'|ERR_|frame-src|img-src|Content Security Policy")
    page.keyboard.press("Control+Enter")
    frame = cell(3).frame_locator("iframe")
    expect(frame.locator("#b")).to_have_text("bold")
    frame.get_by_role("button", name="press").click()
    frame.get_by_role("link", name="out").click()
    page.wait_for_timeout(500)
    assert "/notebook" in page.url and "owned" not in page.title() and asked == []
    expect(cell(3)).to_contain_text("⟨202E⟩")
    assert page.locator(".outputs > pre img").count() == 0
    shot(page, "real-notebook-html")
    # An error, one that is interrupted, another language.
    page.get_by_role("button", name="Cell", exact=True).click()
    page.keyboard.type("1 / 0")
    page.keyboard.press("Control+Enter")
    expect(cell(4).get_by_role("alert")).to_contain_text("ZeroDivisionError")
    page.get_by_role("button", name="Cell", exact=True).click()
    page.keyboard.type("import time\nprint('begun')\ntime.sleep(600)")
    page.keyboard.press("Control+Enter")
    expect(cell(5)).to_contain_text("begun")
    page.get_by_role("button", name="Interrupt").click()
    expect(cell(5)).to_contain_text("Interrupted")
    page.get_by_role("button", name="Cell", exact=True).click()
    cell(6).get_by_label("Language of cell 6").select_option("javascript")
    code(6).focus()
    page.keyboard.type("[1, 2, 3].map((n) => n * 2)")
    page.keyboard.press("Control+Enter")
    expect(cell(6)).to_contain_text("2, 4, 6", timeout=60_000)
    # A reload keeps cells and results; the variables live inside.
    page.reload()
    expect(cell(1)).to_contain_text("21")
    expect(cell(2).get_by_role("img", name=re.compile("^Result"))).to_be_visible()
    code(6).focus()
    page.keyboard.press("Control+a")
    cell(6).get_by_label("Language of cell 6").select_option("python")
    code(6).focus()
    page.keyboard.press("Control+a")
    page.keyboard.type("x * 100")
    page.keyboard.press("Control+Enter")
    expect(cell(6)).to_contain_text("2000")
    with page.expect_download() as download:
        page.get_by_role("button", name="More actions").last.click()
        page.get_by_role("menuitem", name="Download as notebook").click()
    with open(download.value.path()) as f:
        book = json.load(f)
    assert book["nbformat"] == 4 and len(book["cells"]) == 6 and "x = 20\n" in book["cells"][0]["source"]
    assert any("image/png" in o.get("data", {}) for o in book["cells"][1]["outputs"])
    # Paused and resumed: the variables are there.
    page.allow.append(BROKEN)
    page.get_by_role("button", name="Pause", exact=True).click()
    page.get_by_role("button", name="Resume", exact=True).click(timeout=60_000)
    page.get_by_role("dialog").get_by_role("button", name="Resume", exact=True).click()
    expect(page.get_by_role("button", name="Extend", exact=True)).to_be_visible(timeout=60_000)
    code(6).focus()
    page.keyboard.press("Control+a")
    page.keyboard.type("x * 1000")
    page.keyboard.press("Control+Enter")
    expect(cell(6)).to_contain_text("20000")
    page.get_by_role("button", name="Restart").click()
    page.get_by_role("dialog").get_by_role("button", name="Restart").click()
    expect(page.get_by_text("The contexts are new")).to_be_visible(timeout=60_000)
    code(6).focus()
    page.keyboard.press("Control+Enter")
    expect(cell(6).get_by_role("alert")).to_contain_text("NameError")
    page.locator("input[type=file]").set_input_files({"name": "a.ipynb", "mimeType": "application/json", "buffer": json.dumps({
        "cells": [{"cell_type": "markdown", "source": ["# Title\n", "text"]}, {"cell_type": "code", "source": "6 * 7", "outputs": []}], "nbformat": 4, "metadata": {}}).encode()})
    expect(page.get_by_role("region", name=re.compile("^Cell"))).to_have_count(2)
    page.get_by_role("button", name="Run all").click()
    expect(cell(2)).to_contain_text("42")
    call("DELETE", "/sandboxes/" + box)


def test_code_waits_for_a_yes(page, new_context):
    box = sandbox(templateID="code-interpreter-v1", askCommands=["*deploy*"])
    decider = watched(new_context(viewport={"width": 1280, "height": 800}))
    log_in(decider, os.environ["CONSOLE_DECIDER"])
    card = decider.get_by_role("list", name="Questions that wait").get_by_role("listitem").filter(has_text=box)
    visit(page, f"/sandboxes/{box}/notebook")
    cell = page.get_by_role("region", name="Cell 1", exact=True)

    def run(code):
        page.get_by_role("textbox", name="Code of cell 1", exact=True).focus()
        page.keyboard.press("Control+a")
        page.keyboard.type(code)
        page.keyboard.press("Control+Enter")

    run("print('free', 6 * 7)")
    expect(cell).to_contain_text("free 42")
    run("print('deploy', 6 * 7)")
    expect(page.get_by_role("link", name="1 question of it waits for a decision")).to_be_visible()
    expect(cell).to_contain_text("runs…")
    decider.get_by_role("link", name=re.compile("^Approvals.*1")).click()
    expect(card).to_contain_text("print('deploy', 6 * 7)")
    shot(decider, "real-approvals-code")
    card.get_by_role("button", name="Approve").click()
    decider.get_by_role("dialog").get_by_role("button", name="Approve", exact=True).click()
    expect(cell).to_contain_text("deploy 42")
    page.allow.append("403")
    run("print('deploy', 6 * 9)")
    card.get_by_role("button", name="Deny").click()
    decider.get_by_label("Reason").fill("not <b>now</b>")
    decider.get_by_role("dialog").get_by_role("button", name="Deny", exact=True).click()
    expect(cell).to_contain_text("denied: not <b>now</b>")
    shot(page, "real-notebook-denied")
    assert len(call("GET", f"/cay/v1/approvals?sandboxID={box}")["approvals"]) == 2
    assert decider.errors == []
    page.allow.append("404")  # it is over: the page asks why instead
    call("DELETE", "/sandboxes/" + box)


def test_the_command_of_the_form_makes_the_same(page):
    visit(page, "/sandboxes/new")
    page.get_by_label("Minutes").fill("20")
    page.get_by_label("When its time is up").select_option("pause")
    page.get_by_label("Traffic wakes it").check()
    page.get_by_label("Checkpoint by itself").select_option("15")
    page.get_by_label("When its machine is lost").select_option("resume")
    page.get_by_label("It may reach the internet").uncheck()
    page.get_by_role("button", name="Add").first.click()
    page.get_by_label("Metadata: name 1").fill("made")
    page.get_by_label("Metadata: value 1").fill("it's $HOME, <here>")
    page.get_by_label("Ask before these commands").fill("*git push*\nrm -rf 'a b', $(c)")
    command = page.get_by_role("button", name=re.compile("^Copy the command")).inner_text()
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_role("heading", name=re.compile("^i[0-9a-z]{10}"))).to_be_visible()
    here = page.url.rsplit("/", 1)[1]
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "PATH": f"{ROOT}/bin:{os.environ['PATH']}", "E2B_API_KEY": KEY, "E2B_API_URL": API, "E2B_SANDBOX_URL": API})
    there = done.stdout.strip()
    assert there and there != here, (command, done)

    def of(box):
        one = call("GET", "/sandboxes/" + box)
        life = datetime.datetime.fromisoformat(one["endAt"]) - datetime.datetime.fromisoformat(one["startedAt"])
        return {name: one.get(name) for name in ("templateID", "metadata", "lifecycle", "askCommands", "onHostLoss", "allowInternetAccess", "network")}, \
            call("GET", f"/cay/v1/sandboxes/{box}/auto-checkpoints"), round(life.total_seconds() / 60)

    assert of(here) == of(there)
    assert of(here)[0]["askCommands"] == ["*git push*", "rm -rf 'a b', $(c)"] and of(here)[2] == 20
    page.allow.append("404")  # it is over: the page asks why instead
    for box in (here, there):
        call("DELETE", "/sandboxes/" + box)


def test_a_sandbox_without_an_interpreter(page, box):
    page.allow.append("50[0-9]|404")
    visit(page, f"/sandboxes/{box}/notebook")
    expect(page.get_by_text("This sandbox has no code interpreter")).to_be_visible()


def test_a_template_of_a_dockerfile(page):
    visit(page, "/templates/new")
    editor = page.get_by_role("textbox", name="Dockerfile")
    expect(editor).to_contain_text("FROM e2bdev/base")

    def write(text):
        editor.focus()
        page.keyboard.press("Control+a")
        page.keyboard.type(text)

    page.allow.append("400")
    write("FROM e2bdev/base\nNONSENSE here\n")
    expect(page.locator(".note.bad")).to_contain_text("NONSENSE")
    expect(page.locator(".cay-failed")).to_contain_text("NONSENSE here")
    write("FROM e2bdev/base\nCOPY app /app\n")
    expect(page.get_by_text("takes files of a directory")).to_be_visible()
    page.get_by_label("Name", exact=True).fill("console-made")
    expect(page.get_by_role("button", name="Build", exact=True)).to_be_disabled()
    write("FROM e2bdev/base AS one\nRUN echo first > /home/user/first\nFROM one\nRUN echo 'says <b>this</b>'; printf '\\033[31mred\\033[0m \\342\\200\\256rab\\a <img src=x onerror=alert(1)>\\n'; head -c 1000000 /dev/zero | tr '\\0' x; false\n")
    expect(page.get_by_text("2 stages, 2 steps")).to_be_visible()
    page.get_by_role("button", name="Build", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("Line 4", timeout=120_000)
    expect(page.locator(".cay-failed")).to_contain_text("false")
    expect(page.get_by_role("log")).to_contain_text("says <b>this</b>")
    expect(page.get_by_role("log")).to_contain_text("red ⟨202E⟩rab⟨0007⟩ <img src=x onerror=alert(1)>")
    expect(page.get_by_role("log")).to_contain_text("x" * 1000)
    assert page.get_by_role("log").locator("img, b").count() == 0 and page.evaluate("document.documentElement.scrollWidth") <= 1280
    shot(page, "real-build-failed")
    assert findings(page) == []
    write("FROM e2bdev/base AS one\nRUN echo first > /home/user/first\nFROM one\nRUN cat /home/user/first\nENV MADE=here\nWORKDIR /home/user\n")
    page.get_by_role("button", name="Build", exact=True).click()  # at once: what is shown is built, not what was read before
    expect(page.get_by_role("heading", name="Built", exact=True)).to_be_visible(timeout=120_000)
    expect(page.get_by_text("2 stages, 4 steps")).to_be_visible()
    shot(page, "real-build")
    page.get_by_role("link", name="New sandbox").click()
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_role("heading", name=re.compile("^i[0-9a-z]{10}"))).to_be_visible()
    box = page.url.rsplit("/", 1)[1]
    page.get_by_role("link", name="Terminal", exact=True).click()
    expect(screen(page)).to_contain_text("$")
    typed(page, "cat first; echo made-$MADE", "made-here")
    page.allow.append(BROKEN)
    page.allow.append("404")  # it is over: the page asks why instead
    call("DELETE", "/sandboxes/" + box)
    # A tag, and a sandbox of it.
    visit(page, "/templates")
    page.get_by_role("link", name="console-made").click()
    page.get_by_role("button", name="Tag", exact=True).first.click()
    page.get_by_role("dialog").get_by_label("Tag").fill("stable")
    page.get_by_role("dialog").get_by_role("button", name="Tag", exact=True).click()
    expect(page.get_by_role("row").locator(".tag", has_text="stable")).to_be_visible()
    shot(page, "real-template-tag")
    visit(page, "/sandboxes/new")
    page.get_by_label("Template or snapshot").fill("console-made:stable")
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_role("heading", name=re.compile("^i[0-9a-z]{10}"))).to_be_visible()
    call("DELETE", "/sandboxes/" + page.url.rsplit("/", 1)[1])
    names = [t.get("names") for t in call("GET", "/templates")]
    assert any("console-made" in " ".join(n or []) for n in names) and not any("stage" in " ".join(n or []) for n in names), names
    call("DELETE", "/templates/console-made")
