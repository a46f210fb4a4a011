"""Processes of a trial start as told, and none outlives it."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import waiting
from fake_tool import alive, mark
from numalab.agent import kernel
from numalab.agent.errors import Fault
from numalab.agent.trial import process


@pytest.fixture(autouse=True)
def leave_orphans_to_init_again():
    yield
    kernel.adopt_orphans(False)


def _start(tmp_path, argv, **options):
    return process.start(argv, stdout=tmp_path / "out", stderr=tmp_path / "err", **options)


def _finish(child):
    assert child.wait(time.monotonic() + waiting.SILENT_S) is not None
    assert child.end() == []
    return child.ended


def test_output_goes_to_files_and_usage_is_recorded(tmp_path):
    child = _start(tmp_path, ["/bin/sh", "-c", "echo out; echo err >&2; exit 5"])
    usage = _finish(child)
    assert (tmp_path / "out").read_text() == "out\n"
    assert (tmp_path / "err").read_text() == "err\n"
    assert usage["kind"] == "rusage"
    assert usage["exit_status"] == 5 and usage["signal"] is None
    assert usage["wall_s"] > 0 and usage["minor_faults"] > 0


def test_a_signal_is_not_an_exit_status(tmp_path):
    usage = _finish(_start(tmp_path, ["/bin/sh", "-c", "kill -SEGV $$"]))
    assert usage["exit_status"] is None and usage["signal"] == signal.SIGSEGV


def test_peak_memory_is_the_programs_own_or_unknown(tmp_path):
    """A small program must not be given the agent's own peak, which fork hands down."""
    small = _finish(_start(tmp_path, ["/bin/sh", "-c", "exit 0"]))
    assert small["max_rss_bytes"] is None and "ended before" in small["max_rss_reason"]
    child = _start(tmp_path, ["sleep", "3600"])

    def peak():
        child.note_peak()
        return (child._peak_bytes or 0) > 100_000

    waiting.wait_for(peak, child)
    os.kill(child.pid, signal.SIGTERM)
    seen = _finish(child)
    assert 100_000 < seen["max_rss_bytes"] < 8 << 20
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10  # what the child inherits
    size = own + (200 << 20) & -4096
    grow = f"import mmap; m = mmap.mmap(-1, {size}); [m.seek(i) or m.write_byte(1)"
    grow += f" for i in range(0, {size}, 4096)]"
    large = _finish(_start(tmp_path, [sys.executable, "-c", grow]))
    assert size <= large["max_rss_bytes"] < size + (200 << 20)


def test_a_program_that_does_not_exist_is_a_fault(tmp_path):
    with pytest.raises(Fault, match="no-such-program cannot be started: No such file"):
        _start(tmp_path, ["/no-such-program"])


def test_a_gated_child_waits_and_then_is_the_program(tmp_path):
    child = _start(tmp_path, ["sleep", "3600"], gated=True)
    time.sleep(0.1)
    assert not child.is_program() and child.poll() is None
    before = time.monotonic()
    child.open_gate()
    after = time.monotonic()
    waiting.wait_for(child.is_program, child)
    assert os.readlink(f"/proc/{child.pid}/exe").endswith(("sleep", "coreutils", "busybox"))
    time.sleep(0.1)
    killed = time.monotonic()
    os.kill(child.pid, signal.SIGTERM)
    # Neither the time at the gate counts, nor that of our looks.
    assert killed - after <= _finish(child)["wall_s"] <= time.monotonic() - before


@pytest.mark.parametrize("gated", [False, True])
def test_a_child_is_bound_before_its_first_instruction(tmp_path, gated):
    cpu, node = str(min(os.sched_getaffinity(0))), _node()
    binding = {"cpus": cpu, "policy": "bind", "nodes": node}
    look = "import time; print(open('/proc/self/numa_maps').readline(),"
    look += " open('/proc/self/status').read()); time.sleep(0.1)"
    child = _start(tmp_path, [sys.executable, "-c", look], binding=binding, gated=gated)
    assert child.bound == binding
    if gated:
        child.open_gate()
    _finish(child)
    said = (tmp_path / "out").read_text()
    assert f" bind:{node} " in said and f"Cpus_allowed_list:\t{cpu}\n" in said
    assert kernel.memory_policy()["policy"] == "default"  # the agent itself is not bound


