"""Builds of templates, known and new, with Debian's buildah beside them.

    BENCH_BUILDS=3      samples of each

`cay template build` and `buildah bud` build one Dockerfile, on one disk, from
the same root: that of the template `base`. buildah runs as Debian has it, with
chroot for isolation; it is installed if apt can, else its rows are left out.
buildah makes an image; Cay makes a snapshot that was started.
"""

import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import tarfile
import tempfile
import time

import e2b

import world
from figure import Figure, ms

BUILDS = int(os.environ.get("BENCH_BUILDS", "3"))
FILES, EACH = 10_000, 10_240

DOCKERFILE = """FROM {base}
USER root
ENV A=1
RUN mkdir /opt/work && cd /opt/work && for i in $(seq 300); do echo $i > f$i; done
RUN head -c 20000000 /dev/urandom > /opt/data && gzip -1 -k /opt/data
COPY app /opt/app
RUN python3 -c "import json, email, sqlite3; print(1)" > /opt/python
RUN echo {last} > /opt/last
"""


class Builds:
    """A directory to build from, and what builds it."""

    def __init__(self, server):
        self.server = server
        # On the disk of the data directory: what is compared uses one disk.
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="bench-builds-", dir=server.data.parent))
        self.context = self.dir / "context"
        (self.context / "app").mkdir(parents=True)
        for i in range(50):
            (self.context / "app" / f"{i}.txt").write_text(f"{i}\n" * 100)
        self.last = 0

    def close(self):
        shutil.rmtree(self.dir, ignore_errors=True)

    def dockerfile(self, base, last):
        name = self.dir / "Dockerfile"
        name.write_text(DOCKERFILE.format(base=base, last=last))
        return name

    def new(self):
        self.last += 1
        return f"{time.time_ns()}-{self.last}"

    def cay(self, name, *args, context=None):
        """Builds with `cay template build`; returns its lines, each with when it came."""
        begun, lines = time.perf_counter(), []
        process = subprocess.Popen(
            [str(world.CAY), "template", "build", "-t", name, *args, str(context or self.context)],
            env={**os.environ, **self.server.env}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for line in process.stderr:
            lines.append(((time.perf_counter() - begun) * 1000, line.rstrip()))
        assert process.wait() == 0, lines
        return lines

    def ours(self, name, last, *args):
        return self.cay(name, "-f", str(self.dockerfile("e2bdev/base", last)), *args)

    def newest_image(self):
        return max((self.server.data / "images").glob("*.erofs"), key=lambda image: image.stat().st_mtime)

    def forget(self, name):
        """Removes a template with its snapshot and its root image; its layers stay."""
        for args in (["template", "delete", name], ["gc"]):
            subprocess.run([str(world.CAY), *args], env={**os.environ, **self.server.env}, capture_output=True)


def steps_run(lines):
    """The steps of a log that ran."""
    return [line for _, line in lines if "[builder" in line and "CACHED" not in line and "]: " not in line]


def known(b):
    """Builds with all layers known, without and with the snapshot; a change in the last RUN."""
    again = Figure("build, all layers known, new root image and snapshot", "ms", lambda _: 3000, "3 s to ready (raw: cp of the root image)")
    same = Figure("the same build again, nothing changed", "ms", lambda _: 3000, "the finished snapshot is used")
    change = Figure("a change in the last RUN", "ms", None, "only that step runs")
    last = b.new()
    b.ours("bench-known", last)
    for _ in range(BUILDS):
        b.forget("bench-known")
        logs = []
        again.ours.append(ms(lambda: logs.append(b.ours("bench-known", last))))
        assert not steps_run(logs[0]) and not any("CACHED [finalize]" in line for _, line in logs[0]), logs
        again.raw.append(ms(lambda: subprocess.run(["cp", "--reflink=auto", str(b.newest_image()), str(b.dir / "image")], check=True)))
        (b.dir / "image").unlink()
        same.ours.append(ms(lambda: logs.append(b.ours("bench-known", last))))
        assert any("CACHED [finalize]" in line for _, line in logs[1]), logs
        last = b.new()
        change.ours.append(ms(lambda: logs.append(b.ours("bench-known", last))))
        # The end of the Dockerfile, E2B's user and directory, is looked up anew and runs nothing.
        assert sum("RUN" in line or "COPY" in line for line in steps_run(logs[2])) == 1, logs
    return [again, same, change]


def copy(b):
    """From the start of the command to the end of the step, packing and sending included."""
    figure = Figure(f"COPY of {FILES} files, {FILES * EACH // 1_000_000} MB", "ms", lambda raw: 3 * raw, "3 × tar x on the host", at=0.5)
    step = Figure("of which the step", "ms", None, "")
    context = b.dir / "many"
    for i in range(FILES):
        file = context / "tree" / f"d{i // 100}" / f"f{i}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(hashlib.sha256(str(i).encode()).digest() * (EACH // 32))
    archive = b.dir / "many.tar"
    with tarfile.open(archive, "w") as out:
        out.add(context / "tree", "tree")
    for turn in range(BUILDS + 1):
        (context / "Dockerfile").write_text(f"FROM e2bdev/base\nCOPY tree /opt/{b.new()}\n")
        lines = b.cay("bench-copy", context=context)
        at = next(i for i, (_, line) in enumerate(lines) if "COPY" in line)
        target = b.dir / f"out{turn}"
        target.mkdir()
        raw = ms(lambda: subprocess.run(["tar", "xf", str(archive), "-C", str(target)], check=True))
        shutil.rmtree(target)
        if turn:
            figure.ours.append(round(lines[at + 1][0], 2))
            step.ours.append(round(lines[at + 1][0] - lines[at][0], 2))
            figure.raw.append(raw)
    return [figure, step]


def used(directory):
    """The bytes of the disk taken below a directory; blocks that files share are counted once where the
    file system can share, by what it has left."""
    if subprocess.run(["stat", "-f", "-c", "%T", str(directory)], capture_output=True, text=True).stdout.strip() in ("xfs", "btrfs"):
        st = os.statvfs(directory)
        return (st.f_blocks - st.f_bfree) * st.f_frsize
    return int(subprocess.run(["du", "-s", "-B1", str(directory)], check=True, capture_output=True, text=True).stdout.split()[0])


# The files that `pip install` of a package leaves, without an index to ask.
PACKAGE = """FROM e2bdev/base
USER root
RUN mkdir -p /usr/local/lib/python3.11/dist-packages/pkg && cd /usr/local/lib/python3.11/dist-packages/pkg && \
    for i in $(seq 50); do head -c 100000 /dev/urandom > m$i.bin; done; echo {new} > __init__.py
"""


def disk(b):
    """Without a start command: what is measured is files, not what runs."""
    child = Figure("disk of a second template with a package of 5 MB more", "MB", lambda _: 20, "that package, its layer, and a snapshot")
    second = Figure("disk of a second sandbox", "MB", lambda _: 5, "what it writes")
    os.sync()
    before = used(b.server.data)
    (b.dir / "package").mkdir(exist_ok=True)
    (b.dir / "package" / "Dockerfile").write_text(PACKAGE.format(new=b.new()))
    b.cay("bench-package", context=b.dir / "package")
    os.sync()
    child.ours.append(round((used(b.server.data) - before) / 1e6, 1))
    first = e2b.Sandbox.create("bench-package", timeout=300)
    os.sync()
    before = used(b.server.data)
    other = e2b.Sandbox.create("bench-package", timeout=300)
    os.sync()
    second.ours.append(round((used(b.server.data) - before) / 1e6, 1))
    for sandbox in (first, other):
        sandbox.kill()
    return [child, second]


class Buildah:
    """Debian's buildah, with storage of its own, and the root of `base` as an image."""

    def __init__(self, b):
        self.b, self.dir = b, b.dir / "buildah"
        self.dir.mkdir()
        flags = ["--root", str(self.dir / "root"), "--runroot", str(self.dir / "run")]
        self.command = ["buildah", *flags, "--storage-driver", "overlay"]
        if subprocess.run([*self.command, "info"], capture_output=True).returncode:
            self.command = ["buildah", *flags, "--storage-driver", "vfs"]
        self.layout()

    def layout(self):
        """Writes the smallest tree that templates were made of, base's, as an OCI layout, and takes it in."""
        trees = [t for t in (self.b.server.data / "trees").iterdir() if (t / "etc").is_dir()]
        tree = min(trees, key=lambda t: int(subprocess.run(["du", "-s", str(t)], check=True, capture_output=True, text=True).stdout.split()[0]))
        out = self.dir / "layout"
        (out / "blobs" / "sha256").mkdir(parents=True)
        layer = out / "layer.tar"
        subprocess.run(["tar", "cf", str(layer), "--numeric-owner", "--exclude=./dev/*", "-C", str(tree), "."], check=True)
        with open(layer, "rb") as f:
            digest = hashlib.file_digest(f, "sha256").hexdigest()
        size = layer.stat().st_size
        layer.rename(out / "blobs" / "sha256" / digest)

        def blob(value):
            text = json.dumps(value).encode()
            name = hashlib.sha256(text).hexdigest()
            (out / "blobs" / "sha256" / name).write_bytes(text)
            return {"digest": "sha256:" + name, "size": len(text)}

        config = blob({"architecture": "amd64", "os": "linux", "config": {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"]},
                       "rootfs": {"type": "layers", "diff_ids": ["sha256:" + digest]}, "history": [{"created_by": "base"}]})
        manifest = blob({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json", **config},
            "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": "sha256:" + digest, "size": size}]})
        (out / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        (out / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [
            {"mediaType": "application/vnd.oci.image.manifest.v1+json", **manifest}]}))
        policy = self.dir / "policy.json"
        policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
        self.image = subprocess.run(
            [*self.command, "pull", "--signature-policy", str(policy), f"oci:{out}"],
            check=True, capture_output=True, text=True).stdout.split()[-1]
        self.policy = policy
        shutil.rmtree(out)

    def build(self, last, *args):
        subprocess.run(
            [*self.command, "bud", "--isolation", "chroot", "--network", "host", "--pull-never", "--layers", "-q", *args,
             "--signature-policy", str(self.policy), "-f", str(self.b.dockerfile(self.image, last)), str(self.b.context)],
            check=True, capture_output=True, text=True)

    def close(self):
        subprocess.run([*self.command, "rmi", "-a", "-f"], capture_output=True)


