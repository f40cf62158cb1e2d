"""A model analyses a file in a sandbox and draws a chart, which comes back as an image.

    pip install openai==3.57.0 e2b-code-interpreter==2.11.5
    eval "$(cay env --new-key me)"; export OPENAI_API_KEY=...
    python data_analysis.py

It writes chart-1.png beside you, and prints that the region south grew most.
"""

import base64
import json
import os
import pathlib

from e2b_code_interpreter import Sandbox
from openai import OpenAI

MODEL = os.environ.get("MODEL", "gpt-5-mini")
SALES = "month,region,units\n" + "".join(
    f"2026-{month:02},{region},{base + step * month}\n"
    for month in range(1, 13) for region, base, step in (("north", 500, 9), ("south", 120, 31), ("west", 300, -4)))
QUESTION = "sales.csv is in the working directory. Draw units by month, a line a region, and say which region grew most."
TOOL = {
    "type": "function",
    "function": {
        "name": "run_code",
        "description": "Runs Python with pandas and matplotlib. Returns what it prints; the person sees what it plots.",
        "parameters": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
    },
}


def save(png, charts):
    charts.append(f"chart-{len(charts) + 1}.png")
    pathlib.Path(charts[-1]).write_bytes(base64.b64decode(png))
    return f"[{charts[-1]} is shown]"


def run_code(sandbox, arguments, charts):
    try:
        code = json.loads(arguments)["code"]
    except (ValueError, KeyError, TypeError) as err:
        return f"these arguments are not {{\"code\": …}}: {err!r}"
    run = sandbox.run_code(code)
    if run.error:
        return run.error.traceback
    shown = [save(result.png, charts) if result.png else result.text or "" for result in run.results]
    return "".join(run.logs.stdout) + "\n".join(shown)


def main():
    client, charts = OpenAI(), []
    messages = [{"role": "user", "content": QUESTION}]
    with Sandbox.create(timeout=300) as sandbox:
        sandbox.files.write("sales.csv", SALES)
        for _ in range(10):
            answer = client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL]).choices[0].message
            if not answer.tool_calls:
                break
            messages.append(answer)
            for call in answer.tool_calls:
                messages.append({"role": "tool", "tool_call_id": call.id,
                                 "content": run_code(sandbox, call.function.arguments, charts)})
    print(answer.content)
    for chart in charts:
        width, height = (int.from_bytes(pathlib.Path(chart).read_bytes()[at:at + 4], "big") for at in (16, 20))
        print(f"{chart}: {width} by {height} pixels")


if __name__ == "__main__":
    main()
