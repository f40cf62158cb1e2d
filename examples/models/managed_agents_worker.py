"""A worker of Claude Managed Agents: Anthropic runs the loop, a sandbox of each session's own runs its tools.

    pip install anthropic==2.14.0 e2b==2.63.0
    eval "$(cay env --new-key me)"; export ANTHROPIC_ENVIRONMENT_ID=env_... ANTHROPIC_ENVIRONMENT_KEY=...
    python managed_agents_worker.py

It serves the sessions of this self-hosted environment, and prints their calls; with SESSIONS=1 it ends after
one. The environment's key stays with it: the sandboxes need none, and no network. Skills of an agent are not
copied into them.
"""

import asyncio
import os
import shlex
import tempfile
from typing import List, Optional

from anthropic import AsyncAnthropic, beta_async_tool
from anthropic.lib.environments import EnvironmentWorker
from anthropic.lib.tools import ToolError
from e2b import AsyncSandbox, CommandExitException, SandboxException

ENVIRONMENT, KEY = os.environ["ANTHROPIC_ENVIRONMENT_ID"], os.environ["ANTHROPIC_ENVIRONMENT_KEY"]
SESSIONS = int(os.environ.get("SESSIONS", "0"))  # 0 is without end
MOST = 100_000  # characters of a result


def tools_of(box):
    """The tools of Anthropic's agents, in a sandbox."""

    async def run(command, timeout=120.0):
        print(f"{box.sandbox_id}$ {command}", flush=True)
        try:
            done = await box.commands.run(command, timeout=timeout)
        except CommandExitException as failed:
            raise ToolError(f"exit status {failed.exit_code}\n{failed.stdout[-MOST:]}{failed.stderr[-MOST:]}") from None
        except SandboxException as failed:
            raise ToolError(str(failed)) from None
        print(done.stdout, flush=True)
        return (done.stdout + done.stderr)[-MOST:]

    async def content(path):
        try:
            return await box.files.read(path)
        except SandboxException as failed:
            raise ToolError(str(failed)) from None

    @beta_async_tool
    async def bash(command: Optional[str] = None, restart: Optional[bool] = None, timeout_ms: Optional[int] = None) -> str:
        """Runs a command where the one before it ended."""
        if restart:
            return await run("rm -f /tmp/.directory; echo restarted")
        if not command:
            raise ToolError("command is missing")
        return await run(f'cd "$(cat /tmp/.directory 2>/dev/null || echo ~)"; trap "pwd > /tmp/.directory" EXIT\n{command}', (timeout_ms or 120_000) / 1000)

    @beta_async_tool
    async def read(file_path: str, view_range: Optional[List[int]] = None) -> str:
        """Reads a file, or some of its lines."""
        text = await content(file_path)
        if view_range:
            first, last = view_range
            text = "\n".join(text.split("\n")[max(first - 1, 0):last if last > 0 else None])
        return text[:MOST]

    @beta_async_tool
    async def write(file_path: str, content: str) -> str:
        """Writes a file."""
        await box.files.write(file_path, content)
        return f"wrote {file_path}"

    @beta_async_tool
    async def edit(file_path: str, old_string: str, new_string: str, replace_all: Optional[bool] = None) -> str:
        """Replaces text in a file."""
        text = await content(file_path)
        found = text.count(old_string)
        if found == 0 or found > 1 and not replace_all:
            raise ToolError(f"old_string is {found} times in {file_path}")
        await box.files.write(file_path, text.replace(old_string, new_string))
        return f"replaced {found}"

    @beta_async_tool
    async def glob(pattern: str, path: Optional[str] = None) -> str:
        """Lists the files that are like a pattern."""
        return await run(f"shopt -s globstar; cd {shlex.quote(path or '.')} && compgen -G {shlex.quote(pattern)} || echo no matches")

    @beta_async_tool
    async def grep(pattern: str, path: Optional[str] = None) -> str:
        """Finds the lines that are like a regular expression."""
        return await run(f"grep -rnIE -e {shlex.quote(pattern)} -- {shlex.quote(path or '.')} || echo no matches")

    return [bash, read, write, edit, glob, grep]


async def serve(client, work):
    """One session, in its sandbox."""
    async with await AsyncSandbox.create(timeout=3600, allow_internet_access=False) as box:
        with tempfile.TemporaryDirectory() as nothing:
            worker = EnvironmentWorker(client, tools=tools_of(box), workdir=nothing)
            await worker.handle_item(work_id=work.id, environment_id=ENVIRONMENT, session_id=work.data.id, environment_key=KEY)


async def main():
    client, begun = AsyncAnthropic(auth_token=KEY), 0
    async with asyncio.TaskGroup() as sessions:
        async for work in client.beta.environments.work.poller(environment_id=ENVIRONMENT, environment_key=KEY, auto_stop=False):
            sessions.create_task(serve(client, work))
            begun += 1
            if begun == SESSIONS:
                break


if __name__ == "__main__":
    asyncio.run(main())
