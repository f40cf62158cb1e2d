"""Flows of approvals through the console, in Chromium, on a server over a machine in
memory.
"""

import concurrent.futures
import contextlib
import json
import os
import re
import struct
import threading
import urllib.error
import urllib.request

import pytest
from playwright.sync_api import expect
from steps import API, HERE, call, findings, log_in, lose, operator, screen, shot, visit, watched

MARKUP = "Refund <img src=x onerror=alert(1)> of 4,000?"


def ask(title=MARKUP, **options):
    """A question of the key that made the team's sandboxes."""
    return call("POST", "/cay/v1/approvals", {"title": title, "body": "amount: 4000\n<script>alert(2)</script>", "risk": "high", **options})["id"]


def state(question):
    return call("GET", "/cay/v1/approvals/" + question)


def key(name, *scopes):
    """A key of no party that asks: the operator made it."""
    return call("POST", "/cay/v1/api-keys", {"name": name, "scopes": list(scopes)}, **operator())


@pytest.fixture
def box():
    made = call("POST", "/sandboxes", {"templateID": "base", "timeout": 900})["sandboxID"]
    yield made
    call("DELETE", "/sandboxes/" + made)


@pytest.fixture
def ben(new_context):
    """A page of a second party that may decide."""
    made = key("ben", "approvals:decide", "sandboxes:read")
    page = watched(new_context(viewport={"width": 1280, "height": 800}), allow=["409"])
    log_in(page, made["key"])
    yield page
    call("DELETE", "/cay/v1/api-keys/" + made["id"], **operator())
    assert page.errors == []


def card(page, title=MARKUP):
    return page.get_by_role("list", name="Questions that wait").get_by_role("listitem").filter(has_text=title)


def count(page):
    return page.get_by_role("navigation", name="Pages").get_by_role("link", name=re.compile("^Approvals"))


def test_a_question_is_decided_with_a_reason(page, box):
    visit(page, "/approvals")
    expect(page.get_by_text("Nothing waits for a decision")).to_be_visible()
    shot(page, "approvals-none")
    assert findings(page) == []
    # It comes while the page is open, and is counted on every page.
    first = ask(sandboxID=box)
    expect(card(page)).to_contain_text("high risk")
    expect(card(page)).to_contain_text("<script>alert(2)</script>")
    expect(card(page).get_by_role("link", name=box)).to_be_visible()
    expect(count(page)).to_contain_text("1")
    assert page.locator("main img[src='x']").count() == 0
    second = ask("Delete the index " + "very-long-name-" * 11)
    expect(count(page)).to_contain_text("2")
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        page.wait_for_timeout(100)
        shot(page, "approvals-" + theme)
        assert findings(page) == []
    page.set_viewport_size({"width": 360, "height": 740})
    page.wait_for_timeout(100)
    shot(page, "approvals-360")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    expect(page.locator("header").get_by_role("link", name="2 wait for a decision")).to_be_visible()
    page.set_viewport_size({"width": 1280, "height": 800})
    visit(page, "/")
    expect(page.get_by_role("link", name=re.compile("^Refund"))).to_be_visible()
    visit(page, "/sandboxes/" + box)
    page.get_by_role("link", name="1 question of it waits for a decision").click()
    expect(page.get_by_role("list", name="Questions that wait").get_by_role("listitem")).to_have_count(1)
    # A yes with a reason, which the asking party reads.
    card(page).get_by_role("button", name="Approve").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("the <b>test</b> account only")
    expect(dialog.get_by_role("button", name=re.compile("^Copy the command"))).to_contain_text("cay approvals approve " + first)
    shot(page, "approvals-decide")
    assert findings(page) == []
    dialog.get_by_role("button", name="Approve", exact=True).click()
    expect(page.get_by_text("Nothing waits for a decision")).to_be_visible()
    assert (state(first)["state"], state(first)["note"]) == ("approved", "the <b>test</b> account only")
    page.get_by_role("button", name="Of all").click()
    card(page, "Delete the index").get_by_role("button", name="Deny").click()
    dialog.get_by_role("button", name="Deny", exact=True).click()
    expect(count(page)).to_have_text("Approvals")
    assert state(second)["state"] == "denied"
    # Each decision, its person and the reason.
    page.get_by_role("button", name="All", exact=True).click()
    row = page.get_by_role("row").filter(has_text="Refund")
    expect(row).to_contain_text("approved")
    row.get_by_role("button", name="Look").click()
    expect(page.get_by_text("the <b>test</b> account only")).to_be_visible()
    shot(page, "approvals-over")
    assert findings(page) == []
    page.get_by_role("button", name="Denied").click()
    expect(row).to_have_count(0)
    expect(page.get_by_role("row").filter(has_text="Delete the index").first).to_contain_text("denied")
    assert "state=denied" in page.url
    page.reload()
    expect(page.get_by_role("row").filter(has_text="Delete the index").first).to_be_visible()


