"""The files kept of a sandbox, and how to tell one boot from another."""

import world

BOOT_ID = "cat /proc/sys/kernel/random/boot_id"


def saved_as(box):
    """Returns the directory of the newest snapshot of a sandbox."""
    records = [(text(p), p) for data in world.Server().all_data() for p in data.glob("snapshots/*/snapshot.json")]
    return max((p for found, p in records if box.sandbox_id in found), key=lambda p: p.stat().st_mtime).parent


def text(path):
    """The content of a file; nothing when it goes this moment, as others' snapshots do."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
