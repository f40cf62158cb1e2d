"""Flows of a team through the console: secrets, keys, budgets, webhooks, triggers,
and the desktops of its sandboxes; in Chromium, on a server over a machine in memory
whose sandboxes have a VNC server for tests.
"""

import hashlib
import hmac
import http.server
import json
import os
import re
import struct
import threading
import time
import urllib.error
import urllib.request

import pytest
from playwright.sync_api import expect
from steps import API, HERE, call, findings, log_in, operator, shot, visit, watched

ADMIN = {"X-Admin-Token": os.environ["CONSOLE_ADMIN"]}


def control(what):
    with urllib.request.urlopen(os.environ["CONSOLE_CONTROL"] + what, timeout=60) as answer:
        return json.loads(answer.read())


@pytest.fixture
def box():
    made = call("POST", "/sandboxes", {"templateID": "base", "timeout": 900})["sandboxID"]
    yield made
    call("DELETE", "/sandboxes/" + made)


# A team with nothing.


def test_the_first_sandbox_of_a_team(new_context):
    team = call("POST", "/cay/v1/admin/teams", {"name": "empty"}, **ADMIN)["teamID"]
    key = call("POST", "/cay/v1/api-keys", {"name": "first"}, **ADMIN, **{"X-Team-ID": team})["key"]
    page = watched(new_context(viewport={"width": 1280, "height": 800}))
    log_in(page, key)
    expect(page.get_by_role("heading", name="The first sandbox")).to_be_visible()
    expect(page.get_by_text("pip install e2b-code-interpreter")).to_be_visible()
    shot(page, "overview-empty")
    assert findings(page) == []
    # It is made elsewhere: this page shows it, and the list does, without a reload.
    made = call("POST", "/sandboxes", {"templateID": "base", "timeout": 600}, **{"X-API-Key": key})["sandboxID"]
    expect(page.get_by_role("heading", name="The first sandbox")).to_have_count(0)
    page.get_by_role("link", name="Sandboxes").first.click()
    expect(page.get_by_role("row").filter(has_text=made)).to_contain_text("running")
    call("DELETE", "/sandboxes/" + made, **{"X-API-Key": key})
    expect(page.get_by_role("row").filter(has_text=made)).to_have_count(0)
    assert page.errors == []


# Secrets, volumes, snapshots.


def test_secrets_snapshots_and_volumes(page):
    visit(page, "/secrets")
    page.get_by_role("button", name="New secret").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name", exact=True).fill("STRIPE_KEY")
    dialog.get_by_label("Value", exact=True).fill("sk_never_shown")
    dialog.get_by_role("button", name="Keep").click()
    expect(page.get_by_role("row").filter(has_text="STRIPE_KEY")).to_be_visible()
    page.reload()
    expect(page.get_by_role("row").filter(has_text="STRIPE_KEY")).to_be_visible()
    assert "sk_never_shown" not in page.content() and "sk_never_shown" not in page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")
    # Volumes, mounted in two sandboxes at once.
    visit(page, "/volumes")
    page.get_by_role("button", name="New volume").click()
    dialog.get_by_label("Name", exact=True).fill("shared")
    dialog.get_by_label("Holds at most, GiB").fill("0.1")
    dialog.get_by_role("button", name="Make").click()
    expect(page.get_by_role("link", name="shared")).to_be_visible()
    boxes = []
    for _ in range(2):
        visit(page, "/sandboxes/new")
        page.get_by_role("button", name="Mount a volume").click()
        page.get_by_label("Path of volume 1").fill("/mnt/shared")
        page.get_by_text("A secret in requests").click()
        page.get_by_label("Host").fill("api.example.com")
        page.get_by_label("Value", exact=True).fill("Bearer ${e2b.secrets.STRIPE_KEY}")
        page.get_by_role("button", name="Create", exact=True).click()
        expect(page.get_by_role("heading", name=re.compile("^i[0-9a-z]{10}"))).to_be_visible()
        boxes.append(page.url.rsplit("/", 1)[1])
    assert [m["name"] for m in call("GET", "/sandboxes/" + boxes[0])["volumeMounts"]] == ["shared"]
    page.get_by_role("link", name="Network", exact=True).click()
    expect(page.get_by_text("Headers for")).to_be_visible()
    expect(page.get_by_text("api.example.com").first).to_be_visible()
    assert "sk_never_shown" not in page.content()
    visit(page, "/volumes/shared")
    for made in boxes:
        expect(page.get_by_role("link", name=made)).to_be_visible()
    page.get_by_role("button", name="Snapshot").first.click()
    dialog.get_by_label("Name", exact=True).fill("before")
    dialog.get_by_role("button", name="Take").click()
    expect(page.get_by_role("row").filter(has_text="before")).to_be_visible()
    shot(page, "volume")
    assert findings(page) == []
    # A snapshot of a sandbox, and a sandbox of that.
    visit(page, "/sandboxes/" + boxes[0])
    page.get_by_role("button", name="More actions").click()
    page.get_by_role("menuitem", name="Save as snapshot").click()
    dialog.get_by_label("Name", exact=True).fill("kept-state")
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Saved. Sandboxes can be made of it.")).to_be_visible()
    visit(page, "/snapshots")
    page.get_by_role("row").filter(has_text="kept-state").get_by_role("button", name="New sandbox").click()
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_role("heading", name=re.compile("^i[0-9a-z]{10}"))).to_be_visible()
    for made in [*boxes, page.url.rsplit("/", 1)[1]]:
        call("DELETE", "/sandboxes/" + made)


