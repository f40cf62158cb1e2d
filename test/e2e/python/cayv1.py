"""Cay's own routes, over plain HTTP as any program could call them."""

import json
import os
import urllib.error
import urllib.request


class Failed(Exception):
    """An answer that is an error."""

    def __init__(self, status, message):
        super().__init__(f"{status}: {message}")
        self.status, self.message = status, message


def call(method, path, body=None, key=None):
    request = urllib.request.Request(
        os.environ["E2B_API_URL"] + "/cay/v1" + path, method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"X-API-Key": key or os.environ["E2B_API_KEY"], "Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as reply:
            text = reply.read()
            return json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        raise Failed(error.code, json.loads(error.read())["message"]) from None


def checkpoint(box, **body):
    return call("POST", f"/sandboxes/{box.sandbox_id}/checkpoints", body)


def tree(box):
    return call("GET", f"/sandboxes/{box.sandbox_id}/checkpoints")


def rollback(box, node):
    return call("POST", f"/sandboxes/{box.sandbox_id}/rollback", {"checkpointID": node["checkpointID"]})


def undo(box):
    return call("POST", f"/sandboxes/{box.sandbox_id}/undo")


def promote(box, branch):
    return call("POST", f"/sandboxes/{box.sandbox_id}/promote", {"branch": branch.sandbox_id})


def diff(a, b):
    """The differences of two checkpoints, by path."""
    return by_path(call("GET", f"/checkpoints/{a['checkpointID']}/diff?to={b['checkpointID']}"))


def changes(box, since=None):
    """The differences of a sandbox since a checkpoint, by path."""
    query = "?from=" + since["checkpointID"] if since else ""
    return by_path(call("GET", f"/sandboxes/{box.sandbox_id}/diff{query}"))


def by_path(answer):
    assert len(answer["changes"]) == answer["added"] + answer["changed"] + answer["removed"], answer
    return {c["path"]: c for c in answer["changes"]}


def delete_template(name):
    """Deletes a template by the route that SDKs have no method for."""
    request = urllib.request.Request(os.environ["E2B_API_URL"] + "/templates/" + name, method="DELETE", headers={"X-API-Key": os.environ["E2B_API_KEY"]})
    with urllib.request.urlopen(request, timeout=120):
        pass
