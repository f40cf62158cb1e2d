"""Why a test fails with a release, where the release itself is the cause.

Each entry is a language, a pattern of the failure ("test: error") and what the
release does. A failure that no entry explains is Cay's, and ends `make compat`.
"""

import re

REASONS = [
    ("python", r"has no field named", "Its reader of answers refuses every field that a later release of the protocol added, so that no call about files works. "
     "E2B's own agent sends these fields too."),
    ("python", r"test_run:.*0, ''\) == .*0, None\)", "An error that there is not is an empty text in place of None."),
    ("python", r"test_characters_survive:", "It decodes each packet of output by itself: a character on the border of two is lost or an error."),
    ("python", r"test_stdin_is_closed_unless_wanted:", "It leaves standard input open, so a program that reads it waits until its time is over."),
    ("python", r"box_and_whisker", "Its model of a box chart computes nothing and rounds as the chart came."),
    ("python", r"test_interp.py::test_async: .*\[\] ==", "It does not await callbacks that are coroutines."),
    ("python", r"test_kill: |test_past_its_timeout: .*404", "A sandbox that is gone is False, None or a plain SandboxException in some of its calls."),
    ("python", r"Attempted to access 'response.content'|502 is not a valid Code", "It fails by itself, with an error of its HTTP library, where the answer to a stream is an error."),
    ("python", r"wrong_key.*SandboxException: 401", "A wrong key is a SandboxException, not an AuthenticationException."),
    ("python", r"-00000000", "It adds a client id to the id of a sandbox, which later releases do not."),
    ("python", r"test_quickstart.*(cannot import name|unexpected keyword argument|has no attribute '(?!create'))",
     "The documents' programs use what later releases brought."),
    ("python", r"test_quickstart.*'Sandbox' has no attribute 'create'", "Before 2.0 a sandbox is made by Sandbox(), not by Sandbox.create()."),
    ("python", r"sandboxes are secured|Access token is not set|test_bad_signatures: assert \(200", "Before 2.0 a sandbox is made without an access token unless secure=True is given."),
    ("python", r"test_links: .*dangling", "It leaves links out that lead nowhere, because it does not know their type."),
    ("python", r"test_files.py::test_not_found: .*NotFoundException", "A missing file is a NotFoundException; FileNotFoundException is later."),
    ("python", r"test_volume_content.py::.*e2b\.exceptions\.NotFoundException: Path", "A path that a volume lacks is a NotFoundException; VolumePathNotFoundException is later."),
    ("python", r"test_tar: .*401", "It signs a user that is not named as the text None; its own URLs always name one."),
    ("python", r"ConnectException: \(<Code\.(unavailable|resource_exhausted|not_found)", "It passes errors of some kinds on as ConnectException."),
    ("python", r"(test_set_timeout_and_connect|test_async_life): .*datetime", "Its connect sets the time limit that it is given, also a shorter one than there is."),
    ("python", r"test_async_many_at_once: assert False", "Its list has no pages."),
    ("python", r"(incomplete chunked read|httpcore\.ConnectError)", "It passes errors of its HTTP library on where the connection breaks or cannot be made."),
    ("python", r"test_life.py::.*assert None is True", "Its pause returns None in place of True."),
    ("python", r"test_an_inherited_start_command.*exited with code 1", "Its pause drops mode: the option is later."),
    ("python", r"test_timeouts.*httpcore\.ReadTimeout", "It passes an error of its HTTP library on where its own time for a command is over first."),
    ("python", r"test_named_snapshots", "Its create_snapshot drops the name."),
    ("python", r"Unsupported data type: <class '(async_)?generator'>", "It uploads no generators."),
    ("python", r"connectrpc\.errors\.ConnectError: The sandbox was not found", "It passes on that a sandbox does not run as its library's ConnectError."),
    ("python", r"test_unreachable.*ConnectionError", "It passes errors of its HTTP library on where the connection breaks or cannot be made."),
    ("python", r"test_archives_that_are_wrong: .*SSLEOFError", "The test's own upload, without the SDK, does not read a refusal that comes before all is sent by TLS."),
    ("javascript", r"::kill: .*undefined - true", "Its kill returns nothing."),
    ("javascript", r"::info: .*undefined - 'running'", "Its info has no state."),
    ("javascript", r"::killed in mid-stream: .*SandboxError", "A stream that breaks because its sandbox ends is a plain SandboxError."),
    ("javascript", r"::past its timeout.*SandboxError: 404|killed and paused sandboxes do not run: .*commands\.run",
     "A sandbox that is gone is a plain SandboxError, or another error of its library."),
    ("javascript", r"::wrong key.*SandboxError: 401", "A wrong key is a SandboxError, not an AuthenticationError."),
    ("javascript", r"::wrong token: .*Missing expected rejection", "Before 2.0 a sandbox is made without an access token unless secure is set."),
    ("javascript", r"errors\.test\.mjs::.*reading 'status'", "It has no Sandbox.git, which the test calls too."),
    ("javascript", r"-00000000", "It adds a client id to the id of a sandbox, which later releases do not."),
    ("javascript", r"::set a timeout, connect:", "Its connect sets the time limit that it is given, also a shorter one than there is."),
    ("javascript", r"::time limits pause.*undefined - \{ -   autoResume", "Its info has no lifecycle."),
    ("javascript", r"::empty files: .*undefined !== 0", "It reads an empty file as undefined where bytes or a blob are asked for."),
    ("javascript", r"volume\.test\.mjs::text, bytes, .*reading 'arrayBuffer'", "It reads an empty file as undefined where bytes or a blob are asked for."),
    ("javascript", r"volume\.test\.mjs::.*\bNotFoundError: Path", "A path that a volume lacks is a NotFoundError; VolumePathNotFoundError is later."),
    ("javascript", r"::metadata: .*undefined - \{", "It drops the metadata of files: the option is later."),
    ("javascript", r"::watchDir: .*reading 'path'", "Its events carry no entry: the option is later."),
    ("javascript", r"files\.test\.mjs::errors: .*Missing expected rejection", "It does not check some of its arguments."),
    ("javascript", r"::pause and resume: .*undefined - true", "Its pause returns nothing."),
    ("javascript", r"::pause without memory:", "Its pause drops keepMemory: the option is later."),
]


def reason_for(language, test, error):
    for of, pattern, text in REASONS:
        if of == language and re.search(pattern, f"{test}: {error}", re.S):
            return text
    return None
