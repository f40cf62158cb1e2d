"""Prints a bill of materials (CycloneDX) of a release: scripts/bill.py VERSION CAY [EMBEDDED...]

The modules are read from the binaries themselves, of which cay embeds the others.
"""

import hashlib
import json
import subprocess
import sys
import urllib.parse
import uuid

version, cay, *embedded = sys.argv[1:]


def modules(path):
    """The Go release and the modules that a binary is linked from."""
    text = subprocess.run(["go", "version", "-m", "-json", path], check=True, capture_output=True).stdout
    info = json.loads(text)
    yield "stdlib", info["GoVersion"].removeprefix("go")
    for dep in info["Deps"]:
        dep = dep.get("Replace", dep)
        if not dep["Path"].startswith("/"):  # a directory is gVisor with our patches, below
            yield dep["Path"], dep["Version"]


def patched():
    """The modules that an engine's build replaces with patched sources, as they are pinned."""
    pinned = json.loads(subprocess.run(["go", "mod", "edit", "-json", "cmd/cay-runsc/go.mod"], check=True, capture_output=True).stdout)
    for dep in pinned["Require"]:
        if dep["Path"] == "gvisor.dev/gvisor":
            yield dep["Path"], dep["Version"]


def component(name, at):
    url = f"pkg:golang/{urllib.parse.quote(name)}@{urllib.parse.quote(at)}"
    return {"type": "library", "bom-ref": url, "name": name, "version": at, "purl": url}


found = set(patched())
for path in [cay, *embedded]:
    found.update(modules(path))
with open(cay, "rb") as f:
    digest = hashlib.file_digest(f, "sha256").hexdigest()
json.dump(
    {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, digest)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": f"pkg:golang/github.com/cay-run/cay@{version}",
                "name": "cay",
                "version": version,
                "hashes": [{"alg": "SHA-256", "content": digest}],
            }
        },
        "components": [component(*c) for c in sorted(found)],
    },
    sys.stdout,
    indent=2,
)
print()
