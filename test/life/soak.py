"""Pauses and resumes one sandbox many times, with a hash over memory and file.

    make soak               1,000 cycles, and 100 without memory
    SOAK_CYCLES=50 make soak

A process inside holds random memory and a file and answers with the hash of
both; it must be the same process with the same hash after every resume.
"""

import concurrent.futures
import os
import statistics
import sys
import time

import e2b

import world

CYCLES = int(os.environ.get("SOAK_CYCLES", "1000"))

HOLDER = """
import hashlib, http.server, os
memory = os.urandom(20 << 20)
open("/home/user/file", "wb").write(os.urandom(5 << 20))
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        text = hashlib.sha256(memory + open("/home/user/file", "rb").read()).hexdigest() + f" {os.getpid()}"
        self.send_response(200); self.end_headers(); self.wfile.write(text.encode())
    def log_message(self, *args): pass
http.server.HTTPServer(("127.0.0.1", 8000), Answer).serve_forever()
"""


def files_alone(sandbox, cycles):
    """Pauses and boots it from its files, with a hash over them, and counts differences."""
    hashed = "find /home/user /etc -type f ! -name machine-id | sort | xargs -d '\\n' sha256sum | sha256sum"
    first, different, boots = sandbox.commands.run(hashed, user="root").stdout, 0, []
    for _ in range(cycles):
        sandbox.pause(mode="filesystem")
        begun = time.perf_counter()
        sandbox = e2b.Sandbox.connect(sandbox.sandbox_id, timeout=3600)
        boots.append(time.perf_counter() - begun)
        if sandbox.commands.run(hashed, user="root").stdout != first:
            different += 1
    return different, boots


# A connection that draws the port of one that ended within the minute before
# the pause may get no answer (docs/use/life.md), so curl asks again from another.
ASK = "curl -s --connect-timeout 5 --retry 20 --retry-connrefused --retry-delay 1 http://127.0.0.1:8000/"
PATIENCE = 30  # seconds after which an answer is late
LOOK = """ps -eLo pid,lwp,stat,etime,time,wchan:20,args; cat /proc/net/tcp
for p in /proc/[0-9]*; do echo $p; ls -l $p/fd 2>/dev/null | awk '{print $9,$10,$11}'; done"""


def answer(sandbox, cycle):
    """The output of the process; nothing, with what went on inside meanwhile, when
    it says nothing within a minute, which counts as different."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(lambda: sandbox.commands.run(ASK).stdout)
        try:
            return asked.result(PATIENCE)
        except concurrent.futures.TimeoutError:
            inside = sandbox.commands.run(LOOK, user="root")
            print(f"cycle {cycle}: no answer in {PATIENCE} s; inside:\n{inside.stdout}", flush=True)
        try:
            return asked.result()
        except e2b.TimeoutException:
            return None


def main():
    server = world.aside("soak", 7182, "10.216.0.0/16", "cysok")
    server.start()
    os.environ.update(server.sdk_env(server.new_key()))
    sandbox = e2b.Sandbox.create(timeout=3600)
    sandbox.files.write("/home/user/holder.py", HOLDER)
    sandbox.commands.run("python3 /home/user/holder.py", background=True, timeout=0)
    first, different, pauses, resumes = sandbox.commands.run(ASK).stdout, 0, [], []
    for cycle in range(1, CYCLES + 1):
        begun = time.perf_counter()
        sandbox.pause()
        pauses.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        sandbox = e2b.Sandbox.connect(sandbox.sandbox_id, timeout=3600)
        resumes.append(time.perf_counter() - begun)
        if answer(sandbox, cycle) != first:
            different += 1
        if cycle % 100 == 0:
            print(f"{cycle} cycles, {different} different", flush=True)
    lost, boots = files_alone(sandbox, max(1, CYCLES // 10))
    different += lost
    sandbox.kill()
    server.cay("down")
    print(f"{CYCLES} cycles, {different} different; pause {statistics.median(pauses) * 1000:.0f} ms, "
          f"resume {statistics.median(resumes) * 1000:.0f} ms (medians); of {len(boots)} without memory {lost}, "
          f"boot {statistics.median(boots) * 1000:.0f} ms")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
