"""The audit log of a real server: what the SDK did, what ran inside, and that it shows tampering."""

import json

import e2b
import pytest

import world


@pytest.fixture(scope="module")
def server():
    return world.Server()


def rows_of(server, *args):
    return [json.loads(line) for line in server.cay("audit", "list", "--json", *args).stdout.splitlines()]


def test_what_was_done_and_ran(server, create, eventually, tmp_path):
    sbx = create(envs={"TOKEN": "MARKED-SECRET"}, metadata={"a": "b"})
    assert sbx.commands.run("echo inside").stdout == "inside\n"
    with pytest.raises(e2b.CommandExitException):
        sbx.commands.run("exit 7")
    sbx.set_timeout(3000)
    e2b.Sandbox.connect(sbx.sandbox_id)
    sbx.kill()

    export = tmp_path / "audit.jsonl"
    server.cay("audit", "export", str(export))  # writes what is counted, and signs it
    done = {"sandbox.created", "sandbox.timeout_changed", "sandbox.connected", "sandbox.killed"}

    found = lambda: {r["action"]: r for r in rows_of(server, "--target", sbx.sandbox_id, "-n", "0")}
    inside = lambda: rows_of(server, "--actor", sbx.sandbox_id, "-n", "0")
    if server.cluster:  # another node writes what it has counted in its own time
        eventually(lambda: done <= set(found()) and any(r["action"] == "process.ended" for r in inside()), 180)
    actions, inside = found(), inside()
    assert done <= set(actions), actions
    made = actions["sandbox.created"]
    assert made["actor"]["kind"] == "key" and made["outcome"] == "ok" and made["requestID"] and made["address"]
    assert "python" in made["userAgent"].lower()
    assert any(r["action"] == "process.started" and "bash" in r["target"] for r in inside), inside
    assert any(r["action"] == "process.ended" and "7" in r["details"].get("status", "") for r in inside), inside
    assert "MARKED-SECRET" not in export.read_text()


def test_verify(server, tmp_path):
    server.cay("audit", "export", str(tmp_path / "first.jsonl"))  # signs a head
    kept = tmp_path / "heads.jsonl"
    kept.write_bytes((server.leads().data / "audit-heads.jsonl").read_bytes())
    export = tmp_path / "audit.jsonl"
    server.cay("audit", "export", str(export))  # after: no head that is kept is newer
    key = server.cay("audit", "key").stdout.strip()
    assert "whole" in server.cay("audit", "verify", "--against", str(kept), "--key", key).stdout
    assert "whole" in server.cay("audit", "verify", str(export), "--against", str(kept)).stdout

    lines = [json.loads(line) for line in export.read_text().splitlines()]
    rows = [i for i, line in enumerate(lines) if "row" in line]
    middle = rows[len(rows) // 2]

    def refused(changed, *args):
        forged = tmp_path / "forged.jsonl"
        forged.write_text("".join(json.dumps(line) + "\n" for line in changed))
        out = server.cay("audit", "verify", "--json", str(forged), *args, check=False)
        assert out.returncode == 1, out
        return json.loads(out.stdout)["broken"]

    seq = lines[middle]["row"]["seq"]
    changed = json.loads(json.dumps(lines))
    changed[middle]["row"]["target"] = "another"
    assert refused(changed)["seq"] == seq
    assert refused(lines[:middle] + lines[middle + 1 :])["seq"] == seq
    cut = lines[:middle] + [lines[-1]]
    assert refused(cut, "--against", str(kept))["seq"] <= seq
