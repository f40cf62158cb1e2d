"""Kills processes of the engine at random, as a crash of gVisor or the kernel's
memory killer would."""

import json
import os
import pathlib
import re
import signal
import threading

INSTANCE = re.compile(rb"^n[0-9a-z]{20}$")


class Killer:
    """Ends engine processes of one server and remembers whose they were."""

    def __init__(self, server, random):
        self.server, self.random = server, random
        self.lock = threading.Lock()
        self.victims = set()  # sandboxes that lost a process
        self.kills = {}

    def processes(self):
        """The processes that run, as (pid, what, instance)."""
        run = self.server.env["CAY_RUN_DIR"].encode() + b"/"
        for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().split(b"\0")
            except OSError:
                continue
            instance = next((w for w in words if INSTANCE.match(w)), None)
            if instance is None or not any(run in w for w in words):
                continue
            what = next((w for w in (b"checkpoint", b"restore", b"fscheckpoint", b"pause", b"resume", b"gofer", b"boot") if w in words), b"other")
            yield int(path.parent.name), what.decode(), instance.decode()

    def owner(self, instance):
        """The sandbox of an instance; none while its journal is half written,
        and no record knows of that one."""
        try:
            journal = self.server.data / "instances" / instance / "spec.json"
            return json.loads(journal.read_text())["spec"]["sandbox"]
        except (OSError, ValueError):
            return None

    def kill_one(self):
        """One process: of a command under way where there is one, as these are
        the rare moments."""
        all = list(self.processes())
        commands = [p for p in all if p[1] not in ("boot", "gofer")]
        choice = commands if commands and self.random.random() < 0.7 else all
        if not choice:
            return
        pid, what, instance = self.random.choice(choice)
        sandbox = self.owner(instance)
        with self.lock:  # before it dies: a client may find it dead at once
            self.victims.add(sandbox)
            self.kills[what] = self.kills.get(what, 0) + 1
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def hurt(self, sandbox):
        with self.lock:
            return sandbox in self.victims