def test_an_inherited_policy_is_not_what_a_cell_without_one_gets(tmp_path):
    node = _node()
    code = (
        "import sys, pathlib; from numalab.agent import kernel; "
        "from numalab.agent.trial import process; here = pathlib.Path(sys.argv[1]); "
        f"kernel.bind(None, 'interleave', '{node}'); "
        "child = process.start(['cat', '/proc/self/numa_maps'], stdout=here / 'out', "
        "stderr=here / 'err', binding={'cpus': None, 'policy': 'default', 'nodes': None}); "
        "child.wait(1e9); child.end(); print(child.bound['policy'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "default\n"
    policies = {line.split()[1] for line in (tmp_path / "out").read_text().splitlines()}
    assert policies == {"default"}


@pytest.mark.parametrize(
    ("binding", "code", "said"),
    [
        ({"cpus": "7000", "policy": "default", "nodes": None}, "cpus-refused", "CPU 7000"),
        ({"cpus": "{cpu},7000", "policy": "default", "nodes": None}, "cpus-refused", "CPU 7000"),
        ({"cpus": None, "policy": "bind", "nodes": "1000"}, "policy-refused", "node 1000"),
        ({"cpus": None, "policy": "bind", "nodes": "{node},1000"}, "policy-", "1000"),
    ],
)
def test_a_binding_that_cannot_be_had_starts_nothing(tmp_path, binding, code, said):
    known = {"cpu": min(os.sched_getaffinity(0)), "node": _node()}
    asked = {name: value and value.format(**known) for name, value in binding.items()}
    with pytest.raises(Fault) as caught:
        _start(tmp_path, ["/bin/sh", "-c", "echo started"], binding=asked)
    assert caught.value.reason.code.startswith(code) and said in str(caught.value.reason)
    assert (tmp_path / "out").read_text() == ""


def _node():
    """A node that memory can be bound to here, as a list."""
    allowed = kernel.status(Path("/proc/self/status").read_text()).get("Mems_allowed_list", "")
    if "set_mempolicy" in kernel.forbidden_calls() or not allowed:
        pytest.skip("no memory policy can be set here")
    return allowed.replace("-", ",").split(",")[0]


def test_a_child_may_be_killed_for_memory_first(tmp_path):
    child = _start(tmp_path, ["cat", "/proc/self/oom_score_adj"], expendable=True)
    _finish(child)
    assert (tmp_path / "out").read_text() == "1000\n"


def test_a_talking_child_hears_and_a_dead_one_does_not_matter(tmp_path):
    child = _start(tmp_path, ["/bin/sh", "-c", "read a; echo got $a"], talks=True)
    child.write_line("go")
    _finish(child)
    assert (tmp_path / "out").read_text() == "got go\n"
    child.write_line("more")


def test_descendants_come_parents_first(tmp_path):
    number = mark()
    child = _start(tmp_path, ["/bin/sh", "-c", f"sh -c 'sleep {number} & wait' & wait"])
    waiting.wait_for(lambda: alive(number), child)
    below = kernel.descendants(child.pid)
    assert alive(number)[-1] == below[-1]
    assert child.pid in kernel.descendants(os.getpid())
    assert child.end() == []
    _finish(child)
    assert not alive(number)


def test_the_end_of_a_trial_reaches_daemons_and_the_stubborn(tmp_path):
    """Own session, empty environment, adopted, ignores SIGTERM: dead all the same, and reaped."""
    kernel.adopt_orphans()
    number = mark()
    before = kernel.descendants(os.getpid())
    bystander = subprocess.Popen(["sleep", "3600"])
    script = (
        f"setsid env -i sh -c 'trap \"\" TERM HUP; sleep {number}; sleep {number}' & "
        f"(setsid sleep {number} &); trap '' TERM; sleep {number}"
    )
    try:
        child = _start(tmp_path, ["/bin/sh", "-c", script], gated=True)
        child.open_gate()
        waiting.wait_for(lambda: len(alive(number)) >= 3, child)
        assert len(alive(number)) == 3
        assert child.end() == []
        assert _finish(child)["signal"] == signal.SIGKILL
        assert not alive(number)
        assert set(kernel.descendants(os.getpid())) <= {bystander.pid, *before}
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_fork_bomb_is_ended(tmp_path):
    kernel.adopt_orphans()
    number = mark()
    bomb = tmp_path / "bomb"
    bomb.write_text(f"#!/bin/sh\n: {number}\nn=$1\n[ $n -gt 12 ] && exec sleep {number}\n"
                    "sh $0 $((n+1)) & sh $0 $((n+1)) & wait\n")  # fmt: skip
    child = _start(tmp_path, ["/bin/sh", str(bomb), "7"])
    time.sleep(0.05)  # in the middle of its growth
    assert child.end() == []
    _finish(child)
    assert not alive(number) and not alive(str(bomb))


def test_a_child_dies_with_its_starter(tmp_path):
    number = mark()
    starter = (
        "import sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from numalab.agent.trial import process\n"
        f"process.start(['sleep', '{number}'], stdout=Path('o'), stderr=Path('e'))\n"
        "print('up', flush=True); time.sleep(3600)\n"
    )
    lib = str(Path(process.__file__).resolve().parents[3])
    parent = subprocess.Popen(
        [sys.executable, "-c", starter, lib], stdout=subprocess.PIPE, cwd=tmp_path
    )
    assert parent.stdout.readline() == b"up\n"
    assert alive(number)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    waiting.wait_for(lambda: not alive(number), tells=waiting.processes)


def test_the_tree_dies_when_the_warden_is_killed(tmp_path):
    """The one process that ends the others may be killed as well."""
    kernel.adopt_orphans()
    number = mark()
    script = f"(setsid env -i sleep {number} &); trap '' TERM; sleep {number}; :"
    child = _start(tmp_path, ["/bin/sh", "-c", script])
    waiting.wait_for(lambda: len(alive(number)) >= 2, child)
    os.kill(child.warden, signal.SIGKILL)
    assert _finish(child)["signal"] == signal.SIGKILL
    assert not alive(number)


def test_the_agents_death_reaches_daemons(tmp_path):
    number = mark()
    starter = (
        "import sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from numalab.agent.trial import process\n"
        f"script = '(setsid env -i sleep {number} &); sleep {number}'\n"
        "child = process.start(['/bin/sh', '-c', script], stdout=Path('o'), stderr=Path('e'))\n"
        "print(child.warden, flush=True); time.sleep(3600)\n"
    )
    lib = str(Path(process.__file__).resolve().parents[3])
    agent = subprocess.Popen(
        [sys.executable, "-c", starter, lib], stdout=subprocess.PIPE, cwd=tmp_path
    )
    warden = int(agent.stdout.readline())
    waiting.wait_for(lambda: len(alive(number)) >= 2, agent)
    os.kill(warden, signal.SIGTERM)  # it does not listen to that
    agent.kill()
    assert agent.stdout.read() == b""  # the warden does not hold the agent's output open
    agent.wait()
    agent.stdout.close()
    waiting.wait_for(
        lambda: not alive(number) and not waiting.lives(warden), tells=waiting.processes
    )
