"""Flows through the console, in Chromium, on a server over a machine in memory.

A violation of the content security policy, an error in the browser's console and
a script's exception fail each test.
"""

import datetime
import hashlib
import json
import os
import pathlib
import re
import subprocess
import tarfile
import time
import urllib.parse
import urllib.request

import pytest
from playwright.sync_api import expect
from steps import HERE, KEY, PORT, ROOT, call, everything, findings, lose, screen, shot, visit, watched

HOSTILE = os.environ["CONSOLE_HOSTILE"]


def control(what):
    urllib.request.urlopen(urllib.request.Request(os.environ["CONSOLE_CONTROL"] + what, method="POST"), timeout=60).read()


def running():
    """Sandboxes that run and that no test ends: those that were there at first."""
    return [box for box in call("GET", "/v2/sandboxes?limit=100&metadata=" + urllib.parse.quote("first=yes")) if box["state"] == "running"]


# Logging in.


def test_a_link_logs_in_once(new_context):
    link = call("POST", "/cay/v1/console-links")["url"]
    assert link.startswith(HERE + "/login#")
    page = watched(new_context())
    page.goto(link)
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    assert "#" not in page.url and link.split("#")[1] not in page.url
    assert page.context.cookies() == []
    assert page.errors == []
    # A second browser with the same link, and one with an old one.
    for again in (link, HERE + "/login#ABCDEFGHIJKLMNOPQRSTUVWXYZ"):
        other = watched(new_context(), allow=["404"])
        other.goto(again)
        expect(other.get_by_role("alert")).to_contain_text("used, or is older")
        assert other.errors == []
    # A new tab of the first browser is not logged in: the session is the tab's.
    tab = watched(page.context)
    tab.goto(HERE + "/")
    expect(tab.get_by_role("heading", name="With an API key")).to_be_visible()


def test_a_key_logs_in(new_context):
    page = watched(new_context(), allow=["401"])
    page.goto(HERE + "/sandboxes?state=paused")
    shot(page, "login")
    page.get_by_label("API key").fill("e2b_" + "0" * 40)
    page.get_by_role("button", name="Log in", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("missing or wrong")
    page.get_by_label("API key").fill(KEY)
    page.get_by_label("Stay logged in").check()
    page.get_by_role("button", name="Log in", exact=True).click()
    expect(page.get_by_role("heading", name="Sandboxes")).to_be_visible()
    assert "state=paused" in page.url
    kept = page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")
    assert KEY not in kept and "cay_session_" in kept
    tab = watched(page.context)
    tab.goto(HERE + "/")
    expect(tab.get_by_role("heading", name="Overview")).to_be_visible()
    tab.get_by_role("button", name="Log out", exact=True).click()
    expect(tab.get_by_role("heading", name="With an API key")).to_be_visible()
    # The session is over for the other tab, which says so at its next step.
    page.goto(HERE + "/")
    expect(page.get_by_role("heading", name="With an API key")).to_be_visible()
    assert page.errors == [] and tab.errors == []


def test_a_login_at_the_provider(new_context):
    """Through the browser, to the provider and back, into the tab that began it."""
    page = watched(new_context(), allow=["401|403"])
    page.goto(HERE + "/")
    page.get_by_role("button", name="Go to the login provider").click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    assert page.url == HERE + "/"
    expect(page.get_by_role("link", name="ann@example.com")).to_be_visible()
    shot(page, "overview-of-a-person")
    kept = page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")
    assert "cay_session_" in kept and "verifier" not in kept
    page.reload()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    # A developer sees no page of keys, and no other tab is logged in.
    expect(page.get_by_role("link", name="API keys")).to_have_count(0)
    tab = watched(page.context)
    tab.goto(HERE + "/")
    expect(tab.get_by_role("heading", name="With an API key")).to_be_visible()
    visit(page, "/sessions")
    expect(page.get_by_role("row")).to_have_count(2)
    expect(page.get_by_role("row").last).to_contain_text("this one")
    # The operator disables the person.
    admin = {"X-Admin-Token": os.environ["CONSOLE_ADMIN"]}
    person = call("GET", "/cay/v1/admin/people", **admin)[0]["personID"]
    call("PATCH", "/cay/v1/admin/people/" + person, {"disabled": True}, **admin)
    page.goto(HERE + "/")
    expect(page.get_by_role("button", name="Go to the login provider")).to_be_visible()
    page.get_by_role("button", name="Go to the login provider").click()
    expect(page.get_by_text(re.compile("disabled|not let in|may not", re.IGNORECASE)).first).to_be_visible()
    call("PATCH", "/cay/v1/admin/people/" + person, {"disabled": False}, **admin)


def test_a_session_that_is_ended_while_in_use(new_context):
    key = call("POST", "/cay/v1/api-keys", {"name": "short", "scopes": ["viewer"]})
    page = watched(new_context(), allow=["401"])
    page.goto(HERE + "/")
    page.get_by_label("API key").fill(key["key"])
    page.get_by_role("button", name="Log in", exact=True).click()
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    # A viewer sees no action that it may not do.
    page.get_by_role("link", name="Sandboxes").first.click()
    expect(page.get_by_role("button", name="New sandbox", exact=True)).to_be_disabled()
    expect(page.get_by_role("link", name="API keys")).to_have_count(0)
    call("DELETE", "/cay/v1/api-keys/" + key["id"])
    expect(page.get_by_text("session is over")).to_be_visible()
    assert page.errors == []


# Sandboxes.


def test_the_list_is_live(page):
    visit(page, "/sandboxes")
    made = call("POST", "/sandboxes", {"templateID": "base", "timeout": 600, "metadata": {"who": "live"}})["sandboxID"]
    row = page.get_by_role("row").filter(has_text=made)
    expect(row).to_contain_text("running")
    expect(row).to_contain_text("who=live")
    call("POST", f"/sandboxes/{made}/pause", {})
    expect(row).to_contain_text("paused")
    call("POST", f"/v2/sandboxes/{made}/connect", {"timeout": 7200})
    expect(row).to_contain_text("running")
    expect(row).to_contain_text(re.compile("in (2 h|1 h 59)"))
    # A list that is loaded after these events says the same.
    page.reload()
    expect(page.get_by_text(re.compile(r"^\d+ sandbox(es)?$"))).to_be_visible()
    expect(row).to_contain_text("running")
    expect(row).to_contain_text(re.compile("in (2 h|1 h 59)"))
    page.get_by_label("Filter by id").fill("who=live")
    expect(page.get_by_role("row")).to_have_count(2)
    assert "q=who%3Dlive" in page.url
    page.reload()
    expect(page.get_by_role("row").filter(has_text=made)).to_be_visible()
    row.get_by_role("checkbox").check()
    page.get_by_role("button", name="Kill", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text("Kill 1 sandbox?")
    page.get_by_role("dialog").get_by_role("button", name="Kill", exact=True).click()
    expect(page.get_by_text("No sandbox is like that")).to_be_visible()
    page.get_by_label("Filter by id").fill("")
    page.get_by_role("link", name=re.compile("^Ended")).click()
    expect(page.get_by_role("row").filter(has_text=made)).to_contain_text("asked for")


def test_create_with_options(page):
    visit(page, "/sandboxes/new")
    page.get_by_label("Template or snapshot").fill("nothing-of-that-name")
    page.allow.append("404|400")
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_role("alert").first).to_contain_text("nothing-of-that-name")
    shot(page, "new-sandbox-wrong")
    page.get_by_label("Template or snapshot").fill("base")
    page.get_by_label("Minutes").fill("20")
    page.get_by_label("When its time is up").select_option("pause")
    page.get_by_role("button", name="Add").first.click()
    page.get_by_label("Metadata: name 1").fill("made")
    page.get_by_label("Metadata: value 1").fill("here")
    page.get_by_label("Allowed out").fill("example.com")
    page.get_by_label("Denied out").fill("0.0.0.0/0")
    page.get_by_label("Its ports are public").uncheck()
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_role("heading", name=re.compile("^i"))).to_be_visible()
    box = call("GET", "/sandboxes/" + page.url.rsplit("/", 1)[1])
    assert box["metadata"] == {"made": "here"} and box["network"]["allowOut"] == ["example.com"]
    assert box["network"]["allowPublicTraffic"] is False and box["lifecycle"]["onTimeout"] == "pause"
    page.get_by_role("link", name="Network", exact=True).click()
    expect(page.get_by_text("want a token")).to_be_visible()


