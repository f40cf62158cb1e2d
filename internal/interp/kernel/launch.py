"""Starts the IPython kernel of one context: python3 launch.py -f CONNECTION."""

import sys

sys.path.pop(0)  # our own directory is not the user's business

import importlib.util
import io
import os
import zlib

import ipykernel.compiler
import zmq
from ipykernel.iostream import OutStream
from ipykernel.kernelapp import IPKernelApp

# What may wait for a client that reads slowly. Beyond it the code that prints
# waits too.
MAX_BUFFERED = 256 << 10
MAX_QUEUED = 64


_forked = False  # this process is a copy of the kernel's


def _note_fork():
    global _forked
    _forked = True


os.register_at_fork(after_in_child=_note_fork)


def checksum(code, seed):
    """Names code for tracebacks. ipykernel walks over its characters in Python,
    which takes seconds for megabytes."""
    return zlib.crc32(code.encode("utf-8", "surrogatepass"), seed)


class BoundedStream(OutStream):
    """Output that holds its writer back when the client is slow."""

    flush_timeout = 24 * 3600
    _unflushed = 0

    def _is_master_process(self):
        """Asked at every write, where os.getpid() would cost more than all else:
        a system call is dear in a sandbox."""
        return not _forked

    def flush(self):
        """Waits until what was written is on its way, if anything was. The
        kernel flushes four times in each execution, each time a walk to another
        thread and back."""
        if self._buffers:
            super().flush()

    @property
    def buffer(self):
        """Takes bytes, as that of a file does."""
        return Bytes(self)

    def write(self, string):
        written = super().write(string)
        self._unflushed += len(string)
        if self._unflushed > MAX_BUFFERED:
            self._unflushed = 0
            self.flush()
        return written


class Bytes(io.BufferedIOBase):
    """Writes bytes to a stream of text."""

    def __init__(self, stream):
        self.stream = stream

    def writable(self):
        return True

    def write(self, data):
        self.stream.write(bytes(data).decode(errors="replace"))
        return len(data)

    def flush(self):
        if not self.stream.closed:
            self.stream.flush()


class KernelApp(IPKernelApp):
    """A kernel whose publisher waits where ZeroMQ's would lose messages."""

    def init_iopub(self, context):
        context.setsockopt(zmq.SNDHWM, MAX_QUEUED)
        context.setsockopt(zmq.XPUB_NODROP, 1)
        try:
            super().init_iopub(context)
        finally:
            context.sockopts.clear()

    def init_shell(self):
        super().init_shell()
        sys.modules["_cay"].install(self.shell)


def load(name):
    """Loads a module from our directory without putting it on sys.path."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name + ".py")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def main():
    sys.modules["_cay_launch"] = sys.modules["__main__"]
    load("_cay_chart")
    load("_cay")
    ipykernel.compiler.murmur2_x86 = checksum
    app = KernelApp.instance()
    app.outstream_class = "_cay_launch.BoundedStream"
    config = app.config
    config.InteractiveShell.colors = "NoColor"
    config.PlainTextFormatter.max_seq_length = 0
    config.HistoryManager.enabled = False
    config.InlineBackend.print_figure_kwargs = {"bbox_inches": "tight"}
    app.initialize()
    app.kernel._execute_sleep = 0  # before replies, which nobody here waits for
    app.start()


if __name__ == "__main__":
    main()
