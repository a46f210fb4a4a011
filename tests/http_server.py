"""HTTP servers for tests of clients: one that answers as a script says, one that stands still."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """A thread that listens on ``unix:PATH``, or on a free port of 127.0.0.1 without a path."""

    def __init__(self, path=None):
        self.listener = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
        self.listener.bind(str(path) if path else ("127.0.0.1", 0))
        self.listener.listen(64)
        self.to = f"unix:{path}" if path else f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.ended = False
        self.thread = threading.Thread(target=self.serve, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended = True
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(10)

    def serve(self):
        raise NotImplementedError


class Scripted(Server):
    """Answers request ``n`` (from 0) with the pieces of ``script(n, request)``, one send each.

    A number among the pieces is a pause (s), None closes the connection, "reset" does so with an
    RST. The end of the pieces leaves it open.
    """

    def __init__(self, script: Callable, path=None):
        super().__init__(path)
        self.script, self.lock = script, threading.Lock()
        self.requests, self.connections = [], 0

    def serve(self):
        with contextlib.suppress(OSError):
            while True:
                one, _ = self.listener.accept()
                self.connections += 1
                threading.Thread(target=self.talk, args=(one,), daemon=True).start()

    def talk(self, one):
        data = b""
        with one, contextlib.suppress(OSError):
            while True:
                while b"\r\n\r\n" not in data:
                    more = one.recv(65536)
                    if not more:
                        return
                    data += more
                request, _, data = data.partition(b"\r\n\r\n")
                with self.lock:
                    number = len(self.requests)
                    self.requests.append(request.decode())
                for piece in self.script(number, request.decode()):
                    if piece is None:
                        return
                    if piece == "reset":
                        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                        return
                    if isinstance(piece, (int, float)):
                        time.sleep(piece)
                    else:
                        one.sendall(piece)


class Frozen(Server):
    """One thread answers at once, but stands still for ``freeze_s``, ``after_s`` from the first.

    ``answered`` has the time of every answer (CLOCK_MONOTONIC, s).
    """

    def __init__(self, after_s, freeze_s, path=None):
        super().__init__(path)
        self.after_s, self.freeze_s = after_s, freeze_s
        self.answered = []

    def serve(self):
        frozen = False
        with selectors.DefaultSelector() as ready:
            ready.register(self.listener, selectors.EVENT_READ)
            while not self.ended:
                for key, _ in ready.select(0.1):
                    if key.fileobj is self.listener:
                        with contextlib.suppress(OSError):
                            ready.register(self.listener.accept()[0], selectors.EVENT_READ)
                        continue
                    one = key.fileobj
                    try:
                        asked = one.recv(65536).count(b"\r\n\r\n")
                        one.sendall(OK * asked)
                    except OSError:
                        asked = 0
                    if not asked:
                        ready.unregister(one)
                        one.close()
                        continue
                    self.answered += [time.monotonic()] * asked
                    if not frozen and self.answered[-1] - self.answered[0] > self.after_s:
                        frozen = True
                        time.sleep(self.freeze_s)

    def gap(self):
        """Return the longest time (s) without an answer."""
        return max(b - a for a, b in zip(self.answered, self.answered[1:]))