def beside_buildah(b):
    if not shutil.which("buildah"):
        subprocess.run(["apt-get", "install", "-y", "--no-install-recommends", "buildah"],
                       capture_output=True, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
    if not shutil.which("buildah"):
        print("beside buildah: skipped, it is not installed and apt could not", flush=True)
        return []
    cold = Figure("cold build of a Dockerfile", "ms", lambda raw: 3 * raw, "3 × buildah's")
    cached = Figure("cached build of a Dockerfile", "ms", lambda raw: raw, "buildah's")
    other = Buildah(b)
    try:
        for turn in range(BUILDS + 1):
            last = b.new()
            ours = ms(lambda: b.ours("bench-beside", last, "--no-cache"))
            theirs = ms(lambda: other.build(last, "--no-cache"))
            ours_again = ms(lambda: b.ours("bench-beside", last))
            other.build(last)  # --no-cache of buildah's keeps no layer to find
            theirs_again = ms(lambda: other.build(last))
            if turn:
                cold.ours.append(ours)
                cold.raw.append(theirs)
                cached.ours.append(ours_again)
                cached.raw.append(theirs_again)
    finally:
        other.close()
    return [cold, cached]


def measure(server):
    """Yields every row."""
    b = Builds(server)
    try:
        for work in (known, copy, disk, beside_buildah):
            yield from work(b)
    finally:
        for name in ("bench-known", "bench-copy", "bench-package", "bench-beside"):
            b.forget(name)
        b.close()
