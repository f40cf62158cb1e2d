"""Packages: pip through the package cache, beside the same without it.

Both sandboxes are of the same server. A policy that denies an address keeps
the second from the cache: PyPI itself answers it. This needs PyPI.

    BENCH_PACKAGES=10            samples of each
    BENCH_PACKAGE=numpy          what is installed
"""

import os

import e2b

from figure import Figure, ms

COUNT = int(os.environ.get("BENCH_PACKAGES", "10"))
PACKAGE = os.environ.get("BENCH_PACKAGE", "numpy")
INSTALL = f"pip install --disable-pip-version-check --no-cache-dir --no-deps --target $(mktemp -d) {PACKAGE}"
FETCH = f"pip download --disable-pip-version-check --no-cache-dir --no-deps --dest $(mktemp -d) {PACKAGE}"
SETTINGS = {"CAY_PACKAGE_CACHE": "1GiB"}
NOBODY = "192.88.99.99"  # an address that is in no use


def measure(server):
    cached = e2b.Sandbox.create(timeout=3600)
    direct = e2b.Sandbox.create(timeout=3600, network={"deny_out": [NOBODY]})
    try:
        for name, line in (f"pip download {PACKAGE} again", FETCH), (f"pip install {PACKAGE} again", INSTALL):
            figure = Figure(name, "ms", lambda raw: raw, "not slower than from PyPI", digits=0)
            for sandbox in cached, direct:
                sandbox.commands.run(line, timeout=300)
            for _ in range(COUNT):
                figure.ours.append(ms(lambda: cached.commands.run(line, timeout=300)))
                figure.raw.append(ms(lambda: direct.commands.run(line, timeout=300)))
            yield figure
    finally:
        cached.kill()
        direct.kill()
