"""Runs the end-to-end tests with released SDKs of several ages and says which of their methods are whole.

    run.py                every release of versions.py; writes docs/use/compatibility.md
    run.py oldest         the oldest of each language, as `make test` does; writes nothing
    run.py prepare        none: makes the environments of the oldest
    run.py python-2.0.0 … those releases; writes nothing
    run.py page           writes the page from the results of earlier runs

Each release has an environment of its own below build/compat, made once. The
SDKs reach a server without a domain by its names, as `cay env` says it. Every
failed test is explained in reasons.py, or the run fails.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
E2E = HERE.parent / "e2e"
sys.path.insert(0, str(E2E))

import page  # noqa: E402
import world  # noqa: E402
from reasons import reason_for  # noqa: E402
from versions import JAVASCRIPT, JAVASCRIPT_TESTS, PYTHON, PYTHON_TESTS  # noqa: E402

HOME = world.ROOT / "build" / "compat"
RESULTS = HOME / "results"


def once(directory, key, make):
    """Makes a directory's content once for each key."""
    stamp = directory / ".key"
    if stamp.exists() and stamp.read_text() == key:
        return directory
    subprocess.run(["rm", "-rf", str(directory)], check=True)
    directory.mkdir(parents=True)
    make(directory)
    stamp.write_text(key)
    return directory


def quietly(*command, **kw):
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **kw)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout[-3000:]}")


def python_environment(e2b, interpreter):
    packages = [f"e2b=={e2b}", f"e2b-code-interpreter=={interpreter}",
                "pytest", "pytest-asyncio", "pytest-xdist", "pillow", "pyte", "packaging"]

    def make(directory):
        quietly(sys.executable, "-m", "venv", str(directory))
        quietly(str(directory / "bin" / "pip"), "install", "-q", "--no-compile", *packages)

    return once(HOME / f"python-{e2b}", " ".join(packages), make)


def javascript_environment(e2b, interpreter):
    packages = [f"e2b@{e2b}", f"@e2b/code-interpreter@{interpreter}"]

    def make(directory):
        (directory / "package.json").write_text('{"private":true,"type":"module"}')
        quietly("npm", "install", "--no-audit", "--no-fund", "--loglevel=error", *packages, cwd=directory)

    return once(HOME / f"javascript-{e2b}", " ".join(packages), make)


def python(e2b, interpreter, env):
    """Runs the Python tests; returns {"methods": […], "tests": {name: …}}."""
    home = python_environment(e2b, interpreter)
    out = home / "outcomes.json"
    out.unlink(missing_ok=True)
    env = {**env, "PYTHONPATH": os.pathsep.join([str(HERE), str(E2E)]), "CAY_COMPAT_OUT": str(out)}
    log = (home / "tests.log").open("w")
    subprocess.run(
        [str(home / "bin" / "python"), "-m", "pytest", "-q", "-p", "older", "-p", "no:cacheprovider", "--tb=short",
         "-k", "not every_method", "-n", "2", "--dist", "loadfile", *PYTHON_TESTS],
        cwd=E2E / "python", env=env, stdout=log, stderr=log, check=False)
    if not out.exists():
        sys.exit(f"the tests of Python {e2b} did not end; see {log.name}")
    return json.loads(out.read_text())


NAMED = re.compile(r"^import \{([^}]*)\} from '(e2b|@e2b/code-interpreter)'", re.M)
WHOLE = re.compile(r"^import \* as (\w+) from '(e2b|@e2b/code-interpreter)'", re.M)


def rewritten(text):
    """A test file for an SDK of any age: names that it lacks can be imported, and tests are noted."""
    def names(found):
        label = ", 'code interpreter '" if found[2] != "e2b" else ""
        taken = found[1].replace(" as ", ": ")
        alias = "sdk" + str(found.start())
        return f"import * as {alias} from '{found[2]}'\nconst {{{taken}}} = older({alias}{label})"

    text = NAMED.sub(names, text)
    text = WHOLE.sub(lambda found: f"import * as {found[1]}$ from '{found[2]}'\nconst {found[1]} = older({found[1]}$)", text)
    return "import { older } from './noted.mjs'\n" + text.replace("from 'node:test'", "from './noted.mjs'")


