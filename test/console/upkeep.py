"""The operator's upkeep of the machine, the settings of a sandbox, and providers of
models; in Chromium, on a server over a machine in memory.
"""

import contextlib
import os
import pathlib
import re
import shutil

import pytest
from playwright.sync_api import expect
from steps import call, findings, shot, visit, watched

ADMIN = {"X-Admin-Token": os.environ["CONSOLE_ADMIN"]}


@pytest.fixture
def box():
    made = call("POST", "/sandboxes", {"templateID": "base", "timeout": 900})["sandboxID"]
    yield made
    call("DELETE", "/sandboxes/" + made)


def test_the_machine_is_kept(page, box):
    """Garbage, the cache of packages, snapshots: each action asks before it is done."""
    call("POST", f"/sandboxes/{box}/pause", {})
    old = pathlib.Path(os.environ["CONSOLE_DATA"]) / "contexts" / "8f0f3a7e-3c0b-4e53-9b5e-1c6a6f1c5a11" / ("a" * 64)
    old.parent.mkdir(parents=True, exist_ok=True)
    old.write_bytes(bytes(1 << 20))
    os.utime(old, (0, 0))
    visit(page, "/machine")
    dialog = page.get_by_role("dialog")
    garbage = page.get_by_role("region", name="Garbage")
    garbage.get_by_role("button", name="Look").click()
    expect(garbage.get_by_role("row").filter(has_text="a" * 64)).to_contain_text("archive")
    shot(page, "machine-garbage")
    garbage.get_by_role("button", name=re.compile("^Remove ")).click()
    assert old.exists()
    dialog.get_by_role("button", name="Remove", exact=True).click()
    expect(garbage.get_by_text("all that is on the disk is needed")).to_be_visible()
    assert not old.exists()
    packages = page.get_by_role("region", name="Package cache")
    expect(packages).to_contain_text("0 files, 0 B of 1.0 GiB")
    expect(packages.get_by_role("button", name="Clear")).to_be_disabled()
    expect(page.get_by_role("region", name="Storage")).to_contain_text("has no file system of its own")
    # One flipped byte in one of the snapshots is found, and named.
    snapshots = page.get_by_role("region", name="Snapshots")
    def verify():
        snapshots.get_by_role("button", name="Verify all").click()
        dialog.get_by_role("button", name="Verify", exact=True).click()
        expect(snapshots.get_by_text(re.compile(r"^(\d+) of \1 snapshots read"))).to_be_visible()
    verify()
    expect(snapshots).to_contain_text("whole")
    made = next(s for s in call("GET", "/cay/v1/admin/snapshots", **ADMIN) if s.get("sandboxID") == box)["snapshotID"]
    file = pathlib.Path(os.environ["CONSOLE_DATA"]) / "snapshots" / made / "memory.json"
    was = file.read_bytes()
    os.chmod(file, 0o600)
    file.write_bytes(was[:-1] + bytes([was[-1] ^ 1]))
    verify()
    expect(snapshots.get_by_text(made)).to_be_visible()
    expect(snapshots).to_contain_text("damaged")
    shot(page, "machine-damaged")
    file.write_bytes(was)
    assert findings(page) == []