# Keys and budgets.


def test_keys_with_bounds(page, new_context):
    visit(page, "/keys")
    page.get_by_role("button", name="New key").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name", exact=True).fill("only-looks")
    dialog.get_by_label("It may do").select_option("own")
    expect(dialog.get_by_role("button", name="Make")).to_be_disabled()
    dialog.get_by_label("sandboxes:read").check()
    dialog.get_by_label("templates:read").check()
    dialog.get_by_label("It ends").select_option("1")
    dialog.get_by_role("button", name="Make").click()
    key = dialog.get_by_label("The key").input_value()
    assert key.startswith("e2b_")
    dialog.get_by_role("button", name="Close").click()
    row = page.get_by_role("row").filter(has_text="only-looks")
    expect(row).to_contain_text("never")
    expect(row).to_contain_text("sandboxes:read, templates:read")
    assert key not in page.content()
    other = watched(new_context(viewport={"width": 1280, "height": 800}))
    log_in(other, key)
    for name in ("API keys", "Audit log", "Secrets", "Volumes", "Usage"):
        expect(other.get_by_role("link", name=name, exact=True)).to_have_count(0)
    other.get_by_role("link", name="Sandboxes").first.click()
    expect(other.get_by_role("button", name="New sandbox", exact=True)).to_be_disabled()
    visit(other, "/triggers")
    expect(other.get_by_role("button", name="New", exact=True)).to_be_disabled()
    # Its first use is told within a minute: the row says so by then.
    row.get_by_role("button").click()
    page.get_by_role("menuitem", name="Remove").click()
    dialog.get_by_role("button", name="Remove", exact=True).click()
    expect(row).to_have_count(0)
    expect(other.get_by_text("session is over")).to_be_visible()


def test_a_budget_from_warning_to_raise(page):
    visit(page, "/usage")
    assert call("GET", "/cay/v1/budgets") == []
    page.get_by_role("button", name="New budget").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name", exact=True).fill("creates of today")
    dialog.get_by_label("Of", exact=True).select_option("creates")
    dialog.get_by_label("Each").select_option("day")
    dialog.locator("#l").fill("1000")
    dialog.get_by_label("When it is used up").select_option("refuse")
    dialog.get_by_role("button", name="Make").click()
    row = page.get_by_role("row").filter(has_text="creates of today")
    expect(row).to_contain_text("of 1000")
    budget = call("GET", "/cay/v1/budgets")[0]["id"]
    try:
        made = []
        spent = int(call("GET", "/cay/v1/budgets")[0]["used"])  # what the day has used already counts
        call("PATCH", "/cay/v1/budgets/" + budget, {"limit": str(spent + 2)})
        while len(made) < 2:
            made.append(call("POST", "/sandboxes", {"templateID": "base", "timeout": 600})["sandboxID"])
        visit(page, "/sandboxes/new")
        page.get_by_label("Template or snapshot").fill("base")
        page.allow.append("429|402|403|409")
        page.get_by_role("button", name="Create", exact=True).click()
        expect(page.get_by_role("alert").first).to_contain_text("budget")
        shot(page, "budget-used-up")
        while not call("GET", "/cay/v1/budgets")[0]["exhausted"]:  # what is used is told a moment later
            page.wait_for_timeout(200)
        visit(page, "/")
        expect(page.get_by_text("creates are refused")).to_be_visible()
        visit(page, "/usage")
        expect(row).to_contain_text("100 %")
        row.get_by_role("button").click()
        page.get_by_role("menuitem", name="Change").click()
        dialog.locator("#l").fill(str(spent + 100))
        dialog.get_by_role("button", name="Change", exact=True).click()
        expect(row).not_to_contain_text("100 %")
        made.append(call("POST", "/sandboxes", {"templateID": "base", "timeout": 600})["sandboxID"])
        for one in made:
            call("DELETE", "/sandboxes/" + one)
    finally:
        call("DELETE", "/cay/v1/budgets/" + budget)


