"""The capabilities of sandboxes whose template has Docker, beside those of one that has not."""

CAPABILITIES = {12: "NET_ADMIN", 13: "NET_RAW", 21: "SYS_ADMIN"}


def root(box, command, timeout=120, **kw):
    return box.commands.run(command, user="root", timeout=timeout, **kw)


def bounding(box):
    line = root(box, "grep CapBnd /proc/self/status").stdout
    return int(line.split()[1], 16)


def test_capabilities(create):
    plain, docker = create("base"), create()
    beyond = bounding(docker) & ~bounding(plain)
    assert {n for n in range(64) if beyond >> n & 1} == set(CAPABILITIES)
    assert bounding(plain) & ~bounding(docker) == 0
    assert "permission denied" in plain.commands.run("mount -t tmpfs none /mnt 2>&1; ls /sys/fs/cgroup", user="root").stdout.splitlines()[0]
