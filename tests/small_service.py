"""A service that is as good or bad as it is asked to be, and a load for it.

As a service: ``small_service.py serve unix:PATH|PORT [WORD …]`` answers every request by HTTP with
200, /counters with JSON. Words: ``late=S`` listens after S seconds, ``status=N`` for pages,
``counters=N``, ``dies=N`` kills itself at request N, ``exits=N`` ends at once with a last word,
``stays`` does not end by SIGTERM, ``group`` passes it to its whole process group,
``children=N`` holds its memory in N processes.
As a load: ``small_service.py ask unix:PATH|PORT SECONDS [REQUESTS]`` prints its figures.
"""

import http.client
import json
import os
import signal
import socket
import socketserver
import sys
import time
from http.server import BaseHTTPRequestHandler


def connect(to: str) -> socket.socket:
    """Return a connection to unix:PATH or a port of 127.0.0.1."""
    if to.startswith("unix:"):
        one = socket.socket(socket.AF_UNIX)
        one.connect(to[5:])
        return one
    return socket.create_connection(("127.0.0.1", int(to)))


def end_group(*_) -> None:
    """End as lighttpd does: its workers and whoever else is in its process group."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(0, signal.SIGTERM)


def serve(to: str, *words: str) -> None:
    """Answer until killed."""
    asked = dict(word.partition("=")[::2] for word in words)
    if "exits" in asked:
        print("wrong configuration: line 7", file=sys.stderr)
        sys.exit(int(asked["exits"]))
    if "stays" in asked:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "group" in asked:
        signal.signal(signal.SIGTERM, end_group)
    for _ in range(int(asked.get("children", 0))):
        if os.fork() == 0:
            held = b"x" * (8 << 20)
            signal.pause()
            print(len(held))
    count = 0

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            nonlocal count
            count += 1
            if count == int(asked.get("dies", -1)):
                print("out of ideas", file=sys.stderr, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            status, body = int(asked.get("status", 200)), b"page\n"
            if self.path == "/counters":
                status = int(asked.get("counters", 200))
                body = json.dumps({"served": count, "busy": time.process_time()}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    time.sleep(float(asked.get("late", 0)))
    if to.startswith("unix:"):
        kind, address = socketserver.ThreadingUnixStreamServer, to[5:]
    else:
        kind, address = socketserver.ThreadingTCPServer, ("127.0.0.1", int(to))
    kind.daemon_threads = True
    with kind(address, Handler) as server:
        print("now it listens", flush=True)
        server.serve_forever()


def ask(to: str, seconds: str, most: str = "1000000000") -> None:
    """Ask one page after the other; print what that gave."""
    began, done = time.monotonic(), 0
    page = http.client.HTTPConnection("localhost")
    page.sock = connect(to)
    while time.monotonic() - began < float(seconds) and done < int(most):
        page.request("GET", "/page")
        page.getresponse().read()
        done += 1
    took = time.monotonic() - began
    print(f"done {done:,} requests\n  mean latency {took / max(1, done) * 1e6:.1f}us")
    print(f"Requests/sec: {done / took:.2f}")


if __name__ == "__main__":
    {"serve": serve, "ask": ask}[sys.argv[1]](*sys.argv[2:])