def test_a_budget_that_pauses_and_is_raised(page):
    """Half, most and all of it used; what runs is paused, and goes on after it is raised."""
    key = call("POST", "/cay/v1/api-keys", {"name": "bounded", "scopes": ["developer"]}, **operator())
    budget = call("POST", "/cay/v1/budgets", {"name": "ten <b>creates</b>", "meter": "creates", "limit": "10", "period": "day", "action": "pause", "keyID": key["id"]}, **operator())["id"]
    made = []

    def make(n):
        while len(made) < n:
            made.append(call("POST", "/sandboxes", {"templateID": "base", "timeout": 600}, **{"X-API-Key": key["key"]})["sandboxID"])

    try:
        visit(page, "/usage")
        row = page.get_by_role("row").filter(has_text="ten <b>creates</b>")
        tag = row.locator(".tag", has_text="%")
        expect(tag).to_have_text("0 %")
        expect(row).to_contain_text("one key")
        # The page says so by itself, as parts are used up and the budget is changed.
        make(5)
        expect(tag).to_have_text("50 %", timeout=90_000)  # use is told each minute
        expect(tag).not_to_have_class(re.compile("amber|red"))
        call("PATCH", "/cay/v1/budgets/" + budget, {"limit": "6"}, **operator())
        expect(tag).to_have_text("83 %")
        expect(tag).to_have_class(re.compile("amber"))
        shot(page, "budget-80")
        assert findings(page) == []
        page.get_by_role("link", name="Overview").click()
        expect(page.get_by_role("link", name="The budget ten <b>creates</b> is used to 83 %")).to_be_visible()
        call("PATCH", "/cay/v1/budgets/" + budget, {"limit": "5"}, **operator())
        expect(page.get_by_role("link", name=re.compile("is used to 100 %: creates are refused"))).to_be_visible(timeout=90_000)
        visit(page, "/sandboxes/" + made[0])
        expect(page.get_by_role("button", name="Resume", exact=True)).to_be_visible(timeout=90_000)
        page.allow.append("429")
        page.get_by_role("button", name="Resume", exact=True).click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name="Resume", exact=True).click()
        expect(dialog.get_by_role("alert")).to_contain_text("budget")
        shot(page, "budget-refuses")
        dialog.get_by_role("button", name="Cancel").click()
        visit(page, "/usage")
        expect(tag).to_have_class(re.compile("red"))
        row.get_by_role("button").click()
        page.get_by_role("menuitem", name="Change").click()
        dialog.locator("#l").fill("10")
        dialog.get_by_role("button", name="Change", exact=True).click()
        expect(tag).to_have_text("50 %")
        visit(page, "/sandboxes/" + made[0])
        page.get_by_role("button", name="Resume", exact=True).click()
        dialog.get_by_role("button", name="Resume", exact=True).click()
        expect(page.get_by_role("button", name="Extend", exact=True)).to_be_visible()
    finally:
        call("DELETE", "/cay/v1/budgets/" + budget, **operator())
        for one in made:
            call("DELETE", "/sandboxes/" + one)
        call("DELETE", "/cay/v1/api-keys/" + key["id"], **operator())


def test_another_login_in_the_same_tab(new_context, box):
    """A second login sees nothing that the first one loaded."""
    team = call("POST", "/cay/v1/admin/teams", {"name": "others"}, **ADMIN)["teamID"]
    key = call("POST", "/cay/v1/api-keys", {"name": "first"}, **ADMIN, **{"X-Team-ID": team})["key"]
    page = watched(new_context(viewport={"width": 1280, "height": 800}), allow=["401"])  # of the session that is over
    log_in(page, os.environ["CONSOLE_KEY"])
    page.get_by_role("link", name="Sandboxes").first.click()
    expect(page.get_by_role("row").filter(has_text=box)).to_be_visible()
    page.get_by_role("button", name="Log out", exact=True).click()
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Log in", exact=True).click()
    expect(page.get_by_text("No sandbox runs")).to_be_visible()
    assert box not in page.content()
    made = call("POST", "/sandboxes", {"templateID": "base", "timeout": 600}, **{"X-API-Key": key})["sandboxID"]
    expect(page.get_by_role("row").filter(has_text=made)).to_be_visible()
    call("DELETE", "/sandboxes/" + made, **{"X-API-Key": key})
    assert page.errors == []


