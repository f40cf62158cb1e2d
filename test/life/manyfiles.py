"""Makes a volume of very many empty files and does with it what clients do: how long
each call takes, and what memory the server has at most meanwhile.

    make many-files                   200,000 files
    MANY_FILES=2000000 make many-files

Half of the files are in one directory, the other half a thousand to a directory. The
host makes them in the mounted volume, which is much faster than a client. Exit
status 1 says that a call failed that should not, or that the server's memory grew
with the files.
"""

import json
import os
import sys
import time
import urllib.error
import urllib.request

import e2b

import cayv1
import world

FILES = int(os.environ.get("MANY_FILES", "200000"))
SIZE_MB = 20 << 10  # of the volume, half of which may be files' own records
MOST = 256  # MB that a call may add to the server's memory; a listing has up to 32 MiB of paths
failed = []


class Memory:
    """The memory of the server's process, in MB."""

    def __init__(self, pid):
        self.proc = f"/proc/{pid}"

    def of(self, field):
        with open(f"{self.proc}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith(field)) >> 10

    def begin(self):
        with open(f"{self.proc}/clear_refs", "w") as marks:
            marks.write("5")  # the most it had begins anew
        return self.of("VmRSS")


def step(memory, name, call, wants=None):
    """Calls, and prints time and memory; wants is the status of a refusal."""
    before, begun = memory.begin(), time.monotonic()
    try:
        told, status = call(), None
    except (cayv1.Failed, urllib.error.HTTPError) as refused:
        status = refused.status
        told = f"{status}: " + (refused.message if isinstance(refused, cayv1.Failed) else refused.read(200).decode(errors="replace"))
    most = memory.of("VmHWM")
    wrong = status != wants or most > before + MOST
    if wrong:
        failed.append(name)
    print(f"{'✗' if wrong else '✓'} {name}: {time.monotonic() - begun:.1f} s, server {before} MB, at most {most}: {told}", flush=True)


def fetch(method, path, headers):
    """The number of bytes of an answer, none of which is kept."""
    request = urllib.request.Request(os.environ["E2B_API_URL"] + path, method=method, headers=headers)
    with urllib.request.urlopen(request, timeout=7200) as reply:
        return sum(len(part) for part in iter(lambda: reply.read(1 << 20), b""))


def make(root):
    """Makes the files where the volume is mounted."""
    for place in ("flat", "deep"):
        os.mkdir(f"{root}/{place}")
    for n in range(FILES // 2):
        os.close(os.open(f"{root}/flat/{n:08d}", os.O_CREAT | os.O_WRONLY))
    for n in range(FILES // 2):
        if n % 1000 == 0:
            os.mkdir(f"{root}/deep/{n // 1000:05d}")
        os.close(os.open(f"{root}/deep/{n // 1000:05d}/{n % 1000:03d}", os.O_CREAT | os.O_WRONLY))
    fd = os.open(root, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def inside(name):
    """Times of a sandbox that mounts the volume."""
    box = e2b.Sandbox.create(volume_mounts={"/mnt/v": name}, timeout=3600)
    try:
        told = []
        for command in ("ls -f /mnt/v/flat | wc -l", "find /mnt/v/deep | wc -l", "stat -c %s /mnt/v/flat/00000005"):
            begun = time.monotonic()
            out = box.commands.run(command, user="root", timeout=3600).stdout.strip()
            told.append(f"{command}: {out} in {time.monotonic() - begun:.1f} s")
        begun = time.monotonic()
        box.pause()
        box.connect(timeout=3600)
        told.append(f"pause and resume in {time.monotonic() - begun:.1f} s")
        return "; ".join(told)
    finally:
        box.kill()


def main():
    server = world.aside("many-files", 7190, "10.222.0.0/16", "cymany")
    server.start()
    os.environ.update(server.sdk_env(server.new_key()))
    memory = Memory(server.process.pid)
    name = f"many-{os.getpid()}"
    made = cayv1.call("POST", "/volumes", {"name": name, "sizeMB": SIZE_MB})
    content = f"/volumecontent/{made['volumeID']}"
    try:
        volume = e2b.Volume.connect(made["volumeID"])
        token = {"Authorization": f"Bearer {volume.token}"}
        volume.write_file("/first", "x")  # which mounts it
        begun = time.monotonic()
        make(f"{server.data}/volumes/{made['volumeID']}/root")
        print(f"{FILES} files made in {time.monotonic() - begun:.0f} s", flush=True)
        beyond = 400 if FILES // 2 > 100_000 else None
        step(memory, "what is known of the volume", lambda: json.dumps(cayv1.call("GET", f"/volumes/{name}").get("usage")))
        step(memory, "one file", lambda: volume.get_info("/flat/00000001").size)
        step(memory, "a listing of a thousand", lambda: len(volume.list("/deep/00000")))
        step(memory, "a listing of half of them", lambda: fetch("GET", content + "/dir?path=/flat", token), beyond)
        step(memory, "a listing of all", lambda: fetch("GET", content + "/dir?path=/&depth=3", token), 400 if FILES > 100_000 else None)
        step(memory, "an export of all", lambda: fetch("GET", f"/cay/v1/volumes/{name}/tree?path=/", {"X-API-Key": os.environ["E2B_API_KEY"]}))
        step(memory, "a snapshot", lambda: cayv1.call("POST", f"/volumes/{name}/snapshots", {"name": "s"})["name"])
        step(memory, "a sandbox", lambda: inside(name))
        step(memory, "a removal of half of them", lambda: fetch("DELETE", content + "/path?path=/flat", token))
        step(memory, "a restore", lambda: cayv1.call("POST", f"/volumes/{name}/snapshots/s/restore")["name"])
        step(memory, "the last of half of them", lambda: volume.get_info(f"/flat/{FILES // 2 - 1:08d}").size)
    finally:
        step(memory, "the snapshot's end", lambda: cayv1.call("DELETE", f"/volumes/{name}/snapshots/s"))
        step(memory, "its end", lambda: cayv1.call("DELETE", f"/volumes/{name}"))
        server.stop()
        server.cay("down")
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
