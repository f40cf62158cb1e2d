"""The releases of the official SDKs that `make compat` tries, oldest first.

Each is a pair: e2b, and the code interpreter's package that came out with it.
"""

PYTHON = [
    ("1.0.0", "1.0.0"), ("1.2.0", "1.1.1"), ("1.11.1", "1.5.2"), ("2.0.0", "2.0.0"),
    ("2.15.3", "2.5.0"), ("2.30.0", "2.7.0"), ("2.45.1", "2.9.0"), ("2.63.0", "2.11.5"),
]
JAVASCRIPT = [
    ("1.0.1", "1.0.2"), ("1.2.5", "1.1.1"), ("1.13.2", "1.5.1"), ("2.0.1", "2.0.0"),
    ("2.15.0", "2.4.0"), ("2.28.0", "2.6.0"), ("2.45.0", "2.7.1"), ("2.51.0", "2.8.0"),
]

# The files of test/e2e that try the SDK; the others try the server without it,
# harm the server, or need what an SDK of any age does not bring.
PYTHON_TESTS = [
    "test_quickstart.py", "test_sandbox.py", "test_commands.py", "test_files.py", "test_interp.py",
    "test_life.py", "test_build.py", "test_errors.py", "test_private.py", "test_volumes.py", "test_volume_content.py",
]
JAVASCRIPT_TESTS = [
    "quickstart.test.mjs", "sandbox.test.mjs", "commands.test.mjs", "files.test.mjs", "interp.test.mjs",
    "life.test.mjs", "build.test.mjs", "errors.test.mjs", "tree.test.mjs", "volume.test.mjs",
]