def test_members(page):
    visit(page, "/members")
    page.get_by_role("button", name="Add a member").click()
    dialog = page.get_by_role("dialog")
    page.allow.append("400")
    dialog.get_by_label("E-mail address").fill("no address")
    dialog.get_by_role("button", name="Add", exact=True).click()
    expect(dialog.get_by_role("alert")).to_be_visible()
    dialog.get_by_label("E-mail address").fill("carl@example.com")
    dialog.get_by_label("Role", exact=True).select_option("viewer")
    dialog.get_by_role("button", name="Add", exact=True).click()
    row = page.get_by_role("row").filter(has_text="carl@example.com")
    role = row.get_by_label("Role of carl@example.com")
    expect(role).to_have_value("viewer")
    role.select_option("developer")
    expect(page.get_by_text("The role is changed.")).to_be_visible()
    assert {m["email"]: m["role"] for m in call("GET", "/cay/v1/members")}["carl@example.com"] == "developer"
    shot(page, "members-one")
    assert findings(page) == []
    row.get_by_role("button", name="Actions on carl@example.com").click()
    page.get_by_role("menuitem", name="Remove").click()
    dialog.get_by_role("button", name="Remove", exact=True).click()
    expect(row).to_have_count(0)


# Webhooks, hooks, schedules.