def test_the_machine_is_kept_on_a_full_disk(page):
    """With no byte left, garbage is found and removed all the same, and a create is refused with the reason."""
    data = pathlib.Path(os.environ["CONSOLE_DATA"])
    old = data / "contexts" / "8f0f3a7e-3c0b-4e53-9b5e-1c6a6f1c5a11" / ("b" * 64)
    old.parent.mkdir(parents=True, exist_ok=True)
    old.write_bytes(bytes(4 << 20))
    os.utime(old, (0, 0))
    filler = data / "filler"

    def removals():
        return call("GET", "/cay/v1/admin/audit?action=garbage.collected&limit=1000", **ADMIN)["rows"]

    before = len(removals())
    try:
        with open(filler, "wb", buffering=0) as f:
            for size in (1 << 20, 1 << 12, 1):  # to the last byte
                with contextlib.suppress(OSError):
                    while f.write(bytes(size)):
                        pass
        assert shutil.disk_usage(data).free == 0
        visit(page, "/sandboxes/new")
        page.get_by_role("button", name="Add").first.click()
        page.get_by_label("Metadata: name 1").fill("full")
        page.get_by_label("Metadata: value 1").fill("disk")
        page.allow.append("507")
        page.get_by_role("button", name="Create", exact=True).click()
        expect(page.get_by_role("alert").first).to_contain_text(f"the disk of {data} has 0 MB free")
        shot(page, "disk-full")
        other = watched(page.context, allow=["507"])
        visit(other, "/machine")
        expect(other.locator(".tag", has_text="full")).to_be_visible()
        garbage = other.get_by_role("region", name="Garbage")
        garbage.get_by_role("button", name="Look").click()
        expect(garbage.get_by_role("row").filter(has_text="b" * 64)).to_be_visible()
        snapshots = other.get_by_role("region", name="Snapshots")
        snapshots.get_by_role("button", name="Verify all").click()
        other.get_by_role("dialog").get_by_role("button", name="Verify", exact=True).click()
        expect(snapshots.get_by_text(re.compile(r"^(\d+) of \1 snapshots read"))).to_be_visible()
        expect(snapshots).to_contain_text("whole")
        shot(other, "machine-full")
        garbage.get_by_role("button", name=re.compile("^Remove ")).click()
        other.get_by_role("dialog").get_by_role("button", name="Remove", exact=True).click()
        expect(garbage.get_by_text("all that is on the disk is needed")).to_be_visible()
        assert not old.exists() and other.errors == []
        assert len(removals()) == before + 1
        # There is room again: what was refused is done once, as it was typed.
        page.get_by_role("button", name="Create", exact=True).click()
        expect(page.get_by_role("heading", name=re.compile("^i[0-9a-z]{10}"))).to_be_visible()
        made = page.url.rsplit("/", 1)[1]
        assert [box["sandboxID"] for box in call("GET", "/v2/sandboxes?metadata=full%3Ddisk")] == [made]
    finally:
        filler.unlink()
    call("DELETE", "/sandboxes/" + made)


def test_settings_of_a_sandbox(page):
    call("POST", "/secrets", {"name": "OF_SETTINGS", "value": "never shown"})
    network = {"allowPublicTraffic": False, "rules": {"api.example.com": [{"transform": {"headers": {"Authorization": "Bearer ${e2b.secrets.OF_SETTINGS}"}}}]}}
    made = call("POST", "/sandboxes", {"templateID": "base", "timeout": 900, "secure": True, "metadata": {"who": "settings"}, "network": network})["sandboxID"]
    visit(page, f"/sandboxes/{made}/settings")
    dialog = page.get_by_role("dialog")
    change = page.get_by_role("region", name="Can be changed")

    def one(label):
        return change.get_by_role("listitem").filter(has=page.get_by_text(label, exact=True))

    one("Ends").get_by_role("button").click()
    dialog.get_by_label("Minutes").fill("300")
    dialog.get_by_role("button", name="Set").click()
    expect(one("Ends")).to_contain_text(re.compile("in (5 h|4 h 59)"))
    one("Checkpoints by themselves").get_by_role("button").click()
    dialog.get_by_label("Every so many minutes").fill("15")
    dialog.get_by_label("Before each command").check()
    dialog.get_by_role("button", name="Set").click()
    expect(one("Checkpoints by themselves")).to_contain_text("every 15 min, before each command")
    assert call("GET", f"/cay/v1/sandboxes/{made}/auto-checkpoints")["everySeconds"] == 900
    one("Bandwidth").get_by_role("button").click()
    page.allow.append("400")
    dialog.get_by_label("Sends at most").fill("-1")
    dialog.get_by_role("button", name="Set").click()
    expect(dialog.get_by_role("alert")).to_be_visible()
    dialog.get_by_label("Sends at most").fill("2.5")
    dialog.get_by_role("button", name="Set").click()
    expect(one("Bandwidth")).to_contain_text("sends 2.5 MiB a second, receives no bound")
    expect(one("Secrets in its requests")).to_contain_text("OF_SETTINGS")
    assert "never shown" not in page.content()
    fixed = page.get_by_role("region", name="Chosen when it was made")
    for label, value in {"Its ports": "private", "Metadata": "who=settings", "When its time is up": "it is killed"}.items():
        expect(fixed.get_by_role("listitem").filter(has=page.get_by_text(label, exact=True))).to_contain_text(value)
    shot(page, "sandbox-settings")
    assert findings(page) == []
    # Settings of a sandbox that runs are closed while it is paused, and say so.
    call("POST", f"/sandboxes/{made}/pause", {})
    expect(one("Ends")).to_contain_text("paused, and has no end")
    expect(one("Bandwidth").get_by_role("button")).to_be_disabled()
    expect(one("Bandwidth").get_by_role("button")).to_have_attribute("title", "The sandbox must run")
    # It goes when its id is typed.
    page.get_by_role("region", name="Delete").get_by_role("button").click()
    expect(dialog.get_by_role("button", name="Delete", exact=True)).to_be_disabled()
    dialog.get_by_label("Type").fill(made[:-1])
    expect(dialog.get_by_role("button", name="Delete", exact=True)).to_be_disabled()
    dialog.get_by_label("Type").fill(made)
    page.allow.append("404")  # it is over: the page asks why instead
    dialog.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_text("Why it is over")).to_be_visible()
    call("DELETE", "/secrets/OF_SETTINGS")