def test_a_create_whose_answer_is_lost(page):
    """Pressed once more, it makes no second one."""
    visit(page, "/sandboxes/new")
    page.get_by_role("button", name="Add").first.click()
    page.get_by_label("Metadata: name 1").fill("lost")
    page.get_by_label("Metadata: value 1").fill("answer")
    page.allow.append("ERR_FAILED")
    lose(page, "/api/v2/sandboxes")
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_role("alert").first).to_contain_text("does not answer")
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_role("heading", name=re.compile("^i[0-9a-z]{10}"))).to_be_visible()
    made = [box["sandboxID"] for box in everything() if "lost" in (box.get("metadata") or {})]
    assert made == [page.url.rsplit("/", 1)[1]]
    call("DELETE", "/sandboxes/" + made[0])


def test_a_sandbox_from_pause_to_its_end(page):
    made = call("POST", "/sandboxes", {"templateID": "base", "timeout": 600})["sandboxID"]
    visit(page, "/sandboxes/" + made)
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(page.get_by_role("button", name="Resume", exact=True)).to_be_visible()
    shot(page, "sandbox-paused")
    page.get_by_role("button", name="Resume", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Resume", exact=True).click()
    expect(page.get_by_role("button", name="Extend", exact=True)).to_be_visible()
    page.get_by_role("link", name="Checkpoints").click()
    expect(page.get_by_text("No checkpoint yet")).to_be_visible()
    for label in ("first", "second"):
        page.get_by_role("button", name="Checkpoint", exact=True).click()
        page.get_by_role("dialog").get_by_label("Label").fill(label)
        page.get_by_role("dialog").get_by_role("button", name="Take", exact=True).click()
        expect(page.get_by_role("button", name=re.compile(label))).to_be_visible()
    page.get_by_role("button", name=re.compile("^first")).click()
    page.get_by_role("button", name="Fork from it").click()
    page.get_by_label("How many").fill("2")
    page.get_by_role("dialog").get_by_role("button", name="Fork", exact=True).click()
    expect(page.locator("li .tag", has_text="fork")).to_have_count(2)
    shot(page, "sandbox-checkpoints")
    page.get_by_role("button", name="Roll back to it").click()
    page.get_by_role("dialog").get_by_role("button", name="Roll back", exact=True).click()
    expect(page.get_by_text("It is back there")).to_be_visible()
    page.allow.append("404")  # it is over: the page asks why instead
    page.get_by_role("button", name="Kill", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Kill", exact=True).click()
    page.get_by_role("link", name="Overview").last.click()
    expect(page.get_by_text("Why it is over")).to_be_visible()
    page.get_by_role("link", name="Events").click()
    expect(page.get_by_role("cell", name="sandbox.killed")).to_be_visible()


def test_a_tree_with_undo_promote_and_delete(page):
    made = call("POST", "/sandboxes", {"templateID": "base", "timeout": 600})["sandboxID"]
    visit(page, f"/sandboxes/{made}/checkpoints")
    dialog = page.get_by_role("dialog")
    expect(page.get_by_role("button", name="Undo")).to_be_disabled()
    for label in ("one", "two"):
        page.get_by_role("button", name="Checkpoint", exact=True).click()
        dialog.get_by_label("Label").fill(label)
        dialog.get_by_role("button", name="Take", exact=True).click()
        expect(page.get_by_role("button", name=re.compile("^" + label))).to_be_visible()
    page.get_by_role("button", name=re.compile("^one")).click()
    page.get_by_role("button", name="Fork from it").click()
    dialog.get_by_role("button", name="Fork", exact=True).click()
    fork = page.locator("li .tag", has_text="fork")
    expect(fork).to_have_count(1)
    # The fork takes the place of the sandbox, under the sandbox's id.
    page.get_by_role("button", name="Promote a fork").click()
    expect(dialog.get_by_label("Fork", exact=True)).to_have_value(re.compile("^i"))
    shot(page, "sandbox-promote")
    dialog.get_by_role("button", name="Promote", exact=True).click()
    expect(page.get_by_text("The fork is this sandbox now")).to_be_visible()
    expect(fork).to_have_count(0)
    expect(page.get_by_role("button", name="Promote a fork")).to_have_count(0)
    expect(page.get_by_role("button", name=re.compile("here"))).to_have_count(1)
    assert call("GET", "/sandboxes/" + made)["state"] == "running"
    # Undo goes back to the newest checkpoint of its line, which says where it is.
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_text("It is back at its newest checkpoint")).to_be_visible()
    page.get_by_role("button", name="Label", exact=True).click()
    dialog.get_by_label("Label").fill("renamed <b>")
    dialog.get_by_role("button", name="Set", exact=True).click()
    expect(page.get_by_role("button", name=re.compile("^renamed <b>"))).to_be_visible()
    page.get_by_role("button", name=re.compile("^two")).click()
    page.get_by_role("button", name="Delete", exact=True).click()
    dialog.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_role("button", name=re.compile("^two"))).to_have_count(0)
    labels = [c.get("label") for c in call("GET", f"/cay/v1/sandboxes/{made}/checkpoints")["checkpoints"]]
    assert "renamed <b>" in labels and "one" not in labels and "two" not in labels, labels
    call("DELETE", "/sandboxes/" + made)


