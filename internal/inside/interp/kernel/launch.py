"""Starts the IPython kernel of one context: python3 launch.py -f CONNECTION."""

import sys

sys.path.pop(0)  # our own directory is not the user's business

import codecs
import contextvars
import faulthandler
import importlib.util
import io
import json
import os
import select
import threading
import zlib

import ipykernel.compiler
from ipykernel.iostream import IOPubThread, OutStream
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp
from jupyter_client.jsonutil import json_clean, json_default
from tornado.ioloop import IOLoop

# Bytes that may wait for a client that reads slowly. Beyond them the code that
# prints waits too.
MAX_BUFFERED = 256 << 10


_forked = False  # this process is a copy of the kernel's


def _note_fork():
    global _forked
    _forked = True


os.register_at_fork(after_in_child=_note_fork)


def checksum(code, seed):
    """Names code for tracebacks. ipykernel walks over its characters in Python,
    which takes seconds for megabytes."""
    return zlib.crc32(code.encode("utf-8", "surrogatepass"), seed)


def pack(message):
    """A message as JSON in ASCII: UTF-8 has no bytes for half a character, and the
    packers of Jupyter lose a message with one."""
    try:
        text = json.dumps(message, default=json_default, allow_nan=False)
    except (TypeError, ValueError):  # jupyter_client forgives as much
        text = json.dumps(json_clean(message), default=json_default, allow_nan=False)
    return text.encode()


class BoundedStream(OutStream):
    """Output that holds its writer back when the client is slow."""

    flush_timeout = 24 * 3600
    _unflushed = 0

    def __init__(self, *args, **kwargs):
        # Of what is written to the descriptor, by programs above all.
        self._taking = threading.RLock()
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        super().__init__(*args, **kwargs)

    def _watch_pipe_fd(self):
        os.set_blocking(self._fid, False)
        ready = select.poll()
        ready.register(self._fid, select.POLLIN)
        while self._should_watch:
            ready.poll()
            self._take()

    def _take(self):
        """Prints what is in the descriptor's pipe. A flush takes it as well: it may
        be the last before the code is done."""
        with self._taking:
            try:
                data = os.read(self._fid, 1 << 16)
            except BlockingIOError:
                return
            self._should_watch = self._should_watch and bool(data)  # until the code closes it
            self.write(self._decode(data))
            os.write(self._original_stdstream_copy, data)

    def _is_master_process(self):
        """Asked at every write, where os.getpid() would cost more than all else:
        a system call is dear in a sandbox."""
        return not _forked

    def flush(self):
        """Waits until what was written is on its way, if anything was. The
        kernel flushes four times in each execution, each time a walk to another
        thread and back."""
        line = getattr(self.pub_thread, "line", None)
        if not _forked and self._should_watch and line is not None and not line.mine():
            self._take()
        if line is None or _forked:
            if self._buffers:
                super().flush()
        elif line.mine():  # a signal's handler: waiting would be for ourselves
            self.pub_thread.schedule(self._flush)
        else:
            with line.lock:  # what was taken to be sent is sent
                written = self._buffers
            if written:
                super().flush()

    def _flush(self):
        line = getattr(self.pub_thread, "line", None)
        if line is None or _forked:
            return super()._flush()
        with line.lock:
            super()._flush()

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


class Publisher(IOPubThread):
    """ipykernel's thread for what is published, which with a line to the agent
    has only to flush printed text from time to time: the thread that publishes
    writes to the line itself."""

    line = None

    def send_multipart(self, msg, *args, **kwargs):
        if self.line is None or _forked:
            return super().send_multipart(msg, *args, **kwargs)
        try:
            self.line.send(msg)
        except BaseException:  # of a signal's handler: the rest must not wait for more to say
            self.schedule(self.line.drain)
            raise


class Held:
    """Sends what something else is about to follow together with that."""

    def __init__(self, line, shell):
        self.line, self.shell = line, shell

    def send_multipart(self, msg, *args, **kwargs):
        # Otherwise a result is not the last thing that code does.
        last = self.shell.ast_node_interactivity == "last_expr"
        self.line.send(msg, hold=last)


