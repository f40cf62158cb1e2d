"""Eight branches of one live Python kernel; the best is promoted."""

import json
import os
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from e2b_code_interpreter import Sandbox

BRANCHES = int(os.environ.get("BRANCHES", "8"))
API = os.environ.get("E2B_API_URL") or "https://api." + os.environ["E2B_DOMAIN"]


def cay(method, path, body=None):
    request = urllib.request.Request(
        API + "/cay/v1" + path, method=method,
        data=json.dumps(body or {}).encode() if method != "GET" else None,
        headers={"X-API-Key": os.environ["E2B_API_KEY"], "Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as reply:
        return json.loads(reply.read() or "null")


# The parent does once what every branch would have to repeat.
PREPARE = """
import numpy as np
random = np.random.default_rng(7)
x = np.linspace(-3, 3, 400)
y = np.sin(2 * x) + 0.3 * x + random.normal(0, 0.05, x.size)
"""

# Each branch fits another model to the data that is in memory.
TRY = """
degree = {degree}
model = np.polynomial.Polynomial.fit(x[::2], y[::2], degree)
error = float(np.mean((model(x[1::2]) - y[1::2]) ** 2))
print(error)
"""


def attempt(branch, degree):
    result = branch.run_code(TRY.format(degree=degree))
    if result.error:
        raise RuntimeError(result.error.value)
    return float(result.logs.stdout[0])


def main():
    parent = Sandbox.create(timeout=900)
    branches = []
    try:
        parent.run_code(PREPARE)
        start = cay("POST", f"/sandboxes/{parent.sandbox_id}/checkpoints", {})["checkpointID"]
        forks = cay("POST", f"/checkpoints/{start}/fork", {"count": BRANCHES, "timeout": 900})
        branches = [Sandbox.connect(f["sandbox"]["sandboxID"], timeout=900) for f in forks]

        with ThreadPoolExecutor(BRANCHES) as pool:
            errors = list(pool.map(attempt, branches, range(1, 2 * BRANCHES, 2)))
        for branch, error in zip(branches, errors):
            print(f"{branch.sandbox_id}  error {error:.5f}")

        best = branches[errors.index(min(errors))]
        cay("POST", f"/sandboxes/{parent.sandbox_id}/promote", {"branch": best.sandbox_id})
        degree = parent.run_code("degree").text
        print(f"the parent goes on as {best.sandbox_id}: degree {degree}, error {min(errors):.5f}")

        # It is still possible to begin again, from the same data.
        cay("POST", f"/sandboxes/{parent.sandbox_id}/rollback", {"checkpointID": start})
        print("and back at the start:", parent.run_code("'model' in globals()").text)
    finally:
        for sandbox in [*branches, parent]:
            sandbox.kill()


if __name__ == "__main__":
    main()
