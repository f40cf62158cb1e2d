"""Publishes each failure of code as an error.

IPython shows some in other ways alone: groups of exceptions and wrong uses of
magics as text, the end of a debugger not at all.
"""

import contextlib
import sys
import traceback


class Failures:
    """The errors that a shell publishes."""

    def __init__(self, shell):
        self.published = 0  # of the code that runs
        self._shell, self._show = shell, shell.showtraceback
        shell._showtraceback, shell.showtraceback = self._published, self._shown

    def publish(self, error):
        """Publishes an exception that the shell has not shown."""
        try:
            # In IPython a wrong use has no traceback.
            brief = type(error).__name__ == "UsageError"
            lines = traceback.format_exception(None if brief else type(error), error, None if brief else error.__traceback__)
        except Exception:
            lines = []
        self._published(type(error), error, lines)

    def _published(self, kind, error, lines):
        """In place of the shell's _showtraceback, whatever the code makes of its
        outputs, an exception of its text, and that of its traceback."""
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        if not isinstance(lines, list):
            lines = []
        content = {"ename": _text(kind.__name__), "evalue": _text(error), "traceback": [_text(line) for line in lines]}
        hook = self._shell.displayhook
        hook.session.send(hook.pub_socket, "error", content, hook.parent_header)
        self.published += 1

    def _shown(self, exc_tuple=None, *args, **kwargs):
        """In place of the shell's showtraceback."""
        before = self.published
        error = (exc_tuple or sys.exc_info())[1]
        try:
            self._show(exc_tuple, *args, **kwargs)
        finally:
            if self.published == before and isinstance(error, BaseException):
                self.publish(error)


def _text(value):
    try:
        return str(value)
    except Exception:
        return ""
