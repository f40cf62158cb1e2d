"""Sandboxes with Docker; run.py gives the environment."""

import os
import pathlib

import e2b
import pytest

import world

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


# Serves an image of busybox as registries do.
REGISTRY = """
import registry, threading
served = registry.Registry("0.0.0.0", 5000)
served.add("team/app:1", registry.tiny("/bin/busybox"), Cmd=["cat", "/greeting"])
threading.Event().wait()
"""


@pytest.fixture
def image(create):
    """The name of an image in a registry that another sandbox is."""
    host = create()  # it has busybox
    host.files.write("/home/user/registry.py", (world.ROOT / "test" / "e2e" / "registry.py").read_text())
    host.files.write("/home/user/serve.py", REGISTRY)
    host.commands.run("python3 serve.py", background=True, timeout=0)
    host.commands.run("curl -sf --retry 60 --retry-connrefused --retry-delay 1 http://localhost:5000/v2/")
    return f"5000-{host.sandbox_id}.{os.environ['CAY_DOMAIN']}/team/app:1"


@pytest.fixture
def server():
    """The running server; a test that ends it has started it again by its end."""
    made = world.Server()
    made.env, made.data = dict(os.environ), pathlib.Path(os.environ["CAY_DATA_DIR"])
    made.port, made.log = int(made.env["CAY_LISTEN"].rpartition(":")[2]), made.data.parent / "server.log"
    made.process = world.Adopted(int((made.data / "lock").read_text().split()[0]))
    yield made
    if not made.healthy():
        made.start(templates=["base"])
