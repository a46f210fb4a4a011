"""Programs of the agent, compiled for another processor than this one."""

import shutil
import subprocess

import pytest


def self_test_for_aarch64(sources, target):
    """Compile C files for aarch64 and, where an emulator is there, run the program's self-test."""
    compiler = shutil.which("aarch64-linux-gnu-gcc")
    if not compiler:
        pytest.skip("there is no aarch64-linux-gnu-gcc (apt install gcc-aarch64-linux-gnu)")
    words = ["-std=gnu11", "-O3", "-Wall", "-Wextra", "-Werror", "-static", "-pthread"]
    subprocess.run([compiler, *words, *sources, "-o", target], check=True)
    emulator = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if not emulator:
        pytest.skip("it compiles; there is no qemu-aarch64 to run it (apt install qemu-user)")
    done = subprocess.run([emulator, target, "--self-test"], capture_output=True, text=True)
    assert done.stdout == "self-test: ok\n", done.stderr