def test_two_people_decide_at_once(page, ben):
    ask()
    visit(page, "/approvals")
    count(ben).click()
    # The second one is told while the first one thinks.
    card(page).get_by_role("button", name="Deny").click()
    card(ben).get_by_role("button", name="Approve").click()
    ben.get_by_role("dialog").get_by_role("button", name="Approve", exact=True).click()
    expect(ben.get_by_text("Approved.")).to_be_visible()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("alert")).to_contain_text("It is approved by ben meanwhile")
    expect(dialog.get_by_role("button", name="Deny", exact=True)).to_be_disabled()
    shot(page, "approvals-meanwhile")
    dialog.get_by_role("button", name="Cancel").click()
    expect(card(page)).to_have_count(0)
    # Both answers are on their way: the first one counts, and the other is told of it.
    question = ask()
    card(page).get_by_role("button", name="Deny").click()
    decided = threading.Event()

    def between(route):
        call("POST", f"/cay/v1/approvals/{question}/decide", {"approve": True, "note": "first"}, **operator())
        decided.set()
        route.continue_()

    page.route("**/decide", between, times=1)
    page.allow.append("409")
    dialog.get_by_role("button", name="Deny", exact=True).click()
    expect(dialog.get_by_role("alert").filter(has_text="since")).to_contain_text("approved")
    assert decided.is_set() and state(question)["state"] == "approved" and state(question)["note"] == "first"
    expect(dialog.get_by_role("button", name="Deny", exact=True)).to_be_disabled()


def test_a_question_that_expires_while_it_is_looked_at(page):
    visit(page, "/approvals")
    question = ask("Quick?", timeout=10)
    card(page, "Quick?").get_by_role("button", name="Approve").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("alert")).to_contain_text("It is expired meanwhile")
    expect(dialog.get_by_role("button", name="Approve", exact=True)).to_be_disabled()
    dialog.get_by_role("button", name="Cancel").click()
    expect(card(page, "Quick?")).to_have_count(0)
    page.get_by_role("button", name="Expired").click()
    expect(page.get_by_role("row").filter(has_text="Quick?")).to_contain_text("expired")
    assert state(question)["state"] == "expired"


def test_parties_that_may_not_decide(new_context, page):
    question = ask()
    looks = key("only-looks", "viewer")
    other = watched(new_context(viewport={"width": 1280, "height": 800}))
    log_in(other, looks["key"])
    expect(count(other)).to_contain_text("1")
    count(other).click()
    for name in ("Approve", "Deny"):
        button = card(other).get_by_role("button", name=name)
        expect(button).to_be_disabled()
        assert "approvals:decide" in button.get_attribute("title")
    assert findings(other) == []
    # The party that asks, which has the scope.
    asker = watched(new_context(viewport={"width": 1280, "height": 800}), allow=["403"])
    log_in(asker, os.environ["CONSOLE_KEY"])
    count(asker).click()
    card(asker).get_by_role("button", name="Approve").click()
    dialog = asker.get_by_role("dialog")
    dialog.get_by_role("button", name="Approve", exact=True).click()
    expect(dialog.get_by_role("alert")).to_contain_text("the party that asks cannot decide")
    assert state(question)["state"] == "pending"
    # A login that sees no sandboxes has no such page.
    blind = key("blind", "webhooks:read")
    third = watched(new_context(viewport={"width": 1280, "height": 800}), allow=["403"])
    log_in(third, blind["key"])
    expect(count(third)).to_have_count(0)
    third.goto(HERE + "/approvals")
    expect(third.get_by_role("alert")).to_contain_text("sandboxes:read")
    assert other.errors == asker.errors == third.errors == []
    visit(page, "/approvals")
    card(page).get_by_role("button", name="Deny").click()
    page.get_by_role("dialog").get_by_role("button", name="Deny", exact=True).click()
    expect(card(other)).to_have_count(0)
    expect(count(other)).to_have_text("Approvals")
    for one in (looks, blind):
        call("DELETE", "/cay/v1/api-keys/" + one["id"], **operator())


