"""Runs the examples with models (examples/models) against a real server.

    make examples                             all, with the stand-in model
    EXAMPLES="openai_chat.py mastra.mjs" …    those
    EXAMPLES_MODEL=real …                     with the models whose keys are in the environment
    CAY_E2E_DATA=DIR …                        with that data directory

The stand-in is aimock, a server of the models' wires. It answers by the files in
answers/: a call of a tool, and the last sentence only if the result of the call,
which it is sent back, is what a sandbox alone gives. A worker of Managed Agents has
environment.py at its other end. Each example has the packages
that its first lines name, a team of its own, and leaves no sandbox. Some need
templates that an operator adds, which takes minutes the first time.
"""

import contextlib
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid

import environment
import world
from standin import ANSWERS, Failed, StandIn, packages

FILES = world.ROOT / "examples" / "models"
LIMIT = 300  # seconds of one example
SUM = "37546387960"

# The variables that lead an SDK to the stand-in, by wire, and the one that a real model needs.
WIRES = {
    "openai": ({"OPENAI_BASE_URL": "{url}/v1", "OPENAI_API_KEY": "stand-in"}, "OPENAI_API_KEY"),
    "anthropic": ({"ANTHROPIC_BASE_URL": "{url}", "ANTHROPIC_API_KEY": "stand-in"}, "ANTHROPIC_API_KEY"),
    "ollama": ({"OLLAMA_HOST": "{url}"}, "OLLAMA_HOST"),
    "managed agents": ({"ANTHROPIC_BASE_URL": "{url}", "ANTHROPIC_ENVIRONMENT_ID": "env_1", "ANTHROPIC_ENVIRONMENT_KEY": environment.KEY, "SESSIONS": "1"},
                       "ANTHROPIC_ENVIRONMENT_KEY"),
}


@dataclasses.dataclass
class Example:
    file: str
    wire: str
    prints: str  # what its output must have, a regular expression
    answers: str = "run_code"  # the stand-in's, a file of answers/
    template: str = ""  # that an operator adds for it

    @property
    def head(self):
        """The commands of its first lines: packages, keys, run."""
        text = (FILES / self.file).read_text()
        commands = re.findall(r"^    (\S.*)$", text[:text.index("\n\n", text.index("\n    "))], re.M)
        assert len(commands) == 3 and commands[2].endswith(self.file), f"{self.file} does not begin with three commands: {commands}"
        return commands


EXAMPLES = [
    Example("openai_chat.py", "openai", SUM),
    Example("openai_chat.mjs", "openai", SUM),
    Example("openai_responses.py", "openai", SUM),
    Example("openai_responses.mjs", "openai", SUM),
    Example("anthropic_tools.py", "anthropic", SUM),
    Example("anthropic_tools.mjs", "anthropic", SUM),
    Example("ollama_tools.py", "ollama", SUM),
    Example("data_analysis.py", "openai", r"south[\s\S]*chart-1\.png: \d{3,} by \d{3,} pixels", "data_analysis"),
    Example("tree_search.py", "openai", "the sandbox goes on with a Polynomial in memory", "tree_search"),
    Example("agent_inside.py", "openai", SUM),
    Example("langchain_agent.py", "openai", SUM),
    Example("openai_agents.py", "openai", SUM),
    Example("vercel_ai.mjs", "openai", SUM),
    Example("pydantic_ai_agent.py", "openai", SUM),
    Example("smolagents_code.py", "openai", SUM, "smolagents"),
    Example("llamaindex_agent.py", "openai", SUM),
    Example("mastra_agent.mjs", "openai", SUM),
    Example("crewai_crew.py", "openai", SUM),
    Example("pull_request_bot.py", "openai", "Do not merge.*test_of_halves", "pull_request_bot"),
    Example("deep_agent.py", "openai", SUM, "shell"),
    Example("claude_code_inside.py", "anthropic", SUM, "shell", "claude-agent"),
    Example("codex_inside.py", "openai", SUM, "shell", "codex"),
    Example("managed_agents_worker.py", "managed agents", SUM),
    Example("computer_use.py", "anthropic", "typed on a screen that a model sees", "computer_use", "desktop"),
]


def prepare(example, server):
    """Gets what an example needs, which takes none of its time."""
    packages(example.head[0])
    if example.template:
        added = server.cay("template", "add", example.template, check=False, timeout=1800)
        if added.returncode:
            raise Failed(f"cay template add {example.template}: {added.stderr[-2000:]}")