def test_providers_of_models(page):
    visit(page, "/models")
    expect(page.get_by_text("No provider")).to_be_visible()
    assert findings(page) == []
    page.get_by_role("button", name="New provider").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name", exact=True).fill("main")
    dialog.get_by_label("Address").fill("https://api.openai.com/v1/chat/completions")
    dialog.get_by_role("textbox", name="Its key").fill("sk-never-shown")
    page.allow.append("400|404")  # no base URL; and no secret of that name yet
    dialog.get_by_role("button", name="Make").click()
    expect(dialog.get_by_role("alert")).to_contain_text("base URL")
    dialog.get_by_label("Address").fill("https://api.openai.com/v1")
    dialog.get_by_role("button", name="Add").click()
    dialog.get_by_label("name 1").fill("smart <img src=x onerror=alert(1)>")
    dialog.get_by_label("value 1").fill("gpt-5")
    expect(dialog.get_by_role("button", name=re.compile("Copy the command: cay model set main"))).to_be_visible()
    shot(page, "models-new")
    dialog.get_by_role("button", name="Make").click()
    row = page.get_by_role("row").filter(has_text="main-key")
    expect(row).to_contain_text("smart <img src=x onerror=alert(1)>")
    assert page.locator("img[src='x']").count() == 0
    made = call("GET", "/cay/v1/models")
    assert [(p["name"], p["secret"], list(p["models"].values())) for p in made] == [("main", "main-key", ["gpt-5"])]
    assert "sk-never-shown" not in page.content() + page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")
    # A budget of tokens shows what is used of it.
    budget = call("POST", "/cay/v1/budgets", {"name": "tokens", "meter": "model_input_tokens", "limit": "1000000", "period": "month", "action": "refuse"})["id"]
    page.reload()
    expect(page.get_by_role("region", name="Bounds")).to_contain_text("0 % 0 of 1000000 model_input_tokens each month")
    expect(page.get_by_role("region", name="Use")).to_contain_text("No sandbox has asked a model")
    row.get_by_role("button").click()
    page.get_by_role("menuitem", name="Turn off").click()
    expect(row).to_contain_text("off")
    shot(page, "models")
    assert findings(page) == []
    row.get_by_role("button").click()
    page.get_by_role("menuitem", name="Remove").click()
    dialog.get_by_role("button", name="Remove", exact=True).click()
    expect(page.get_by_text("No provider")).to_be_visible()
    call("DELETE", "/cay/v1/budgets/" + budget)
    call("DELETE", "/secrets/main-key")