def test_an_answer_that_is_lost_counts_once(page):
    question = ask()
    visit(page, "/approvals")
    card(page).get_by_role("button", name="Approve").click()
    page.allow.append("ERR_FAILED|409")
    lose(page, "/decide")
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Approve", exact=True).click()
    expect(dialog.get_by_role("alert").filter(has_text="approved")).to_be_visible()
    assert state(question)["state"] == "approved"
    events = [e for e in call("GET", "/cay/v1/events?after=0&limit=1000&type=approval.decided")["events"] if e["data"]["approval"] == question]
    assert len(events) == 1, json.dumps(events)
    with pytest.raises(urllib.error.HTTPError):
        call("POST", f"/cay/v1/approvals/{question}/decide", {"approve": True}, **operator())


def agent(box, method, kind, body):
    """A call of the agent of a sandbox, and the bytes of its answer."""
    token = call("POST", f"/cay/v1/sandboxes/{box}/access").get("envdAccessToken", "")
    headers = {"E2b-Sandbox-Id": box, "E2b-Sandbox-Port": "49983", "X-Access-Token": token, "Content-Type": kind, "Connect-Protocol-Version": "1"}
    with urllib.request.urlopen(urllib.request.Request(API + "/process.Process/" + method, headers=headers, data=body), timeout=60) as answer:
        return answer.read()


def start(box, line):
    """Starts a command in a sandbox, and returns what is said of it."""
    body = json.dumps({"process": {"cmd": "/bin/bash", "args": ["-c", line]}}).encode()
    return agent(box, "Start", "application/connect+json", b"\0" + struct.pack(">I", len(body)) + body).decode(errors="replace")


def end_shells(box):
    """Ends the shells of other tests: the agent of this machine is that of all sandboxes."""
    while found := json.loads(agent(box, "List", "application/json", b"{}")).get("processes"):
        for one in found:
            with contextlib.suppress(urllib.error.HTTPError):  # it has ended
                agent(box, "SendSignal", "application/json", json.dumps({"process": {"pid": one["pid"]}, "signal": "SIGNAL_SIGKILL"}).encode())


def asked_about(page, box):
    """The cards of questions about commands of a sandbox."""
    return page.get_by_role("list", name="Questions that wait").get_by_role("listitem").filter(has_text=box)


