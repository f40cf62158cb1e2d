"""The kernel's line to the agent: one Unix socket in place of Jupyter's five.

Jupyter's channels take a message over two or three threads each way, and in a
sandbox every walk to another thread is dear. The line is read by the loop that
runs the code, and written by whichever thread has something to say. It carries
the messages of Jupyter's channels, requests one way and what is published the
other, in ZeroMQ's frames. Replies are left out: what they
say is published, failures by _cay_failures.
"""

import collections
import os
import socket
import struct
import threading

import zmq

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
MORE, LONG, COMMAND = 1, 2, 4


class Line:
    """Messages to and from the one client that connects."""

    def __init__(self, path):
        self.path = path
        self._conn = None  # before and after there is a reader
        # Held while something is sent, and from taking printed text to sending
        # it: nothing may overtake what was printed before.
        self.lock = threading.RLock()
        self._sender = None  # the thread that is amid a message
        self._queue = collections.deque()  # messages, each in a list of its own
        self._batch = None  # those of them that are being sent
        os.register_at_fork(after_in_child=self._leave)

    def _leave(self):
        """In a copy of the kernel: the line is the kernel's alone, and no thread is
        there to give back a lock that another thread held."""
        self._conn = self._sender = self._batch = None
        self._queue.clear()
        self.lock = threading.RLock()

    def listen(self, loop, receive):
        """Has loop call receive with the frames of each message that comes."""
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self.path)
        listener.listen(1)

        def accept():
            conn, _ = listener.accept()
            loop.remove_reader(listener)
            listener.close()
            os.unlink(self.path)
            conn.sendall(GREETING + _head(len(READY), COMMAND) + READY)
            feed = _parser(receive)
            next(feed)
            self._conn = conn
            loop.add_reader(conn, read, conn, feed)

        def read(conn, feed):
            if self._conn is not conn:
                return  # in a copy that came back to its loop; the kernel reads
            try:
                data = conn.recv(1 << 16, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except ConnectionResetError:
                data = b""
            if data:
                feed.send(data)
            else:
                loop.remove_reader(conn)
                self._conn = None

        loop.add_reader(listener, accept)

    def mine(self):
        """Whether this thread holds the lock, asked from a signal's handler."""
        return self.lock._is_owned()

    def send(self, frames, hold=False):
        """Sends a message; with hold only together with the next."""
        last = len(frames) - 1
        parts = []
        for i, frame in enumerate(frames):
            body = memoryview(frame).cast("B")
            parts += _head(len(body), MORE if i < last else 0), body
        self._queue.append([b"".join(parts)])
        if not hold and self._sender != threading.get_ident():
            self.drain()

    def drain(self):
        """Sends what waits. A handler of a signal may raise after any step here;
        the next sender goes on where it ended."""
        with self.lock:
            self._sender = threading.get_ident()
            try:
                while self._queue or self._batch:
                    self._send_some()
            finally:
                self._sender = None

    def _send_some(self):
        if self._batch is None:
            entries = list(self._queue)
            message = entries[0][0] if len(entries) == 1 else b"".join(entry[0] for entry in entries)
            self._batch = message, [], entries
        message, sent, entries = self._batch
        rest = memoryview(message)[sum(sent) :]
        if self._conn is None or not rest:
            while self._queue and any(self._queue[0] is entry for entry in entries):
                self._queue.popleft()
            self._batch = None
            return
        try:
            # In one step, which no signal can divide: what was sent is counted.
            sent.extend(map(self._conn.send, (rest,)))
        except (BrokenPipeError, ConnectionResetError):  # a handler may raise other OSErrors
            self._conn = None


def _head(size, flags):
    """The bytes before a frame of this size."""
    return struct.pack(">BQ", flags | LONG, size) if size > 255 else bytes((flags, size))


def _parser(receive):
    """A generator that is sent bytes as they come and calls receive with the
    frames of each whole message."""
    data = bytearray()

    def take(n):
        while len(data) < n:
            data.extend((yield))
        taken = bytes(data[:n])
        del data[:n]
        return taken

    yield from take(len(GREETING))
    frames = []
    while True:
        (flags,) = yield from take(1)
        size = yield from take(8 if flags & LONG else 1)
        body = yield from take(int.from_bytes(size, "big"))
        if flags & COMMAND:
            continue
        frames.append(zmq.Frame(body))
        if not flags & MORE:
            receive(frames)
            frames = []
