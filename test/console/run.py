"""The console in Chromium, on a real server with real sandboxes: real.py.

    make test-console             after the flows on a machine in memory
    CAY_CONSOLE_RUN=terminal …    only tests whose names match
"""

import contextlib
import pathlib
import ssl
import subprocess
import sys
import tempfile

import world
from internet import NAMES, Internet, Names, certificate


@contextlib.contextmanager
def an_internet(env):
    """Two names that answer over TLS, which a server of this environment trusts."""
    with tempfile.TemporaryDirectory() as made:
        made = pathlib.Path(made)
        ca, leaf = certificate(made)
        bundle = made / "bundle.pem"
        bundle.write_text(pathlib.Path(ssl.get_default_verify_paths().cafile or "/etc/ssl/certs/ca-certificates.crt").read_text() + ca.read_text())
        with Internet(str(leaf)) as internet:
            names = Names(dict(zip(NAMES, internet.addresses)))
            env.update(CAY_RESOLVERS=names.address, SSL_CERT_FILE=str(bundle))
            yield
            names.close()


def main():
    server = world.Server()
    # The server knows no variables of tests.
    ours = {name: server.env.pop(name) for name in ("CAY_CONSOLE_RUN", "CAY_CONSOLE_SHOTS") if name in server.env}
    if server.healthy():
        sys.exit(f"something already answers on {server.url}: end it first")
    server.start()  # which builds its templates, from the real internet
    try:
        server.stop()
        with an_internet(server.env):
            server.start()
            run = ours.get("CAY_CONSOLE_RUN", "all")
            sys.exit(subprocess.call(
                [sys.executable, "-m", "pytest", "-q", "-rP", "--tb=short", "-p", "no:cacheprovider", "--durations=9",
                 *(["-k", run] if run != "all" else []), "real.py"],
                cwd=world.ROOT / "test" / "console",
                env={**server.env, **ours, "CONSOLE_API": server.url, "CONSOLE_KEY": server.new_key(), "CONSOLE_DECIDER": server.new_key(),
                     "PYTHONPATH": f"{world.ROOT}/test/e2e:{world.ROOT}/test/e2e/python", "PYTHONDONTWRITEBYTECODE": "1"}))
    finally:
        server.cay("down", check=False)


if __name__ == "__main__":
    main()