def test_commands_wait_for_a_yes(page, ben):
    """From the form to a terminal, which another party lets begin, or not."""
    visit(page, "/sandboxes/new")
    patterns = page.get_by_label("Ask before these commands")
    patterns.fill("x" * 300)
    page.allow.append("400")
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.locator(".field").filter(has=patterns).get_by_role("alert")).to_contain_text("askCommands")
    expect(patterns).to_be_focused()
    patterns.fill("*git push*\n\n  rm -rf /srv, /var  \n*<b>&*\n*git push*\n")
    page.get_by_label("When its machine is lost").select_option("resume")
    expect(page.get_by_text("Without a checkpoint it ends")).to_be_visible()
    page.get_by_label("Checkpoint by itself").select_option("15")
    expect(page.get_by_text("Without a checkpoint it ends")).to_have_count(0)
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        shot(page, "new-sandbox-asks-" + theme)
        assert findings(page) == []
    expect(page.get_by_role("button", name=re.compile("^Copy the command"))).to_contain_text(
        "cay sandbox create base --ask-command '*git push*' --ask-command 'rm -rf /srv, /var' --ask-command '*<b>&*' --ask-command '*git push*' --checkpoint-every 15m --on-host-loss resume")
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_role("heading", name=re.compile("^i[0-9a-z]{10}"))).to_be_visible()
    box = page.url.rsplit("/", 1)[1]
    made = call("GET", "/sandboxes/" + box)
    assert made["askCommands"] == ["*git push*", "rm -rf /srv, /var", "*<b>&*", "*git push*"] and made["onHostLoss"] == "resume"
    page.get_by_role("link", name="Settings", exact=True).click()
    fixed = page.get_by_role("region", name="Chosen when it was made")
    for label, value in {"When its machine is lost": "it goes on from its newest checkpoint", "Commands that are asked about": "*<b>&*"}.items():
        expect(fixed.get_by_role("listitem").filter(has=page.get_by_text(label, exact=True))).to_contain_text(value)
    shot(page, "sandbox-settings-asks")
    assert findings(page) == []
    # A terminal waits, with what is typed meanwhile.
    end_shells(box)
    page.get_by_role("link", name="Terminal", exact=True).click()
    expect(page.get_by_text("It begins when a person has said yes")).to_be_visible()
    page.keyboard.type("echo early-$((6*7))\n")
    expect(page.get_by_role("link", name="1 question of it waits for a decision")).to_be_visible()
    shot(page, "terminal-waits")
    assert findings(page) == []
    count(ben).click()
    expect(asked_about(ben, box)).to_contain_text("run a command")
    expect(asked_about(ben, box)).to_contain_text("/bin/bash")
    shot(ben, "approvals-command")
    assert findings(ben) == []
    asked_about(ben, box).get_by_role("button", name="Approve").click()
    ben.get_by_role("dialog").get_by_role("button", name="Approve", exact=True).click()
    expect(screen(page)).to_contain_text("early-42")
    expect(page.get_by_text("It begins when")).to_have_count(0)
    # A second one is denied, with the reason, and again at once.
    page.get_by_role("button", name="Open another shell").click()
    asked_about(ben, box).get_by_role("button", name="Deny").click()
    ben.get_by_label("Reason").fill("not on a <b>Friday</b>")
    ben.get_by_role("dialog").get_by_role("button", name="Deny", exact=True).click()
    foot = page.locator(".one:not([hidden])").get_by_role("status")
    expect(foot).to_contain_text("denied: not on a <b>Friday</b>")
    shot(page, "terminal-denied")
    page.get_by_role("button", name="New shell").click()
    expect(foot).to_contain_text("denied")
    expect(asked_about(ben, box)).to_have_count(0)
    page.allow.append("404")  # it is over: the page asks why instead
    call("DELETE", "/sandboxes/" + box)


def test_two_people_decide_a_command_at_once(ben, new_context, tmp_path):
    """One says yes and another no, in two browsers at one moment: the first counts, the other
    is told of it, and the command begins once or not at all."""
    box = call("POST", "/sandboxes", {"templateID": "base", "timeout": 900, "askCommands": ["*"]})["sandboxID"]
    made = key("eve", "approvals:decide", "sandboxes:read")
    eve = watched(new_context(viewport={"width": 1280, "height": 800}), allow=["409"])
    log_in(eve, made["key"])
    verbs = {ben: "Approve", eve: "Deny"}
    for page in verbs:
        count(page).click()
    with concurrent.futures.ThreadPoolExecutor(1) as beside:
        for turn in range(5):
            ran = tmp_path / str(turn)
            answer = beside.submit(start, box, f"echo ran >> {ran}")
            for page, verb in verbs.items():
                asked_about(page, box).get_by_role("button", name=verb).click()
            at = ben.evaluate("Date.now() + 300")
            for page, verb in verbs.items():
                page.get_by_role("dialog").get_by_role("button", name=verb, exact=True).evaluate("(button, at) => { setTimeout(() => button.click(), at - Date.now()) }", at)
            said = answer.result()
            yes = "denied" not in said
            first, second = (ben, eve) if yes else (eve, ben)
            expect(first.get_by_role("dialog")).to_have_count(0)
            dialog = second.get_by_role("dialog")
            expect(dialog.get_by_role("alert").filter(has_text="approved" if yes else "denied").first).to_be_visible()
            expect(dialog.get_by_role("button", name=verbs[second], exact=True)).to_be_disabled()
            dialog.get_by_role("button", name="Cancel").click()
            assert (ran.read_text() if ran.exists() else "") == ("ran\n" if yes else ""), said
    decided = call("GET", f"/cay/v1/approvals?sandboxID={box}")["approvals"]
    print([x["state"] for x in decided])
    assert len(decided) == 5
    call("DELETE", "/cay/v1/api-keys/" + made["id"], **operator())
    assert eve.errors == []
    call("DELETE", "/sandboxes/" + box)
