"""A process that may not make some system calls, as in a container (seccomp(2))."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from numalab.agent import kernel

REPOSITORY = Path(__file__).resolve().parent.parent
_LOAD, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06  # linux/bpf_common.h
_ALLOW, _ERROR, _KILL = 0x7FFF0000, 0x00050000, 0x80000000  # linux/seccomp.h
_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2  # linux/prctl.h
EPERM = 1


def run(calls, words, kill=False, **options):
    """Run a command in which these calls fail with EPERM, or kill; return what subprocess.run does.

    Skips the test where no filter can be installed.
    """
    act = _KILL if kill else _ERROR | EPERM
    numbers = [kernel._NUMBERS[os.uname().machine][kernel._CALLS.index(call)] for call in calls]
    lines = [(_LOAD, 0, 0, 0)]  # the number of the call
    for number in numbers:
        lines += [(_IF_EQUAL, 0, 1, number), (_RETURN, 0, 0, act)]
    lines.append((_RETURN, 0, 0, _ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
    program = struct.pack("HxxxxxxP", len(lines), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)

    def install():
        libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        if libc.prctl(_SECCOMP, _FILTER, program, 0, 0) != 0:
            os._exit(77)

    options.setdefault("env", {**os.environ, "PYTHONPATH": str(REPOSITORY / "lib")})
    done = subprocess.run(words, preexec_fn=install, capture_output=True, text=True, **options)
    if done.returncode == 77:
        pytest.skip("this kernel installs no seccomp filter")
    return done


def numalab(*words):
    """Return the words that call numalab."""
    return [sys.executable, "-m", "numalab.cli", *words]