def execute(example, env):
    """Runs an example as its third command says, and checks what it prints."""
    where = packages(example.head[0])
    # JavaScript finds packages from the place of the file.
    copy = where / example.file
    shutil.copy(FILES / example.file, copy)
    program = where / "bin" / "python" if example.file.endswith(".py") else "node"
    with tempfile.TemporaryDirectory() as home:
        try:
            done = subprocess.run([str(program), str(copy)], env={**env, "HOME": home}, cwd=home, text=True, timeout=LIMIT,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        except subprocess.TimeoutExpired as err:
            raise Failed(f"it does not end within {LIMIT} s: {(err.stderr or b'')[-2000:]}") from None
    # Models write 1,234 as well.
    if done.returncode or not re.search(example.prints, re.sub(r"(?<=\d)[,\u00a0\u202f](?=\d{3})", "", done.stdout)):
        raise Failed(f"exit {done.returncode}, printed:\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}")


def left(server, key):
    """The sandboxes of a key's team that are alive."""
    request = urllib.request.Request(server.url + "/v2/sandboxes?state=running,paused", headers={"X-API-Key": key})
    with urllib.request.urlopen(request, timeout=30) as reply:
        return [sandbox["sandboxID"] for sandbox in json.load(reply)]


def with_stand_in(example, env, answers):
    with environment.Environment() if example.wire == "managed agents" else StandIn(answers) as model:
        # No key of the caller's leaves for the stand-in.
        clean = {k: v for k, v in env.items() if not re.search("OPENAI|ANTHROPIC|OLLAMA|^MODEL$", k)}
        try:
            execute(example, {**clean, **{k: v.format(url=model.url) for k, v in WIRES[example.wire][0].items()}})
            model.check()
        except Failed as err:
            raise Failed(f"{err}\nthe stand-in: {model.said()}") from None


@contextlib.contextmanager
def team(server):
    """The key of a team that is there for one example."""
    name = f"examples-{uuid.uuid4().hex[:8]}"
    made = json.loads(server.cay("team", "create", name, "--key", "owner", "--json").stdout)
    try:
        yield made["key"]
    finally:
        server.cay("team", "remove", name, "--force", check=False)


def run(example, server):
    """One example against a server; Failed says why it is not right."""
    with team(server) as key:
        env = {**os.environ, **server.sdk_env(key), "NO_COLOR": "1"}
        if os.environ.get("EXAMPLES_MODEL") == "real":
            execute(example, env)
        else:
            with_stand_in(example, env, ANSWERS / f"{example.answers}.json")
        if more := left(server, key):
            raise Failed(f"it leaves sandboxes: {more}")


def refuses(example, server):
    """A sandbox whose result is another one makes an example fail."""
    with team(server) as key, tempfile.NamedTemporaryFile("w", suffix=".json") as wrong:
        wrong.write((ANSWERS / f"{example.answers}.json").read_text().replace("n * n for", "n + n for"))
        wrong.flush()
        try:
            with_stand_in(example, {**os.environ, **server.sdk_env(key), "NO_COLOR": "1"}, wrong.name)
        except Failed as err:
            if "STRICT:" in str(err):  # it has no answer to such a result
                return
            raise
    raise Failed("an example passes though the sandbox gave another result")


def attempt(work, *args):
    begun = time.monotonic()
    try:
        work(*args)
        state = "ok"
    except Failed as err:
        state = "FAILED"
        print(err, flush=True)
    return state, round(time.monotonic() - begun)


def chosen():
    here = {file.name for file in FILES.iterdir() if file.suffix in (".py", ".mjs")}
    listed = {example.file for example in EXAMPLES}
    assert here == listed, f"examples/models and EXAMPLES differ: {here ^ listed}"
    wanted = os.environ.get("EXAMPLES", "").split()
    unknown = set(wanted) - listed
    if unknown:
        sys.exit(f"no example {', '.join(sorted(unknown))}; there are {', '.join(sorted(listed))}")
    return [example for example in EXAMPLES if not wanted or example.file in wanted]


def main():
    real = os.environ.get("EXAMPLES_MODEL") == "real"
    examples, rows = chosen(), []
    server = world.aside("models", 7195, "10.229.0.0/16", "cymodl")
    found = server.healthy()
    if not found:
        server.start()
    try:
        for example in examples:
            needs = WIRES[example.wire][1]
            if real and not os.environ.get(needs):
                state, seconds = f"no {needs}", 0
            else:
                try:
                    prepare(example, server)
                    state, seconds = attempt(run, example, server)
                except Failed as err:
                    state, seconds = "FAILED", 0
                    print(err, flush=True)
            rows.append((example.file, "Python" if example.file.endswith(".py") else "JavaScript", state, seconds))
            print(f"{state}: {example.file} ({seconds} s)", flush=True)
        # Agents of templates ask a model that refuses again and again, for minutes.
        computed = [example for example in examples if example.prints == SUM and example.wire != "managed agents" and not example.template]
        if computed and not real:
            rows.append(("a wrong result is refused", "", *attempt(refuses, computed[0], server)))
    finally:
        if not found:
            server.cay("down", check=False)
    print(f"\n{'example':<28}{'language':<12}{'state':<10}seconds")
    for name, language, state, seconds in rows:
        print(f"{name:<28}{language:<12}{state:<10}{seconds:>7}")
    if any(state == "FAILED" for _, _, state, _ in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