class Nowhere:
    """Takes replies, which say nothing that was not published."""

    def send_multipart(self, *args, **kwargs):
        pass


class Kernel(IPythonKernel):
    """A kernel that says over the line only what the agent listens to."""

    held = failures = None
    idle = True  # that is said of the last request

    def take(self, line, loop):
        """Has the kernel listen and speak over line."""
        self.held = self.shell.displayhook.pub_socket = Held(line, self.shell)
        self.failures = sys.modules["_cay_failures"].Failures(self.shell)
        context, tasks = contextvars.copy_context(), set()

        def done(task):
            tasks.discard(task)
            if not self.idle:  # the code cancelled it, or broke what it needs
                context.run(self._publish_status, "idle", "shell")

        def receive(frames):
            self.idle = False
            task = loop.create_task(self.shell_main(None, frames), context=context)
            tasks.add(task)
            task.add_done_callback(done)

        line.listen(loop, receive)

    def _publish_status(self, status, channel, parent=None):
        if self.held is None or status == "idle" and not _forked:
            self.idle = True
            super()._publish_status(status, channel, parent)

    def _publish_execute_input(self, code, parent, execution_count):
        if self.held is None:
            return super()._publish_execute_input(code, parent, execution_count)
        content = {"code": "", "execution_count": execution_count}  # the agent has the code
        self.session.send(self.held, "execute_input", content, parent=parent)

    async def execute_request(self, stream, ident, parent):
        await super().execute_request(stream if self.held is None else Nowhere(), ident, parent)

    async def do_execute(self, *args, **kwargs):
        if self.failures is None:
            return await super().do_execute(*args, **kwargs)
        self.failures.published, before = 0, self.shell.last_execution_result
        error = None
        try:
            reply = await super().do_execute(*args, **kwargs)
        except BaseException as e:  # also where the code cancels the task that runs it
            reply, error = {"status": "error", "evalue": ""}, e
        if reply["status"] == "error" and not self.failures.published:
            result = self.shell.last_execution_result
            if error is None and result is not before:
                error = result.error_before_exec or result.error_in_exec
            self.failures.publish(error or RuntimeError(reply["evalue"]))
        return reply


class KernelApp(IPKernelApp):
    """A kernel with a line to the agent, where its connection file names one;
    else one that any client of Jupyter's can talk to."""

    def init_shell(self):
        super().init_shell()
        sys.modules["_cay"].install(self.shell)

    def log_connection_info(self):
        """How to connect is not said: only the agent does."""

    def start(self):
        with open(self.abs_connection_file) as file:
            path = json.load(file).get("line")
        if path:
            line = sys.modules["_cay_line"].Line(path)
            self.iopub_thread.__class__ = Publisher
            self.iopub_thread.line = line
            self.kernel.take(line, IOLoop.current().asyncio_loop)
        super().start()


def load(name):
    """Loads a module from our directory without putting it on sys.path."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name + ".py")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def main():
    # The log, which the agent quotes. The kernel puts a pipe in its place, whose
    # reader dies with it.
    faulthandler.enable(os.dup(2), all_threads=False)
    sys.modules["_cay_launch"] = sys.modules["__main__"]
    load("_cay_chart")
    load("_cay")
    load("_cay_failures")
    load("_cay_line")
    ipykernel.compiler.murmur2_x86 = checksum
    app = KernelApp.instance()
    app.kernel_class = Kernel
    app.outstream_class = "_cay_launch.BoundedStream"
    config = app.config
    config.Session.packer = "_cay_launch.pack"
    config.InteractiveShell.colors = "NoColor"
    config.PlainTextFormatter.max_seq_length = 0
    config.HistoryManager.enabled = False
    config.InlineBackend.print_figure_kwargs = {"bbox_inches": "tight"}
    app.initialize()
    app.log.setLevel(app.log_level)  # else records are made without a reader
    app.kernel._execute_sleep = 0  # before replies, which no client here waits for
    app.start()


if __name__ == "__main__":
    main()
