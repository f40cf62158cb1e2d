"""The changes between checkpoints, and the harm that a guest can try with them."""

import e2b
import pytest

import cayv1
import world

# One of everything, and what is meant to hurt who reads it.
SHAPE = r"""
set -e
mkdir -p work/deep && cd work
printf 'one\ntwo\nthree\n' > text
printf '\0\1\2' > binary
ln -s /etc/passwd link
ln text second
echo x > moded; echo x > gone; echo x > deep/below
truncate -s 1T sparse
printf x > "$(printf 'odd\033[31m\nname\377')"
ln -s ../../../../../../../../etc/shadow climber
mkfifo pipe
"""
CHANGE = r"""
set -e
cd work
sed -i s/two/2/ text
printf '\0\1\3' > binary
ln -sf /etc/group link
chmod 4755 moded
rm -r gone deep
printf 'more\n' > added
touch second
echo 127.0.0.9 elsewhere | sudo tee -a /etc/hosts
"""
HOME = "/home/user/work/"


def test_two_checkpoints(create):
    box = create()
    clean = cayv1.checkpoint(box, kind="files")
    box.commands.run(SHAPE)
    a = cayv1.checkpoint(box, label="a")
    made = cayv1.diff(clean, a)
    assert {c["change"] for c in made.values()} == {"added"}, made
    assert made[HOME + "sparse"]["after"]["size"] == 1 << 40 and made[HOME + "sparse"]["noDiff"] == "large"
    assert made[HOME + "climber"]["after"] | {"uid": 0, "gid": 0} == {
        "type": "symlink", "mode": "0777", "uid": 0, "gid": 0, "size": 0, "target": "../../../../../../../../etc/shadow"}
    assert made[HOME + "pipe"]["after"]["type"] == "fifo"
    assert r'"/home/user/work/odd\x1b[31m\nname\xff"' in made, sorted(made)
    assert made[HOME + "binary"]["noDiff"] == "binary"
    assert "root:" not in str(made)  # no link was followed

    box.commands.run(CHANGE)
    b = cayv1.checkpoint(box, kind="files")
    diff = cayv1.diff(a, b)
    assert {p: c["change"] for p, c in diff.items()} == {
        HOME + "added": "added", HOME + "binary": "changed", HOME + "deep": "removed", HOME + "deep/below": "removed",
        HOME + "gone": "removed", HOME + "link": "changed", HOME + "moded": "changed", HOME + "text": "changed",
        "/etc/hosts": "changed"}
    assert diff[HOME + "text"]["diff"] == (
        "--- a/home/user/work/text\n+++ b/home/user/work/text\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n")
    assert diff[HOME + "binary"]["noDiff"] == "binary" and "diff" not in diff[HOME + "binary"]
    assert [diff[HOME + "link"][when]["target"] for when in ("before", "after")] == ["/etc/passwd", "/etc/group"]
    assert [diff[HOME + "moded"][when]["mode"] for when in ("before", "after")] == ["0644", "4755"]
    assert diff["/etc/hosts"]["diff"].endswith("+127.0.0.9 elsewhere\n")  # against the image, which has the file
    assert cayv1.diff(b, b) == {} and cayv1.diff(a, a) == {}
    back = cayv1.diff(b, a)
    assert back[HOME + "gone"]["change"] == "added" and "-2\n+two\n" in back[HOME + "text"]["diff"]

    # The sandbox as it is, running and paused; what Cay writes is no change.
    assert cayv1.changes(box) == {}
    box.files.write(HOME + "now", "1")
    assert list(cayv1.changes(box)) == [HOME + "now"]
    assert set(cayv1.changes(box, a)) == {*diff, HOME + "now"}
    box.pause()
    assert list(cayv1.changes(box)) == [HOME + "now"]


def test_a_fork_and_its_source(create):
    box = create()
    first = cayv1.checkpoint(box)
    made = cayv1.call("POST", f"/checkpoints/{first['checkpointID']}/fork", {"count": 1})[0]["sandbox"]["sandboxID"]
    try:
        server = world.Server()
        server.cay("sandbox", "exec", made, "--", "sh", "-c", "echo better > note")
        text = server.cay("sandbox", "diff", made).stdout
        assert text.startswith("+ /home/user/note  (7 B)\n") and text.endswith("+better\n"), text
        assert server.cay("sandbox", "diff", "--stat", box.sandbox_id, first["checkpointID"]).stdout == ""
    finally:
        e2b.Sandbox.connect(made).kill()


def test_what_cannot_be_compared(create):
    box = create()
    with pytest.raises(cayv1.Failed, match="409.*no checkpoint"):
        cayv1.changes(box)
    node = cayv1.checkpoint(box, kind="files")
    with pytest.raises(cayv1.Failed, match="404"):
        cayv1.diff(node, {"checkpointID": "snothing"})
    with pytest.raises(cayv1.Failed, match="401"):
        cayv1.call("GET", f"/sandboxes/{box.sandbox_id}/diff", key="e2b_" + "0" * 40)