def test_many_with_an_outcome_each(page):
    made = [call("POST", "/sandboxes", {"templateID": "base", "timeout": 600, "metadata": {"batch": "yes"}})["sandboxID"] for _ in range(20)]
    visit(page, "/sandboxes?q=batch%3Dyes")
    expect(page.get_by_role("link", name="All 20")).to_be_visible()
    call("POST", f"/sandboxes/{made[0]}/pause", {})
    expect(page.get_by_role("link", name="Running 19")).to_be_visible()
    expect(page.get_by_role("link", name="Paused 1")).to_be_visible()
    page.get_by_role("checkbox", name="Choose all 20").check()
    page.get_by_role("button", name="Pause", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Pause 19 sandboxes?")
    # One is gone by then, and one request does not arrive: they are named.
    call("DELETE", "/sandboxes/" + made[5])
    page.allow.append("Failed to load|ERR_FAILED")
    page.route("**/cay/v1/sandbox-actions", lambda route: route.abort(), times=1)
    dialog.get_by_role("button", name="Pause", exact=True).click()
    expect(dialog.get_by_role("alert")).to_contain_text("those stay chosen")
    shot(page, "sandboxes-not-all")
    failed = dialog.get_by_role("list", name="Not done").get_by_role("listitem")
    assert failed.count() >= 16 and "does not answer" in failed.first.inner_text()
    dialog.get_by_role("button", name="Pause", exact=True).click()
    # The one that is gone stays; all others are paused.
    expect(failed.filter(has_text=made[5])).to_have_count(1)
    expect(failed).to_have_count(1)
    dialog.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("link", name="Paused 19")).to_be_visible()
    outcomes = call("POST", "/cay/v1/sandbox-actions", {"action": "kill", "sandboxIDs": made})["outcomes"]
    assert [o["sandboxID"] for o in outcomes if "error" in o] == [made[5]]
    expect(page.get_by_text("No sandbox is like that")).to_be_visible()


