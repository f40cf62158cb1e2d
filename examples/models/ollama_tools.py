"""An open model calls a function over Ollama's wire; the code runs in a sandbox.

    pip install ollama==0.6.3 e2b-code-interpreter==2.11.5
    eval "$(cay env --new-key me)"; ollama pull qwen3
    python ollama_tools.py

It prints a sentence with 37546387960. OLLAMA_HOST leads to a server elsewhere.
"""

import os

import ollama
from e2b_code_interpreter import Sandbox

MODEL = os.environ.get("MODEL", "qwen3")


def main():
    messages = [{"role": "user", "content": "What is the sum of the squares of all primes below 10000? Compute it."}]
    with Sandbox.create(timeout=300) as sandbox:

        def run_code(code: str) -> str:
            """Runs Python in a sandbox and returns what it prints.

            Args:
                code: The program. Variables stay between calls.
            """
            run = sandbox.run_code(code)
            return run.error.traceback if run.error else "".join(run.logs.stdout) + (run.text or "")

        for _ in range(10):
            answer = ollama.chat(MODEL, messages=messages, tools=[run_code]).message
            if not answer.tool_calls:
                break
            messages.append(answer)
            for call in answer.tool_calls:
                code = call.function.arguments.get("code")
                result = run_code(code) if isinstance(code, str) else "run_code takes one string, code"
                messages.append({"role": "tool", "tool_name": call.function.name, "content": result})
    print(answer.content)


if __name__ == "__main__":
    main()
