"""Reads `go test -json` and prints what matters: the output of what failed, and what was skipped, counted by reason."""

import collections
import json
import re
import sys

output, skipped, passed, failed = collections.defaultdict(list), collections.defaultdict(list), 0, []
for line in sys.stdin:
    try:
        event = json.loads(line)
    except ValueError:  # what the compiler says
        print(line, end="")
        continue
    key = (event.get("Package", event.get("ImportPath", "")), event.get("Test"))
    match event["Action"]:
        case "output" | "build-output":
            output[key].append(event["Output"])
        case "fail" | "build-fail":
            failed.append(key)
            print("".join(output.pop(key, [])), end="", flush=True)
        case "skip" if key[1]:
            text = "".join(output.pop(key, []))
            reason = re.search(r"\w+\.go:\d+: (?:NOT TESTED HERE: )?(.*)", text)
            # Directories of tests are each their own; the reason is one.
            skipped[re.sub(r"/\S*/Test\S*", "…", reason[1]) if reason else "without a reason"].append(key)
        case "pass":
            passed += key[1] is not None
            output.pop(key, None)

count = sum(map(len, skipped.values()))
print(f"{passed} tests passed, {len([f for f in failed if f[1]])} failed, {count} were skipped here:")
for reason, tests in sorted(skipped.items(), key=lambda item: -len(item[1])):
    packages = sorted({package.split("/cay/")[-1] for package, _ in tests})
    print(f"  {len(tests):3} {reason} ({', '.join(packages)})")
sys.exit(1 if failed else 0)