def test_ssh_keys(page):
    visit(page, "/ssh-keys")
    expect(page.get_by_text("No SSH key")).to_be_visible()
    page.get_by_role("button", name="Add key").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Public key").fill("-----BEGIN OPENSSH PRIVATE KEY-----")
    expect(dialog.get_by_role("alert")).to_contain_text("private key")
    expect(dialog.get_by_role("button", name="Add", exact=True)).to_be_disabled()
    dialog.get_by_label("Public key").fill("ssh-ed25519 nonsense")
    page.allow.append("400")
    dialog.get_by_role("button", name="Add", exact=True).click()
    expect(dialog.get_by_role("alert")).to_contain_text("key")
    dialog.get_by_label("Public key").fill("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGEu0bvUx5n9T0xZQ0n3cM5S0d1H3u3TtqgQpQ8l1Gqx <b>ann</b>@laptop")
    dialog.get_by_role("button", name="Add", exact=True).click()
    row = page.get_by_role("row").filter(has_text="<b>ann</b>@laptop")
    expect(row).to_contain_text("SHA256:")
    shot(page, "ssh-keys")
    assert page.locator("td b").count() == 0
    row.get_by_role("button").click()
    page.get_by_role("menuitem", name="Remove").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove", exact=True).click()
    expect(page.get_by_text("No SSH key")).to_be_visible()


def test_networks(page):
    boxes = [call("POST", "/sandboxes", {"templateID": "base", "timeout": 600})["sandboxID"] for _ in range(2)]
    visit(page, "/networks")
    expect(page.get_by_text("No private network")).to_be_visible()
    for box, name in zip(boxes, ("web", "db")):
        page.get_by_role("button", name="Add a sandbox").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Sandbox", exact=True).select_option(box)
        dialog.get_by_label("Network", exact=True).fill("shop")
        dialog.get_by_label("Its name there").fill(name)
        dialog.get_by_role("button", name="Add", exact=True).click()
        expect(page.get_by_role("row").filter(has_text=box)).to_contain_text(f"{name}.cay.internal")
    shot(page, "networks")
    assert {m["name"] for m in call("GET", "/cay/v1/networks")} == {"web", "db"}
    page.get_by_role("button", name="Actions on " + boxes[0]).click()
    page.get_by_role("menuitem", name="Take out").click()
    page.get_by_role("dialog").get_by_role("button", name="Take out", exact=True).click()
    expect(page.get_by_role("row").filter(has_text=boxes[0])).to_have_count(0)
    for box in boxes:
        call("DELETE", "/sandboxes/" + box)
    expect(page.get_by_text("No private network")).to_be_visible()


# Terminals and files, of a real agent on this machine.

HOME = pathlib.Path(os.environ["CONSOLE_HOME"])


def test_a_terminal_that_a_reload_comes_back_to(page):
    box = running()[0]["sandboxID"]
    visit(page, f"/sandboxes/{box}/terminal")
    expect(screen(page)).to_contain_text("$" if os.getuid() else "#")
    page.keyboard.type("echo $((6*7))-ünïcødé; export MARK=kept; stty size\n")
    expect(screen(page)).to_contain_text("42-ünïcødé")
    page.keyboard.type("printf '\\033]0;stolen title\\007\\033]52;c;c3RvbGVu\\007done\\n'\n")
    expect(screen(page)).to_contain_text("done")
    assert "stolen" not in page.title()
    shot(page, "sandbox-terminal")
    page.reload()
    expect(screen(page)).to_contain_text("42-ünïcødé")
    page.locator(".one:not([hidden]) .xterm-helper-textarea").focus()
    page.keyboard.type("echo again-$MARK\n")
    expect(screen(page)).to_contain_text("again-kept")
    # A second viewer sees the same screen, and later output too.
    other = page.context.new_page()
    other.goto(page.url)
    expect(other.get_by_role("tab")).to_have_count(1)
    expect(screen(other)).to_contain_text("42-ünïcødé")
    expect(screen(other)).to_contain_text("again-kept")
    page.keyboard.type("echo for-two\n")
    expect(screen(other)).to_contain_text("for-two")
    # Output without a viewer is there for the next one.
    page.keyboard.type("(until [ -e go ]; do sleep 0.05; done; printf '\\033[c\\033[6nun''seen\\n'; touch gone) &\n")
    expect(screen(other)).to_contain_text("[1]")
    other.close()
    at = page.url
    page.goto(HERE + "/sessions")
    expect(page.locator("h1").first).to_be_visible()
    (HOME / "go").touch()
    while not (HOME / "gone").exists():
        page.wait_for_timeout(20)
    page.goto(at)
    expect(screen(page)).to_contain_text("unseen")
    # The questions in it are not answered again, as if typed.
    page.locator(".one:not([hidden]) .xterm-helper-textarea").focus()
    page.keyboard.type("echo asked-not\n")
    expect(screen(page)).to_contain_text("asked-not")
    assert "^[[" not in screen(page).inner_text() and "1;2c" not in screen(page).inner_text()
    # 100 KB pasted arrive whole and in order.
    page.keyboard.type("stty -echo; cat > pasted; stty echo; sha256sum pasted\n")
    page.wait_for_timeout(300)
    text = "".join(f"line {i:05} of the paste\n" for i in range(4500))
    page.locator(".one:not([hidden]) .xterm-helper-textarea").evaluate(
        "(area, text) => { const data = new DataTransfer(); data.setData('text/plain', text); area.dispatchEvent(new ClipboardEvent('paste', {clipboardData: data, bubbles: true})) }", text)
    page.keyboard.press("Control+d")
    expect(screen(page)).to_contain_text(hashlib.sha256(text.encode()).hexdigest()[:40], timeout=60_000)
    page.keyboard.type("exit 3\n")
    expect(page.get_by_text("The shell is over, with status 3")).to_be_visible()
    page.get_by_role("button", name="New shell").click()
    expect(screen(page)).to_contain_text("$" if os.getuid() else "#")
    page.get_by_role("button", name="End shell").click()


