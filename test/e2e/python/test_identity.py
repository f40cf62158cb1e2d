"""The state that clones share, and that which they must not."""

import concurrent.futures
import json
import time

import e2b_code_interpreter

import cayv1

# A kernel drew from it before it was cloned; its siblings must not repeat it.
DRAW = """
import json, os, random, secrets, ssl, time, uuid
import numpy
print(json.dumps({
    "random": random.getrandbits(128), "numpy": numpy.random.bytes(16).hex(), "openssl": ssl.RAND_bytes(16).hex(),
    "secrets": secrets.token_hex(16), "getrandom": os.getrandom(16).hex(), "uuid": str(uuid.uuid4()),
    "shuffled": "".join(random.sample("abcdefghijklmnopqrstuvwxyz0123456789", 30)),
    "machine": open("/etc/machine-id").read(), "generation": open("/run/cay/generation").read(),
    "sandbox": open("/run/e2b/.E2B_SANDBOX_ID").read(), "boot": open("/proc/sys/kernel/random/boot_id").read(),
}), time.time())
"""
DRAW_JS = """
const crypto = require('crypto')
console.log(JSON.stringify([Math.random(), crypto.randomBytes(16).toString('hex'), crypto.randomUUID(),
  crypto.randomInt(2 ** 47), String(globalThis.crypto.getRandomValues(new Uint32Array(4))), globalThis.crypto.randomUUID()]))
"""


def draw(box):
    words, clock = box.run_code(DRAW).logs.stdout[0].rsplit(" ", 1)
    drawn = json.loads(words)
    drawn["token"] = box._envd_access_token
    return drawn, float(clock), time.time(), json.loads(box.run_code(DRAW_JS, language="javascript").logs.stdout[0])


def test_twenty_clones_share_nothing(create):
    box = create(kind=e2b_code_interpreter.Sandbox)
    box.run_code("import random, numpy, ssl; random.random(), numpy.random.random(), ssl.RAND_bytes(1)")
    box.run_code("Math.random(); require('crypto').randomUUID()", language="javascript")
    forks = box.fork(count=20, timeout=600)
    try:
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            draws = list(pool.map(draw, forks))
        for what in draws[0][0]:
            values = [d[0][what] for d in draws]
            assert len(set(values)) == len(values), f"{what} repeats: {values}"
        for i, what in enumerate(("Math.random", "randomBytes", "randomUUID", "randomInt", "getRandomValues", "crypto.randomUUID")):
            values = [d[3][i] for d in draws]
            assert len(set(values)) == len(values), f"node's {what} repeats: {values}"
        for _, inside, outside, _ in draws:
            assert abs(inside - outside) < 60  # not the time of the snapshot
    finally:
        for fork in forks:
            fork.kill()


def test_own_seeds_survive(create):
    box = create(kind=e2b_code_interpreter.Sandbox)
    box.run_code("import random, numpy; random.seed(42); numpy.random.seed(42)")
    want = "import random as r, numpy as n; a = r.Random(42); b = n.random.RandomState(42); "
    box.pause()
    box = e2b_code_interpreter.Sandbox.connect(box.sandbox_id, timeout=300)
    check = want + "(random.random() == a.random(), bool(numpy.random.random() == b.random_sample()))"
    assert box.run_code(check).text == "(True, True)"


def test_on_clone_command(create):
    box = create()
    box.files.write("/tmp/on-clone", '#!/bin/sh\ncp "$1" /run/cay/seen\n')
    box.commands.run("mkdir -p /etc/cay && install -m 755 /tmp/on-clone /etc/cay/on-clone", user="root")
    fork = box.fork(timeout=300)[0]
    try:
        seen = fork.commands.run("cat /run/cay/seen /run/cay/generation").stdout.split()
        assert len(seen) == 2 and seen[0] == seen[1]
        assert box.commands.run("cat /run/cay/generation").stdout != seen[0] + "\n"
        assert box.commands.run("test -e /run/cay/seen || echo none").stdout == "none\n"
        node = cayv1.checkpoint(box, kind="files")  # a clone that boots is one too
        made = cayv1.call("POST", f"/checkpoints/{node['checkpointID']}/fork", {})[0]["sandbox"]["sandboxID"]
        booted = e2b_code_interpreter.Sandbox.connect(made)
        again = booted.commands.run("cat /run/cay/seen /run/cay/generation").stdout.split()
        booted.kill()
        assert len(again) == 2 and again[0] == again[1] != seen[0]
    finally:
        fork.kill()
