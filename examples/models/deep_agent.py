"""A Deep Agent of LangChain whose shell and files are a sandbox.

    pip install deepagents==0.7.5 langchain-openai==1.7.4 e2b==2.63.0
    eval "$(cay env --new-key me)"; export OPENAI_API_KEY=...
    python deep_agent.py

It prints a sentence with 37546387960. Any model of LangChain takes the place of OpenAI's.
"""

import os

from deepagents import create_deep_agent
from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox
from e2b import CommandExitException, NotFoundException, Sandbox
from langchain_openai import ChatOpenAI

MODEL = os.environ.get("MODEL", "gpt-5-mini")
TIMEOUT = 300  # of a command, in seconds


class Backend(BaseSandbox):
    """A sandbox as Deep Agents have one: their tools for files are commands in it."""

    def __init__(self, sandbox):
        self.sandbox = sandbox

    @property
    def id(self):
        return self.sandbox.sandbox_id

    def execute(self, command, *, timeout=None):
        try:
            done = self.sandbox.commands.run(command, timeout=timeout or TIMEOUT)
        except CommandExitException as failed:
            done = failed
        return ExecuteResponse(output=done.stdout + done.stderr, exit_code=done.exit_code)

    def upload_files(self, files):
        for path, content in files:
            self.sandbox.files.write(path, content)
        return [FileUploadResponse(path=path) for path, _ in files]

    def download_files(self, paths):
        return [self.download(path) for path in paths]

    def download(self, path):
        try:
            return FileDownloadResponse(path=path, content=bytes(self.sandbox.files.read(path, format="bytes")))
        except NotFoundException:
            return FileDownloadResponse(path=path, error="file_not_found")


def main():
    with Sandbox.create(timeout=600) as sandbox:
        agent = create_deep_agent(
            model=ChatOpenAI(model=MODEL), backend=Backend(sandbox), system_prompt="You work in a Linux sandbox. Compute with python3.")
        question = "What is the sum of the squares of all primes below 10000? Compute it."
        state = agent.invoke({"messages": [{"role": "user", "content": question}]}, {"recursion_limit": 50})
    print(state["messages"][-1].text)


if __name__ == "__main__":
    main()