def test_files_from_upload_to_a_conflict(page):
    box = running()[0]["sandboxID"]
    hostile = HOSTILE.replace("/", "_")
    (HOME / hostile).write_text("x")
    (HOME / "link").symlink_to("nowhere")
    (HOME / "many").mkdir()
    for i in range(10_000):
        (HOME / "many" / f"file-{i:05}").touch()
    visit(page, f"/sandboxes/{box}/files?dir={HOME}")
    expect(page.get_by_role("link", name=re.compile("onerror=alert"))).to_be_visible()
    assert page.locator("img[src='x']").count() == 0
    page.locator("input[type=file]").first.set_input_files([
        {"name": f"up-{i}.txt", "mimeType": "text/plain", "buffer": f"number {i}\n".encode()} for i in range(3)])
    expect(page.get_by_text("3 files are there")).to_be_visible()
    assert (HOME / "up-2.txt").read_text() == "number 2\n"
    shot(page, "sandbox-files")
    page.get_by_role("link", name="up-1.txt").click()
    text = page.get_by_role("textbox", name="Text of the file")
    expect(text).to_contain_text("number 1")
    shot(page, "sandbox-editor")
    text.focus()
    page.keyboard.press("Control+End")
    page.keyboard.type("edited")
    page.keyboard.press("Control+s")
    expect(page.get_by_text("Saved.")).to_be_visible()
    assert (HOME / "up-1.txt").read_text() == "number 1\nedited"
    # Changed underneath: the person is asked, and nothing is lost meanwhile.
    (HOME / "up-1.txt").write_text("of another")
    text.focus()
    page.keyboard.type(" more")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text("has changed meanwhile")
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    assert (HOME / "up-1.txt").read_text() == "of another"
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Overwrite it").click()
    expect(page.get_by_text("changed", exact=True)).to_have_count(0)
    assert (HOME / "up-1.txt").read_text() == "number 1\nedited more"
    page.get_by_role("button", name="Back").click()
    page.get_by_role("button", name="Actions on up-0.txt").click()
    page.get_by_role("menuitem", name="Rename").click()
    page.get_by_label("New path").fill(str(HOME / "renamed.txt"))
    page.get_by_role("button", name="Move", exact=True).click()
    expect(page.get_by_role("link", name="renamed.txt")).to_be_visible()
    page.get_by_role("button", name="Actions on many").click()
    with page.expect_download() as download:
        page.get_by_role("menuitem", name="Download as tar").click()
    with tarfile.open(download.value.path()) as tar:
        assert len([m for m in tar.getmembers() if m.isfile()]) == 10_000
    begun = time.monotonic()
    page.get_by_role("link", name="many").click()
    expect(page.get_by_text("10,000 entries")).to_be_visible()
    print(f"a directory of 10,000 entries is shown after {time.monotonic() - begun:.2f} s")
    assert page.get_by_role("row").count() < 90, "rows out of sight are drawn"
    page.locator(".view").evaluate("(view) => view.scrollTo(0, view.scrollHeight)")
    expect(page.get_by_role("link", name="file-09999")).to_be_visible()
    shot(page, "sandbox-files-many")
    page.get_by_label("Filter by name").fill("file-09999")
    expect(page.get_by_role("row")).to_have_count(3)
    page.get_by_role("button", name="Actions on file-09999").click()
    page.get_by_role("menuitem", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("No name is like that")).to_be_visible()
    assert not (HOME / "many" / "file-09999").exists()


