"""The stand-in model: aimock, a server of the models' wires, which answers by a file of rules. Also the packages that examples name."""

import hashlib
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

import world

ANSWERS = pathlib.Path(__file__).resolve().parent / "answers"
BUILD = world.ROOT / "build" / "examples"
STANDIN = "@copilotkit/aimock@1.43.0"


class Failed(Exception):
    pass


def quietly(*command, cwd=None):
    done = subprocess.run([str(word) for word in command], cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        raise Failed(f"{' '.join(map(str, command))}: {done.stdout[-2000:]}")


def packages(command):
    """The directory that has what an install command names, made once a command."""
    where = BUILD / hashlib.sha256(command.encode()).hexdigest()[:12]
    if (where / ".made").exists():
        return where
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir(parents=True)
    words = command.replace('"', "").split()
    if words[:2] == ["pip", "install"]:
        quietly(sys.executable, "-m", "venv", where)
        quietly(where / "bin" / "pip", "install", "-q", "--no-compile", *words[2:])
    else:
        assert words[:2] == ["npm", "install"], command
        (where / "package.json").write_text('{"private": true, "type": "module"}')
        quietly("npm", "install", "--no-audit", "--no-fund", "--loglevel=error", *words[2:], cwd=where)
    (where / ".made").touch()
    return where


class StandIn:
    """The model of one example."""

    def __init__(self, answers, host="127.0.0.1"):
        with socket.socket() as free:
            free.bind((host, 0))
            port = free.getsockname()[1]
        self.url = f"http://{host}:{port}"
        program = packages(f"npm install {STANDIN}") / "node_modules" / "@copilotkit" / "aimock" / "dist" / "cli.js"
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            ["node", str(program), "--host", host, "--port", str(port), "--fixtures", str(answers), "--strict", "--log-level", "warn", "--validate-on-load"],
            env={**os.environ, "AIMOCK_STRICT_TURN_INDEX": "1"}, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)

    def __enter__(self):
        for _ in range(200):
            try:
                with urllib.request.urlopen(self.url + "/health", timeout=5):
                    return self
            except OSError:
                if self.process.poll() is not None:
                    break
                time.sleep(0.05)
        raise Failed("the stand-in model does not start: " + self.said())

    def check(self):
        """It has said all that it has: the example prints that."""

    def said(self):
        self.log.seek(0)
        return self.log.read()[-2000:]

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.log.close()
