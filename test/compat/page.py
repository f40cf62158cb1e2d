"""Writes docs/use/compatibility.md from the results of `make compat`."""

import json
import pathlib

from versions import JAVASCRIPT, PYTHON

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "use" / "compatibility.md"

HEAD = """# Releases of the official SDKs

Rendered by `make compat`, which runs Cay's end-to-end tests with each release, by name (`E2B_DOMAIN`). The methods are those
that the SDKs have, sync and async in one row; the results are those of the tests that call them.

✓ whole: every test that calls it passes, or fails for a reason that the release itself has. A number is that reason, below.
… more than three of them. – the release has no such method. · no test of Cay's calls it, or all of them want something else that it lacks.
"""


def cell(result, method, notes):
    """A release's results for a method."""
    if method not in result["methods"]:
        return "–"
    tests = [one for one in result["tests"].values() if method in one["called"]]
    ran = [one for one in tests if one["outcome"] != "skipped"]
    if not ran:
        return "·"
    numbers = sorted({notes.setdefault(one["because"], len(notes) + 1) for one in ran if one["outcome"] == "failed" and one["because"]})
    passed = any(one["outcome"] == "passed" for one in ran)
    return ("✓" if passed else "✗") + (" " + ", ".join(map(str, numbers)) if numbers and len(numbers) <= 3 else " …" if numbers else "")


def table(language, releases, results, notes):
    found = {v: json.loads(path.read_text()) for v, _ in releases if (path := results / f"{language}-{v}.json").exists()}
    methods = sorted(set().union(*(r["methods"] for r in found.values())), key=str.lower)
    lines = ["| method | " + " | ".join(found) + " |", "|---" * (len(found) + 1) + "|"]
    for method in methods:
        lines.append(f"| `{method}` | " + " | ".join(cell(r, method, notes) for r in found.values()) + " |")
    counts = [" | ".join(f"{sum(one['outcome'] == outcome for one in r['tests'].values())}" for r in found.values())
              for outcome in ("passed", "failed", "skipped")]
    lines += [f"| **tests that pass** | {counts[0]} |", f"| fail, with a reason below | {counts[1]} |", f"| want what the release lacks | {counts[2]} |"]
    pairs = ", ".join(f"{v} with {c}" for v, c in releases if v in found)
    return lines, pairs


def write(results):
    out = [HEAD]
    for title, language, package, releases in (
            ("Python", "python", "e2b-code-interpreter", PYTHON), ("JavaScript", "javascript", "@e2b/code-interpreter", JAVASCRIPT)):
        notes = {}
        lines, pairs = table(language, releases, results, notes)
        out += [f"\n## {title}\n", f"`e2b` of each column, with `{package}`: {pairs}.\n", *lines]
        if notes:
            out += ["\nPeculiarities of these releases:\n", *[f"{number}. {text}" for text, number in notes.items()]]
    PAGE.write_text("\n".join(out) + "\n")
    print(f"wrote {PAGE}")
