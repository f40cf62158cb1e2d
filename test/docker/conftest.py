"""Sandboxes with Docker; run.py gives the environment."""

import e2b
import pytest

# An image of a root that holds busybox alone: no registry is asked.
IMAGE = """
mkdir -p /tmp/root/bin /tmp/root/www && cp /bin/busybox /tmp/root/bin
for name in sh ls cat echo sleep httpd wget nslookup ping dd head rm touch id mount; do ln -sf busybox /tmp/root/bin/$name; done
echo served >/tmp/root/www/index.html
tar -C /tmp/root -c . | docker import - box
"""


@pytest.fixture
def create():
    """Creates sandboxes that the test does not have to kill."""
    made = []

    def make(template="docker", **kw):
        box = e2b.Sandbox.create(template, **{"timeout": 1800, **kw})
        made.append(box)
        return box

    yield make
    for box in made:
        box.kill()


@pytest.fixture
def docker(create):
    """A sandbox whose Docker has an image, called box."""
    made = create()
    made.commands.run(IMAGE, timeout=120)
    return made
