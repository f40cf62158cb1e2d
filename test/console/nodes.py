"""The nodes of a cluster in the console: a thousand of them, on a server over machines in memory
of which one runs; all others have renewed their leases for an hour.
"""

import re
import time

from playwright.sync_api import expect
from steps import findings, shot, visit


def test_a_thousand_nodes(page):
    asked = []
    page.on("request", lambda request: asked.append(time.monotonic()) if request.url.endswith("/api/nodes") else None)
    visit(page, "/machine")
    nodes = page.get_by_role("region", name="Nodes")
    expect(nodes.get_by_role("status")).to_have_text("1,000 ready")
    expect(nodes.get_by_role("row")).to_have_count(51)
    shot(page, "nodes-1000")
    assert findings(page) == []
    nodes.get_by_role("button", name="More").click()
    expect(nodes.get_by_role("row")).to_have_count(101)
    # One is found, and drained: it comes first then.
    nodes.get_by_role("searchbox").fill("crowd000000000000777")
    expect(nodes.get_by_role("row")).to_have_count(2)
    nodes.get_by_role("button", name="Drain").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("cay node drain crowd000000000000777")
    dialog.get_by_role("checkbox").uncheck()
    expect(dialog).to_contain_text("cay node drain --wait crowd000000000000777")
    dialog.get_by_role("checkbox").check()
    shot(page, "nodes-drain")
    with page.expect_request("**/api/nodes/crowd000000000000777") as drains:
        dialog.get_by_role("button", name="Drain", exact=True).click()
    assert drains.value.post_data_json == {"status": "draining", "move": True}
    expect(nodes.get_by_role("status")).to_have_text("999 ready, 1 draining")
    nodes.get_by_role("searchbox").fill("")
    expect(nodes.get_by_role("row").nth(1)).to_contain_text("crowd000000000000777")
    expect(nodes.get_by_role("row")).to_have_count(51)
    nodes.get_by_role("searchbox").fill("draining")
    expect(nodes.get_by_role("row")).to_have_count(2)
    # A page that is left open asks for all rows once in thirty seconds, and not in five.
    before = len(asked)
    page.wait_for_timeout(12_000)
    assert len(asked) <= before + 1, f"{len(asked) - before} looks in 12 s"
    visit(page, "/")
    expect(page.get_by_text("1 node of 1,000 takes no new sandboxes")).to_be_visible()
    expect(page.get_by_text("999 of 1,000 are ready")).to_be_visible()
    assert page.get_by_text(re.compile("are ready")).count() == 1
    visit(page, "/machine")
    nodes.get_by_role("button", name="Take sandboxes again").click()
    page.get_by_role("dialog").get_by_role("button", name="Do so").click()
    expect(nodes.get_by_role("status")).to_have_text("1,000 ready")