def test_a_file_of_a_gigabyte(page, tmp_path):
    """Up and down, with how far it is; the page answers meanwhile, and it is cancelled."""
    box = running()[0]["sandboxID"]
    size = int(os.environ.get("CAY_CONSOLE_BIG", "1024")) << 20
    big = tmp_path / "big.bin"
    with open(big, "wb") as f:
        f.truncate(size)
    visit(page, f"/sandboxes/{box}/files?dir={HOME}")
    devtools = page.context.new_cdp_session(page)
    devtools.send("Network.enable")
    devtools.send("Network.emulateNetworkConditions", {"offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": 8 << 20})
    choose = page.locator("input[type=file]").first
    choose.set_input_files(big)
    far = page.get_by_role("progressbar")
    expect(page.get_by_text("Uploading 1 of 1: big.bin")).to_be_visible()
    expect(far).to_have_attribute("value", re.compile("^[1-9]"))
    shot(page, "files-uploading")
    assert findings(page) == []
    # The page goes on meanwhile.
    page.get_by_label("Filter by name").fill("nothing like it")
    expect(page.get_by_text("No name is like that")).to_be_visible()
    page.get_by_label("Filter by name").fill("")
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("Cancelled: 0 files of 1 arrived")).to_be_visible()
    expect(far).to_have_count(0)
    assert not (HOME / "big.bin").exists() or (HOME / "big.bin").stat().st_size < size
    devtools.send("Network.emulateNetworkConditions", {"offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1})
    page.evaluate("""() => { window.worst = 0; let last = performance.now()
        const step = (now) => { window.worst = Math.max(window.worst, now - last); last = now; requestAnimationFrame(step) }; requestAnimationFrame(step) }""")
    begun = time.monotonic()
    choose.set_input_files(big)
    expect(page.get_by_text("1 file is there")).to_be_visible(timeout=120_000)
    up = time.monotonic() - begun
    assert (HOME / "big.bin").stat().st_size == size
    page.get_by_role("link", name="big.bin").click()
    expect(page.get_by_text("too long for an editor")).to_be_visible()
    page.get_by_role("button", name="Back").click()
    begun = time.monotonic()
    page.get_by_role("button", name="Actions on big.bin").click()
    with page.expect_download(timeout=120_000) as download:
        page.get_by_role("menuitem", name="Download", exact=True).click()
    assert os.stat(download.value.path()).st_size == size
    down = time.monotonic() - begun
    print(f"{size >> 20} MiB: {up:.1f} s up, {down:.1f} s down; the longest time between two frames {page.evaluate('window.worst'):.0f} ms")
    (HOME / "big.bin").unlink()


# Many.


# Text of guests and of other people.


def test_hostile_text_is_text(page):
    asked = []
    page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    box = next(box for box in running() if "note" in (box.get("metadata") or {}))
    for path in ("/sandboxes", "/", "/keys", "/audit", f"/sandboxes/{box['sandboxID']}/settings"):
        visit(page, path)
        page.wait_for_timeout(300)
        assert page.locator("img[src='x']").count() == 0
    visit(page, "/sandboxes/" + box["sandboxID"])
    text = page.get_by_text("onerror=alert(1)").first
    expect(text).to_be_visible()
    assert "⟨202E⟩" in text.inner_text() and "⟨001B⟩" in text.inner_text() and "\u202e" not in page.content()
    assert asked == []
    shot(page, "sandbox-hostile")


# Lines as they are said, and as a page shows them.
LINES = {
    "markup": ("<img src=x onerror=alert(1)><script>alert(2)</script><style>*{display:none}</style>&lt;b&gt;{{7*7}}${7*7}",) * 2,
    "control": ("bell\x07 back\x08\x08 return\rover nul\0 delete\x7f c1\x9b31m", "bell⟨0007⟩ back⟨0008⟩⟨0008⟩ return⟨000D⟩over nul⟨0000⟩ delete⟨007F⟩ c1⟨009B⟩31m"),
    "bidi": ("\u202egnp.exe\u2066 isolate\u2069\u200f zero\u200bwidth filler\u3164 tag\U000e0041",
             "⟨202E⟩gnp.exe⟨2066⟩ isolate⟨2069⟩⟨200F⟩ zero⟨200B⟩width filler⟨3164⟩ tag⟨E0041⟩"),
    "ansi": ("\x1b[1;31mred\x1b[0m \x1b]0;a title\x07\x1b]8;;http://elsewhere\x1b\\link\x1b]8;;\x1b\\ \x1b[2J\x1b[H\x1b]52;c;c3RvbGVu\x07done \x1b[", "red link done ⟨001B⟩["),
    "long": ("x" * (1 << 20) + "its end", "x" * 1000),
    "unbroken": ("\u202e" * (1 << 18) + "\U0001f600" * (1 << 18), "⟨202E⟩" * 100),
}


@pytest.mark.parametrize("kind", LINES)
def test_hostile_lines_in_logs(page, kind):
    """Lines that no guest gets past the server: those of a log that another program wrote."""
    said, shown = LINES[kind]
    asked = []
    page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    box = call("POST", "/sandboxes", {"templateID": "base", "timeout": 600})["sandboxID"]
    log = pathlib.Path(os.environ["CONSOLE_DATA"]) / "logs" / f"{box}.log"
    with open(log, "a") as f:
        for message in (f"before {kind}", said, f"after {kind}"):
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
            f.write(json.dumps({"at": now, "level": "info", "logger": "process", "message": message}) + "\n")
    for path in (f"/sandboxes/{box}/logs", "/logs?span=15m"):
        for width in (1280, 360):
            page.set_viewport_size({"width": width, "height": 740})
            visit(page, path)
            rows = page.get_by_role("log").locator(".one")
            before, after = rows.filter(has_text=f"before {kind}"), rows.filter(has_text=f"after {kind}")
            expect(before).to_be_visible()
            expect(after).to_be_visible()
            one = rows.filter(has=page.locator("bdi", has_text=shown))
            expect(one).to_have_count(1)
            assert len(one.inner_text()) < 5000
            # It stays in its row, between those of before and after, and within the page.
            boxes = sorted((row.bounding_box() for row in (before, one, after)), key=lambda b: b["y"])
            assert all(a["y"] + a["height"] <= b["y"] + 1 for a, b in zip(boxes, boxes[1:])), boxes
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.get_by_role("log").locator("img, script, style, a[href^='http']").count() == 0
            assert not re.search("[\x00-\x08\x0e-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\u3164]", page.get_by_role("log").text_content())
            assert "title" not in page.title() and asked == []
            shot(page, f"logs-{kind}-{'of-all' if 'span' in path else 'one'}-{width}")
    # A search finds it, and marks what it looked for.
    if kind == "bidi":
        visit(page, "/logs?q=gnp.exe")
        expect(page.get_by_role("log").locator("mark")).to_have_text("gnp.exe")
    call("DELETE", "/sandboxes/" + box)


VITE = ROOT / "console" / "node_modules" / "vite" / "bin" / "vite.js"


@pytest.fixture
def vite(tmp_path):
    """A development server at the port 5173 of every sandbox; its directory."""
    (tmp_path / "index.html").write_text("<h1 id=here></h1><script type=module src=/main.js></script>")
    main = tmp_path / "main.js"
    main.write_text("document.querySelector('#here').textContent = 'first'\nimport.meta.hot.accept()\n")
    server = subprocess.Popen(["node", VITE, tmp_path, "--host", "127.0.0.1", "--port", os.environ["CONSOLE_VITE"], "--strictPort"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert any("ready in" in line for line in server.stdout)
    yield main
    server.terminate()
    server.wait()


def test_a_private_port_with_websockets(page, new_context, vite):
    made = call("POST", "/sandboxes", {"templateID": "base", "timeout": 600, "secure": True, "network": {"allowPublicTraffic": False}})["sandboxID"]
    page.allow.append("401")  # this machine's agent knows no tokens, so no port is listed
    visit(page, f"/sandboxes/{made}/ports")
    expect(page.get_by_text("Its ports want a token")).to_be_visible()
    page.get_by_label("Another port").fill("5173")
    with page.context.expect_page() as opened:
        page.get_by_role("button", name="Open", exact=True).click()
    app = opened.value
    here = app.locator("#here")
    expect(here).to_have_text("first")
    # The token is not kept in the address, and the page knows nothing of the console.
    assert app.url == f"http://5173-{made}.localhost:{PORT}/" and app.evaluate("window.opener") is None
    # A change of the source comes by the websocket, without a load.
    app.evaluate("window.mark = 'kept'")
    vite.write_text("document.querySelector('#here').textContent = 'second'\nimport.meta.hot.accept()\n")
    expect(here).to_have_text("second")
    assert app.evaluate("window.mark") == "kept"
    # A browser without the token gets neither.
    stranger = new_context().new_page()
    answer = stranger.goto(f"http://5173-{made}.localhost:{PORT}/")
    assert answer.status == 403 and "second" not in stranger.content()
    assert stranger.evaluate(f"""() => new Promise((done) => {{ const s = new WebSocket('ws://5173-{made}.localhost:{PORT}/', 'vite-hmr')
        s.onopen = () => done('open'); s.onerror = () => done('refused') }})""") == "refused"
    call("DELETE", "/sandboxes/" + made)


def test_the_console_in_a_frame_of_a_stranger(new_context):
    """A page of the server's other names frames, opens, fetches and posts to the
    console: nothing happens."""
    context = new_context()
    page = context.new_page()
    other = f"http://8000-ix.localhost:{PORT}"
    page.route(other + "/*", lambda route: route.fulfill(content_type="text/html", body=f"<h1>guest</h1><iframe src='{HERE}/'></iframe>"))
    page.goto(other + "/")
    page.wait_for_timeout(500)
    assert "Log in" not in page.frames[1].content()
    got = page.evaluate("""async (console) => {
        const out = {}
        const ask = async (name, path, init) => {
          try { const r = await fetch(console + path, init); out[name] = r.type + ' ' + r.status } catch (e) { out[name] = 'refused' }
        }
        await ask('read', '/api/cay/v1/caller', {headers: {Authorization: 'Bearer x'}})
        await ask('page', '/')
        await ask('opaque', '/api/cay/v1/caller', {mode: 'no-cors'})
        await ask('login', '/api/cay/v1/console-sessions', {method: 'POST', mode: 'no-cors', body: '{"key":"x"}'})
        await ask('agent', '/agent/files?path=/etc/passwd', {headers: {'E2b-Sandbox-Id': 'ix', 'E2b-Sandbox-Port': '49983'}})
        const w = open(console + '/')
        await new Promise((r) => setTimeout(r, 800))
        try { out.opened = String(w.document) } catch (e) { out.opened = 'refused' }
        try { await navigator.serviceWorker.register(console + '/assets/x.js'); out.worker = 'registered' } catch (e) { out.worker = 'refused' }
        return out
    }""", HERE)
    assert got["read"] == got["page"] == got["agent"] == got["worker"] == "refused", got
    assert got["opaque"].startswith("opaque") or got["opaque"] == "refused", got
    assert got["login"].startswith("opaque") or got["login"] == "refused", got
    assert got["opened"] in ("refused", "null"), got


def test_a_link_that_a_stranger_sends(new_context):
    link = call("POST", "/cay/v1/console-links")["url"]
    page = watched(new_context())
    other = f"http://8000-ix.localhost:{PORT}"
    page.route(other + "/*", lambda route: route.fulfill(content_type="text/html", body=f"<a href='{link}'>a gift</a>"))
    page.goto(other + "/")
    page.get_by_role("link").click()
    expect(page.get_by_text("link of another page")).to_be_visible()
    page.get_by_role("button", name="No").click()
    expect(page.get_by_role("heading", name="With an API key")).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0 and "#" not in page.url
    assert [error for error in page.errors if "favicon" not in error] == []


# The server goes and comes back.


def test_a_server_that_restarts(page):
    page.allow.append("ERR_|Failed to load|502|503")
    visit(page, "/sandboxes")
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    expect(page.get_by_text(re.compile(r"^\d+ sandbox(es)?$"))).to_be_visible()  # all are loaded
    count = page.get_by_role("row").count()
    # Other pages are open too: a terminal, and a dialog that is about to do something.
    box = running()[0]["sandboxID"]
    shell = watched(page.context, allow=page.allow)
    visit(shell, f"/sandboxes/{box}/terminal")
    expect(screen(shell)).to_contain_text("$" if os.getuid() else "#")
    shell.keyboard.type("export BEFORE=kept\n")
    form = watched(page.context, allow=page.allow)
    visit(form, "/secrets")
    form.get_by_role("button", name="New secret").click()
    form.get_by_label("Name", exact=True).fill("RESTARTED")
    form.get_by_label("Value", exact=True).fill("once")
    control("/stop")
    expect(page.get_by_text("The server does not answer").first).to_be_visible()
    shot(page, "server-away")
    expect(page.get_by_role("row")).to_have_count(count)
    expect(shell.get_by_text("The connection broke. Trying again")).to_be_visible()
    form.get_by_role("dialog").get_by_role("button", name="Keep").click()
    expect(form.get_by_role("dialog").get_by_role("alert")).to_contain_text("does not answer")
    control("/start")
    expect(page.get_by_text("Live", exact=True)).to_be_visible(timeout=60_000)
    # The typed text is there and is done once; the shell is the one of before.
    form.get_by_role("dialog").get_by_role("button", name="Keep").click()
    expect(form.get_by_role("row").filter(has_text="RESTARTED")).to_have_count(1)
    shell.locator(".one:not([hidden]) .xterm-helper-textarea").focus()
    expect(shell.get_by_text("The connection broke")).to_have_count(0)
    shell.keyboard.type("echo $BEFORE-still\n")
    expect(screen(shell)).to_contain_text("kept-still")
    assert shell.errors == form.errors == []
    shell.close()
    form.close()
    made = call("POST", "/sandboxes", {"templateID": "base", "timeout": 600})["sandboxID"]
    expect(page.get_by_role("row").filter(has_text=made)).to_have_count(1)
    call("DELETE", "/sandboxes/" + made)


# Pages.

PAGES = {
    "overview": "/", "approvals": "/approvals", "approvals-all": "/approvals?state=all", "sandboxes": "/sandboxes", "new-sandbox": "/sandboxes/new", "ended": "/sandboxes?state=ended",
    "templates": "/templates", "new-template": "/templates/new", "snapshots": "/snapshots", "volumes": "/volumes", "secrets": "/secrets", "models": "/models", "networks": "/networks", "logs": "/logs",
    "keys": "/keys", "ssh-keys": "/ssh-keys", "members": "/members", "usage": "/usage", "webhooks": "/webhooks", "triggers": "/triggers", "runs": "/runs", "recording": "/recording", "audit": "/audit", "machine": "/machine", "sessions": "/sessions", "no-such-page": "/nothing",
}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pages_are_accessible(page, theme):
    page.emulate_media(color_scheme=theme)
    box = running()[0]["sandboxID"]
    paths = {**PAGES, **{"box-" + (part or "about"): f"/sandboxes/{box}/{part}".rstrip("/") for part in ("", "checkpoints", "events", "logs", "metrics", "network", "settings")}}
    found = {}
    for name, path in paths.items():
        page.goto(HERE + path)
        page.wait_for_selector("h1, h2")
        page.wait_for_timeout(250)
        shot(page, f"{name}-{theme}")
        if wrong := findings(page):
            found[name] = wrong
        if theme == "light":
            page.set_viewport_size({"width": 360, "height": 740})
            page.wait_for_timeout(100)
            shot(page, f"{name}-360")
            wide = page.evaluate("document.documentElement.scrollWidth")
            if wide > 360:
                found[name + " at 360"] = wide
            for part in page.locator(".tabs [aria-current]").all():
                expect(part).to_be_in_viewport(ratio=0.9)
            page.set_viewport_size({"width": 1280, "height": 800})
    assert found == {}


def test_keyboard_alone(page):
    visit(page, "/")
    page.keyboard.press("Control+k")
    expect(page.get_by_role("combobox", name="Find or do")).to_be_focused()
    box = running()[0]["sandboxID"]
    page.keyboard.type(box)
    expect(page.get_by_role("option").first).to_contain_text(box)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=box)).to_be_visible()
    page.get_by_role("button", name="Kill", exact=True).focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("button", name="Kill", exact=True)).to_be_visible()