def javascript(e2b, interpreter, env):
    """Runs the JavaScript tests, copied beside the packages; returns what python does."""
    home = javascript_environment(e2b, interpreter)
    tests = home / "tests"
    tests.mkdir(exist_ok=True)
    for old in tests.iterdir():
        old.unlink()
    (tests / "noted.mjs").write_bytes((HERE / "noted.mjs").read_bytes())
    for file in (E2E / "js").glob("*.mjs"):
        (tests / file.name).write_text(rewritten(file.read_text()))
    env = {**env, "CAY_COMPAT_OUT": str(tests)}
    all_of_them = {"methods": set(), "tests": {}}
    log = (home / "tests.log").open("w")

    def run_file(name):
        # Connections that the SDK keeps open would hold the process for seconds.
        subprocess.run(["node", "--test-force-exit", name], cwd=tests, env=env, stdout=log, stderr=log, check=False)
        return tests / f"{name}.json"

    with concurrent.futures.ThreadPoolExecutor(2) as pool:  # as many as the Python tests run
        outs = list(pool.map(run_file, JAVASCRIPT_TESTS))
    for name, out in zip(JAVASCRIPT_TESTS, outs):
        if not out.exists():
            sys.exit(f"{name} with JavaScript {e2b} did not end; see {log.name}")
        said = json.loads(out.read_text())
        all_of_them["methods"] |= set(said["methods"])
        for one in said["tests"]:
            if one["name"] != "every method was called":
                all_of_them["tests"][f"{name}::{one.pop('name')}"] = one
    return {**all_of_them, "methods": sorted(all_of_them["methods"])}


RUNS = {
    **{f"python-{v[0]}": (python, *v) for v in PYTHON},
    **{f"javascript-{v[0]}": (javascript, *v) for v in JAVASCRIPT},
}
OLDEST = [f"python-{PYTHON[0][0]}", f"javascript-{JAVASCRIPT[0][0]}"]


def explained(name, result):
    """Adds the reasons of failed tests; returns those that have none."""
    unknown = []
    for test, one in result["tests"].items():
        if one["outcome"] == "failed":
            one["because"] = reason_for(name.partition("-")[0], test, one["reason"])
            if one["because"] is None:
                unknown.append(f"{test}: {one['reason']}")
    return unknown


def run(names, server, at_once):
    """Runs releases, so many beside each other; returns the failures that have no reason."""
    said = json.loads(server.cay("--json", "env", "--new-key", "compat").stdout)
    kept = {name: value for name, value in server.env.items() if not name.startswith(("E2B_", "NODE_"))}
    # Tests that speak HTTP by themselves want an address; the SDKs go by the same name.
    env = {**kept, **said, "E2B_API_URL": "https://api." + said["E2B_DOMAIN"], "NO_COLOR": "1"}
    assert "E2B_SANDBOX_URL" not in said, "names below localhost do not resolve here: cay env --install-names"
    RESULTS.mkdir(parents=True, exist_ok=True)

    def release(name):
        work, *version = RUNS[name]
        print(f"▸ {name}", flush=True)
        begun = time.monotonic()
        result = work(*version, env)
        unknown = explained(name, result)
        (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1))
        count = [one["outcome"] for one in result["tests"].values()]
        print(f"{'✗' if unknown else '✓'} {name}: {count.count('passed')} passed, {count.count('failed')} failed, "
              f"{count.count('skipped')} want what it lacks ({time.monotonic() - begun:.0f} s)", flush=True)
        return [f"{name} {line}" for line in unknown] + ([] if count.count("passed") else [f"{name}: no test passed"])

    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        return [line for lines in pool.map(release, names) for line in lines]


def main():
    asked = sys.argv[1:]
    if asked == ["page"]:
        return page.write(RESULTS)
    if asked == ["prepare"]:
        for make, versions in ((python_environment, PYTHON), (javascript_environment, JAVASCRIPT)):
            make(*versions[0])
        return
    names = OLDEST if asked == ["oldest"] else asked or list(RUNS)
    if wrong := [name for name in names if name not in RUNS]:
        sys.exit(f"no such release: {', '.join(wrong)}; there are: {', '.join(RUNS)}")
    server = world.Server()
    server.env.update(CAY_DOMAIN="", CAY_TLS="", CAY_PATHS="")
    if server.healthy():
        sys.exit(f"something already answers on {server.url}: end it first")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))
    try:
        server.start()
        failed = run(names, server, len(names) if asked == ["oldest"] else 1)
    finally:
        server.cay("down", check=False)
    if failed:
        sys.exit("not explained:\n" + "\n".join(failed))
    if not asked:
        page.write(RESULTS)


if __name__ == "__main__":
    main()
