"""Resumes of sandboxes whose snapshots are in a bucket alone: started while they
arrive, beside started when all is there.

    BENCH_PARTS=bucket make bench
    BENCH_BUCKET_MB="1 100 500"  memory that the guest has filled
    BENCH_BUCKET_N=5             turns

The bucket is a directory on the same disk: what is read from it costs a
decompression and a checksum, and no network. Raw has the process taken away that
reads a snapshot on its way here; a server waits for all of it then.
"""

import os
import shutil
import time

import e2b

from figure import Figure, ms
from life import Rest

SIZES = [int(n) for n in os.environ.get("BENCH_BUCKET_MB", "1 100 500").split()]
N = int(os.environ.get("BENCH_BUCKET_N", "5"))

FILL = """
import hashlib, os, sys, time
data = bytearray(os.urandom(%d << 20))
open("/tmp/sum", "w").write(hashlib.sha256(data).hexdigest())
while True:
    if os.path.exists("/tmp/ask"):
        os.remove("/tmp/ask")
        open("/tmp/answer", "w").write(hashlib.sha256(data).hexdigest())
    time.sleep(0.05)
"""


def wait(what, least=120):
    end = time.monotonic() + least
    while not what():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.05)


def reader(server):
    (path,) = (server.data / "engines").glob("*/gvisor-bin/checkpointgofer")
    return path


def measure(server):
    bucket = server.data.parent / "bucket"
    shutil.rmtree(bucket, ignore_errors=True)
    server.stop()
    server.env.update(CAY_POOL_MEMORY="0", CAY_BUCKET=str(bucket))
    server.start()
    rest = Rest(server)
    try:
        for size in SIZES:
            figure = Figure(f"resume from a bucket, {size} MB filled, until a command has run", "ms", lambda raw: raw, "that of a whole snapshot")
            box = e2b.Sandbox.create(timeout=3600, template="base")
            box.files.write("/tmp/fill.py", FILL % size)
            box.commands.run("python3 /tmp/fill.py", background=True, timeout=0)
            wait(lambda: box.files.exists("/tmp/sum"))
            for turn in range(2 * N + 2):
                before = set((server.data / "snapshots").iterdir())
                rest.call("POST", f"/sandboxes/{box.sandbox_id}/pause")
                (at,) = {p for p in set((server.data / "snapshots").iterdir()) - before if not p.name.startswith(".")}
                record = bucket / "snapshots" / at.name / "record"
                wait(record.exists)
                time.sleep(1)  # its files beside its memory are there
                shutil.rmtree(at)
                whole = turn % 2 == 1
                if whole:
                    program = reader(server)
                    aside = program.rename(program.with_suffix(".aside"))

                def resume():
                    e2b.Sandbox.connect(box.sandbox_id, timeout=3600).commands.run("true")

                took = ms(resume)
                if whole:
                    aside.rename(program)
                if turn > 1:
                    (figure.raw if whole else figure.ours).append(took)
                box.commands.run("rm -f /tmp/answer; touch /tmp/ask; until [ -s /tmp/answer ]; do sleep 0.05; done; cmp /tmp/sum /tmp/answer", timeout=120)
            box.kill()
            yield figure
    finally:
        server.stop()
        server.env.pop("CAY_BUCKET")
        server.env["CAY_POOL_MEMORY"] = "5%"
        server.start()
        shutil.rmtree(bucket, ignore_errors=True)