@pytest.fixture
def receiver():
    """An address that answers as it is told to."""
    class Handler(http.server.BaseHTTPRequestHandler):
        status = 500
        came = []

        def do_POST(self):
            Handler.came.append(({k.lower(): v for k, v in self.headers.items()}, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(Handler.status)
            self.end_headers()
            self.wfile.write(b"<b>so it says</b>")

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Handler.url = f"http://127.0.0.1:{server.server_port}/hook"
    yield Handler
    server.shutdown()


def test_webhooks_that_fail_and_come_back(page, receiver):
    visit(page, "/webhooks")
    page.get_by_role("button", name="New webhook").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name", exact=True).fill("ours")
    dialog.get_by_label("Address", exact=True).fill(receiver.url)
    dialog.get_by_label("Events", exact=True).fill("sandbox.lifecycle.created")
    dialog.get_by_role("button", name="Make").click()
    assert dialog.get_by_label("The secret").input_value()
    dialog.get_by_role("button", name="Close").click()
    page.get_by_role("link", name="ours").click()
    page.get_by_role("button", name="Send a test").click()
    expect(page.get_by_text("It failed: 500")).to_be_visible()
    made = call("POST", "/sandboxes", {"templateID": "base", "timeout": 600})["sandboxID"]
    row = page.get_by_role("row").filter(has_text=made[:10]).filter(has_text="Send again")
    while row.count() == 0:
        page.get_by_role("button", name="Load again").click()
        page.wait_for_timeout(200)
    expect(row).to_contain_text("500")
    row.get_by_role("button", name="Look").click()
    expect(page.get_by_text("<b>so it says</b>").first).to_be_visible()
    shot(page, "webhook")
    assert findings(page) == []
    receiver.status = 200
    row.get_by_role("button", name="Send again").click()
    while "arrived" not in row.inner_text():
        page.get_by_role("button", name="Load again").click()
        page.wait_for_timeout(200)
    ids = [h["webhook-id"] for h, body in receiver.came if made.encode() in body]
    assert len(ids) >= 2 and len(set(ids)) == 1
    call("DELETE", "/sandboxes/" + made)


def post(url, body, **headers):
    request = urllib.request.Request(url, method="POST", data=body, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_hooks_and_schedules(page):
    visit(page, "/triggers")
    expect(page.get_by_text("No hooks and no schedules")).to_be_visible()
    page.get_by_role("button", name="New", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name", exact=True).fill("Review!")
    dialog.get_by_label("Events", exact=True).fill("pull_request")
    dialog.get_by_label("Filters", exact=True).fill("action=opened|reopened")
    dialog.get_by_label("Command", exact=True).fill('cat "$CAY_PAYLOAD"; printf "\\n<b>for $WHO</b>\\033[31m \\342\\200\\256rab\\a\\n"; exit 3')
    dialog.get_by_role("button", name="Add").click()
    dialog.get_by_label("Environment variables: name 1").fill("WHO")
    dialog.get_by_label("Environment variables: value 1").fill("ann")
    page.allow.append("400")
    dialog.get_by_role("button", name="Make").click()
    expect(dialog.get_by_role("alert")).to_contain_text("name")
    shot(page, "trigger-new")
    assert findings(page) == []
    dialog.get_by_label("Name", exact=True).fill("review")
    dialog.get_by_role("button", name="Make").click()
    address, secret = dialog.get_by_label("Address", exact=True).input_value(), dialog.get_by_label("Secret").input_value()
    assert "/cay/v1/hooks/" in address and len(secret) >= 32
    dialog.get_by_role("button", name="Close").click()
    body = json.dumps({"action": "opened", "title": "<img src=x onerror=alert(1)>"}).encode()
    address = API + address[address.index("/cay/v1/"):]

    def signed(body, secret, delivery):
        return post(address, body, **{"X-GitHub-Event": "pull_request", "X-GitHub-Delivery": delivery, "Content-Type": "application/json",
                                      "X-Hub-Signature-256": "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()})

    assert signed(body, "wrong" * 8, "one")[0] == 401
    assert signed(b'{"action":"closed"}', secret, "two")[0] == 200
    assert signed(body, secret, "three")[0] == 202
    page.get_by_role("link", name="review").click()
    row = page.get_by_role("row").filter(has_text="pull_request")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("failed", timeout=60_000)
    expect(row).to_contain_text("status 3")
    shot(page, "trigger")
    assert findings(page) == []
    row.get_by_role("link", name="Look").click()
    output = page.get_by_label("Output of the command")
    expect(output).to_contain_text("<b>for ann</b> ⟨202E⟩rab⟨0007⟩")
    expect(output).to_contain_text("onerror=alert(1)")
    assert page.locator("img[src='x']").count() == 0
    shot(page, "run")
    assert findings(page) == []
    # By hand, with another payload; turned off it runs nothing.
    page.go_back()
    page.get_by_role("button", name="Change").click()
    dialog.get_by_label("Command", exact=True).fill("sleep 600")
    dialog.get_by_role("button", name="Keep").click()
    page.get_by_role("button", name="Run now").click()
    dialog.get_by_label("Payload", exact=True).fill('{"by":"hand"}')
    dialog.get_by_role("button", name="Run", exact=True).click()
    row = page.get_by_role("row").filter(has_text="manual")
    expect(row).to_contain_text("running", timeout=60_000)
    row.get_by_role("button", name="Cancel").click()
    expect(row).to_contain_text("cancelled", timeout=60_000)
    page.get_by_role("button", name="New secret").click()
    assert dialog.get_by_label("The secret").input_value() != secret
    dialog.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Turn off").click()
    expect(page.get_by_role("button", name="Run now")).to_be_disabled()
    assert signed(body, secret, "four")[0] == 409
    # A schedule, and the runs of all.
    visit(page, "/triggers")
    page.get_by_role("button", name="New", exact=True).click()
    dialog.get_by_label("Started by").select_option("schedule")
    dialog.get_by_label("Name", exact=True).fill("nightly")
    dialog.get_by_label("When").fill("30 2 * * *")
    dialog.get_by_label("Time zone").fill("Europe/Berlin")
    dialog.get_by_label("Command", exact=True).fill("true")
    dialog.get_by_role("button", name="Make").click()
    row = page.get_by_role("row").filter(has_text="nightly")
    expect(row).to_contain_text("in ")
    shot(page, "triggers")
    assert findings(page) == []
    page.get_by_role("button", name="Actions on nightly").click()
    page.get_by_role("menuitem", name="Run now").click()
    page.get_by_role("link", name="Runs", exact=True).click()
    row = page.get_by_role("row").filter(has_text="nightly")
    expect(row).to_contain_text("succeeded", timeout=60_000)
    page.get_by_label("State").select_option("cancelled")
    expect(page.get_by_role("row").filter(has_text="review")).to_have_count(1)
    expect(row).to_have_count(0)
    assert "state=cancelled" in page.url
    shot(page, "runs")
    assert findings(page) == []
    for name in ("review", "nightly"):
        call("DELETE", "/cay/v1/triggers/" + name)


# The audit log and the machine.


def test_audit_and_drain(page, box):
    visit(page, "/audit")
    page.get_by_label("Action").fill("sandbox.created")
    page.get_by_label("Target").fill(box)
    expect(page.get_by_role("row")).to_have_count(2)
    expect(page.get_by_role("row").last).to_contain_text("sandbox.created")
    assert "target=" + box in page.url
    page.get_by_role("button", name="Look").click()
    expect(page.get_by_text("Hash", exact=True)).to_be_visible()
    shot(page, "audit-look")
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    with open(download.value.path()) as f:
        rows = [json.loads(line) for line in f]
    assert [r["target"] for r in rows] == [box] and re.fullmatch("[0-9a-f]{64}", rows[0]["hash"])
    visit(page, "/machine")
    page.get_by_role("button", name="Drain").click()
    page.get_by_role("dialog").get_by_role("button", name="Drain", exact=True).click()
    expect(page.get_by_text("draining")).to_be_visible()
    with pytest.raises(urllib.error.HTTPError):
        call("POST", "/sandboxes", {"templateID": "base", "timeout": 60})
    page.get_by_role("button", name="Take sandboxes again").click()
    page.get_by_role("dialog").get_by_role("button", name="Do so").click()
    expect(page.get_by_role("button", name="Drain")).to_be_visible()
    # Findings of doctor, and the state of the audit log.
    page.get_by_role("button", name="Look it over").click()
    checks = page.get_by_role("region", name="Checks")
    expect(checks.get_by_role("row", name=re.compile("^(ok|warn|fail) data directory"))).to_be_visible()
    page.get_by_role("button", name="Verify", exact=True).click()
    log = page.get_by_role("region", name="Audit log")
    expect(log.get_by_role("status")).to_contain_text(re.compile(r"whole [\d,]+ rows, 1 to \d+"))
    shot(page, "machine-again")
    assert findings(page) == []


# Desktops.

PIXEL = """([x, y]) => { const c = document.querySelector('.screen canvas'); return c && [...c.getContext('2d').getImageData(x, y, 1, 1).data.slice(0, 3)] }"""


def pixel(page, x, y, colour):
    page.allow.append("Canvas2D")  # this reads the canvas back
    page.wait_for_function(f"(at) => ({PIXEL})(at)?.join() === '{','.join(map(str, colour))}'", arg=[x, y], timeout=20_000)


def test_a_desktop_with_two_viewers(page, new_context, token, box, tmp_path):
    visit(page, f"/sandboxes/{box}/desktop")
    pixel(page, 5, 5, (0x50, 0x50, 0x50))
    control("/screen?paint=100,50,40,30,255,0,0")
    pixel(page, 120, 60, (255, 0, 0))
    pixel(page, 99, 60, (0x50, 0x50, 0x50))
    expect(page.get_by_text("No viewer has the control")).to_be_visible()
    # Without the control, what is typed and clicked goes nowhere.
    canvas = page.locator(".screen canvas")
    canvas.click(position={"x": 50, "y": 50})
    page.keyboard.type("x")
    page.get_by_role("button", name="Take control").click()
    expect(page.get_by_text("You have the control")).to_be_visible()
    shot(page, "desktop")
    assert findings(page) == []
    page.emulate_media(color_scheme="dark")
    shot(page, "desktop-dark")
    assert findings(page) == []
    canvas.click(position={"x": 60, "y": 40})
    page.keyboard.type("aB")
    keys = []
    while len(keys) < 4:
        keys = [e for e in control("/screen")["events"] if e[0] == 4 and e[7] in (ord("a"), ord("B"))]
    assert [(e[1], e[7]) for e in keys] == [(1, 97), (0, 97), (1, 66), (0, 66)]
    assert not [e for e in control("/screen")["events"] if e[0] == 4 and e[7] == ord("x")]
    assert [e for e in control("/screen")["events"] if e[0] == 5 and e[1] == 1]
    # The keyboard gets out of it.
    page.keyboard.press("Shift+Escape")
    expect(page.get_by_role("button", name="Let go")).to_be_focused()
    # A second viewer sees the same, and cannot type.
    context = new_context(viewport={"width": 1280, "height": 800})
    context.add_init_script(f"sessionStorage.setItem('cay.session', {json.dumps(token)})")
    other = watched(context)
    visit(other, f"/sandboxes/{box}/desktop")
    pixel(other, 120, 60, (255, 0, 0))
    expect(other.get_by_text("2 viewers")).to_be_visible()
    other.locator(".screen canvas").click(position={"x": 10, "y": 10})
    other.keyboard.type("q")
    assert control("/screen")["conns"] == 1
    other.get_by_role("button", name="Ask for control").click()
    expect(page.get_by_role("alert")).to_contain_text("asks for the control")
    shot(page, "desktop-asked")
    page.get_by_role("button", name="Keep it").click()
    expect(other.get_by_role("button", name="Ask for control")).to_be_enabled()
    other.get_by_role("button", name="Ask for control").click()
    page.get_by_role("button", name="Give it").click()
    expect(other.get_by_text("You have the control")).to_be_visible()
    expect(page.get_by_role("button", name="Ask for control")).to_be_visible()
    other.locator(".screen canvas").click(position={"x": 10, "y": 10})
    other.keyboard.type("z")
    page.locator(".screen canvas").click(position={"x": 12, "y": 10})
    page.keyboard.type("w")
    while not [e for e in control("/screen")["events"] if e[0] == 4 and e[7] == ord("z")]:
        pass
    typed = {e[7] for e in control("/screen")["events"] if e[0] == 4}
    assert not typed & {ord("q"), ord("w"), ord("x")}
    other.get_by_role("button", name="Let go").click()
    expect(page.get_by_role("button", name="Take control")).to_be_visible()
    # A viewer that only looks, by its address.
    other.goto(other.url + "?view=only")
    expect(other.get_by_text("view only").first).to_be_visible()
    expect(other.get_by_role("button", name="Take control")).to_have_count(0)
    # A recording, and its playing.
    page.get_by_role("button", name="Record").click()
    expect(other.get_by_text("records")).to_be_visible()
    control("/screen?paint=200,100,20,20,0,200,0")
    pixel(page, 210, 110, (0, 200, 0))
    page.wait_for_timeout(300)
    control("/screen?paint=300,100,20,20,0,0,250")
    pixel(page, 310, 110, (0, 0, 250))
    page.wait_for_timeout(300)
    with page.expect_download() as download:
        page.get_by_role("button", name="Stop recording").click()
    kept = tmp_path / "a.cayrec"
    download.value.save_as(kept)
    assert kept.read_bytes().startswith(b"CAYRFB1\n")
    visit(page, "/recording")
    page.get_by_label("A recording").set_input_files({"name": "no.cayrec", "mimeType": "application/octet-stream", "buffer": b"nothing"})
    expect(page.get_by_role("alert")).to_contain_text("no recording")
    page.get_by_label("A recording").set_input_files(kept)
    pixel(page, 310, 110, (0, 0, 250))
    pixel(page, 210, 110, (0, 200, 0))
    expect(page.get_by_role("button", name="Play again")).to_be_visible()
    shot(page, "recording")
    assert findings(page) == []
    page.get_by_role("button", name="Play again").click()
    pixel(page, 310, 110, (0, 0, 250))
    # A recording that was cut off plays to its end.
    page.get_by_label("A recording").set_input_files({"name": "cut.cayrec", "mimeType": "application/octet-stream", "buffer": kept.read_bytes()[:-3]})
    pixel(page, 210, 110, (0, 200, 0))
    assert struct.unpack(">I", kept.read_bytes()[12:16])[0] > 40
    assert other.errors == []


def test_a_desktop_that_is_paused_and_comes_back(page, box):
    page.allow.append("409|503|WebSocket")
    visit(page, f"/sandboxes/{box}/desktop")
    pixel(page, 5, 5, (0x50, 0x50, 0x50))
    call("POST", f"/sandboxes/{box}/pause", {})
    expect(page.get_by_text("Its windows are there when it is resumed")).to_be_visible()
    shot(page, "desktop-paused")
    call("POST", f"/sandboxes/{box}/connect", {"timeout": 900})
    page.wait_for_selector(".screen canvas")
    pixel(page, 5, 5, (0x50, 0x50, 0x50))


def test_a_viewer_without_the_scope_has_no_desktop(new_context, box):
    key = call("POST", "/cay/v1/api-keys", {"name": "looks", "scopes": ["viewer"]})
    page = watched(new_context(viewport={"width": 1280, "height": 800}), allow=["40[0-9]"])
    log_in(page, key["key"])
    visit(page, f"/sandboxes/{box}")
    expect(page.get_by_role("link", name="Desktop", exact=True)).to_have_count(0)
    page.goto(HERE + f"/sandboxes/{box}/desktop")
    expect(page.get_by_role("alert")).to_contain_text("sandboxes:exec")
    call("DELETE", "/cay/v1/api-keys/" + key["id"])


# A slow network.


def test_a_slow_network(page):
    client = page.context.new_cdp_session(page)
    client.send("Network.enable")
    client.send("Network.emulateNetworkConditions", {"offline": False, "latency": 400, "downloadThroughput": 50_000, "uploadThroughput": 50_000})
    begun = time.monotonic()
    page.goto(HERE + "/sandboxes")
    expect(page.get_by_role("heading", name="Sandboxes")).to_be_visible()
    expect(page.get_by_role("row").nth(1)).to_be_visible()
    print(f"at 50 KB/s with 400 ms: a list after {time.monotonic() - begun:.1f} s")
    client.send("Network.emulateNetworkConditions", {"offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1})


def test_a_browser_that_is_offline(page, box):
    """It says so, keeps what it showed, and does once what was pressed meanwhile."""
    page.allow.append("ERR_|Failed to load")
    visit(page, "/sandboxes")
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    row = page.get_by_role("row").filter(has_text=box)
    expect(row).to_contain_text("running")
    def offline(yes):
        page.context.set_offline(yes)
        # This browser's namespace has no network but its own, so it sees no change.
        page.evaluate("(event) => window.dispatchEvent(new Event(event))", "offline" if yes else "online")

    offline(True)
    expect(page.get_by_text("The browser is offline").first).to_be_visible()
    expect(row).to_contain_text("running")
    page.get_by_role("link", name="Usage").click()
    expect(page.get_by_text("It comes as soon as the server answers")).to_be_visible()
    shot(page, "offline")
    page.get_by_role("link", name="Sandboxes").first.click()
    row.get_by_role("button").click()
    page.get_by_role("menuitem", name="Pause").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Pause", exact=True).click()
    expect(dialog.get_by_role("alert")).to_contain_text("1 not")
    expect(dialog.get_by_role("list", name="Not done")).to_contain_text("The browser is offline")
    # Meanwhile another party changes it: that shows as soon as the network is back.
    call("POST", f"/sandboxes/{box}/timeout", {"timeout": 36_000})
    offline(False)
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    expect(page.get_by_text("The browser is offline")).to_have_count(1)  # in the dialog, of the try before
    expect(row).to_contain_text(re.compile("in (9 h 59|10 h)"))
    dialog.get_by_role("button", name="Pause", exact=True).click()
    expect(dialog).to_have_count(0)
    expect(row).to_contain_text("paused")
    # A page that was asked for meanwhile comes by itself.
    offline(True)
    page.get_by_role("link", name="Webhooks").click()
    expect(page.get_by_text("It comes as soon as the server answers")).to_be_visible()
    offline(False)
    expect(page.get_by_role("heading", name="Webhooks", exact=True)).to_be_visible()
    assert [e["type"] for e in call("GET", f"/cay/v1/sandboxes/{box}/events")["events"]].count("sandbox.paused") == 1


# The keyboard alone.


def tab_to(page, name):
    for _ in range(120):
        page.keyboard.press("Tab")
        text = page.evaluate("() => { const e = document.activeElement; return e.getAttribute('aria-label') ?? e.innerText ?? '' }")
        if text.strip() == name:
            return
    raise AssertionError(f"the keyboard does not reach {name!r}")


def test_from_nothing_to_an_end_by_keyboard(page):
    visit(page, "/")
    page.keyboard.press("Control+k")
    page.keyboard.type("new sandbox")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="New sandbox")).to_be_visible()
    page.wait_for_function("document.querySelector('#t')")
    tab_to(page, "Create")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=re.compile("^i[0-9a-z]{10}"))).to_be_visible()
    box = page.url.rsplit("/", 1)[1]
    tab_to(page, "Terminal")
    page.keyboard.press("Enter")
    expect(page.locator(".xterm-rows")).to_contain_text("#" if os.getuid() == 0 else "$")
    page.wait_for_function("document.activeElement.matches('.xterm-helper-textarea')")
    page.keyboard.type("echo by-$((6*7))\n")
    expect(page.locator(".xterm-rows")).to_contain_text("by-42")
    visit(page, "/sandboxes/" + box)
    tab_to(page, "Pause")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Resume", exact=True)).to_be_visible()
    tab_to(page, "Resume")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Extend", exact=True)).to_be_visible()
    tab_to(page, "Kill")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    tab_to(page, "Kill")
    page.allow.append("404")  # it is over: the page asks why instead
    page.keyboard.press("Enter")
    expect(page.get_by_text("ended", exact=True).first).to_be_visible()
