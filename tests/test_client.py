"""A client of a server: when its figures begin to count."""

import os
import sys
import time

import pytest

from numalab.agent.errors import Fault
from numalab.agent.served.client import Client


class Server:
    """What a client asks; it does nothing."""

    name = "0"

    def __init__(self, folder):
        self.datadir = str(folder)

    def usage(self):
        return {"cpu_s": time.monotonic()}

    def counters(self):
        return {"asked": 1.0}

    def check_alive(self, when, patience_s=0.0):
        pass


class Asking(Client):
    program = "asking"
    checkpoint = b"now it counts"


def ended(tmp_path, body, lead_s):
    cpus = sorted(os.sched_getaffinity(0))
    client = Asking(Server(tmp_path), [sys.executable, "-c", body], 1, lead_s, 0, cpus, None)
    while not client.look():
        time.sleep(0.01)
    return client


def test_a_client_that_does_not_say_when_it_counts_is_a_fault(tmp_path):
    with pytest.raises(Fault, match="asking never said that its warm-up had ended"):
        ended(tmp_path, "print('some figure')", lead_s=1).check()


def test_a_client_that_says_it_or_has_no_warm_up_is_none(tmp_path):
    ended(tmp_path, "print('now it counts')", lead_s=1).check()
    ended(tmp_path, "print('some figure')", lead_s=0).check()


def test_what_a_client_said_when_it_failed_is_told(tmp_path):
    with pytest.raises(Fault, match="no such table"):
        ended(tmp_path, "import sys; sys.exit('no such table')", lead_s=1).check()
