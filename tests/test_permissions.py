"""What a process may not do here is said when the plan is made, before anything is measured."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

import forbidding
from numalab import home, launch
from numalab.agent import kernel
from numalab.agent.contract import reason
from numalab.agent.errors import Fault
from numalab.agent.host import tools

POLICY = ("set_mempolicy", "mbind", "get_mempolicy", "move_pages")  # as docker's own profile
_TELL = (
    "import json; from numalab.agent import kernel; "
    "print(json.dumps({n: w.code for n, w in kernel.forbidden_calls().items()}))"
)


@pytest.fixture(autouse=True)
def all_is_allowed_without_a_filter():
    if {*kernel.forbidden_calls()} & {*POLICY}:
        pytest.skip("these calls are forbidden here anyway")


@pytest.mark.parametrize(("kill", "code"), [(False, "call-forbidden"), (True, "call-kills")])
def test_a_filter_is_found_whatever_it_does(kill, code):
    done = forbidding.run(["set_mempolicy", "move_pages"], [sys.executable, "-c", _TELL], kill)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    found.pop("perf_event_open", None)
    assert found == {"set_mempolicy": code, "move_pages": code}


def test_a_plan_in_a_container_says_what_it_cannot_bind():
    words = ["plan", "command", "-b", "local", "-b", "cpus-only", "--", "true"]
    done = forbidding.run(POLICY, forbidding.numalab(*words))
    said = " ".join(done.stdout.split())
    assert done.returncode == 0, done.stderr
    assert "this process may not call set_mempolicy (Operation not permitted)" in said
    assert "--cap-add SYS_NICE" in said and "cpus-only" in said


def test_what_needs_no_policy_runs_under_such_a_filter():
    code = (
        "import pathlib, sys, tempfile, time; from numalab.agent.trial import process; "
        "here = pathlib.Path(tempfile.mkdtemp()); "
        f"binding = {{'cpus': '{min(os.sched_getaffinity(0))}', 'policy': 'default'}}; "
        "child = process.start(['cat', '/proc/self/status'], stdout=here / 'out', "
        "stderr=here / 'err', binding=binding); child.wait(time.monotonic() + 600); "
        "child.end(); print(child.bound)"
    )
    done = forbidding.run(POLICY, [sys.executable, "-c", code])
    cpu = min(os.sched_getaffinity(0))
    assert done.stdout.strip() == str({"cpus": str(cpu)}), done.stderr


def test_missing_counters_and_proofs_are_told(monkeypatch):
    monkeypatch.setattr(tools, "perf_use", lambda: (True, None))
    monkeypatch.setattr(tools.shutil, "which", lambda name: f"/usr/bin/{name}")
    why = {name: reason("call-forbidden", call=name, error="no") for name in
           ("move_pages", "perf_event_open")}  # fmt: skip
    codes = [one.code for one in tools.missing(True, why)]
    assert codes == ["no-proof-of-buffers", "counters-missing"]
    assert tools.missing(True, {}) == []
    assert [one.code for one in tools.missing(False, why)] == ["no-proof-of-buffers"]
    monkeypatch.setattr(tools.shutil, "which", lambda name: None)
    assert str(tools.missing(True, {})[0]) == (
        "hardware counters: perf is not on PATH: hardware counters need it"
    )


def test_only_real_privileges_lift_the_level(tmp_path):
    """Root of a user namespace, and root without the capability, may not count."""
    for name, text in (
        ("proc/sys/kernel/perf_event_paranoid", "4\n"),
        ("sys/bus/event_source/devices/cpu/type", "4\n"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    here = tmp_path / "proc/self"
    here.mkdir()
    cases = (
        ("000001ffffffffff", "0 0 4294967295", True),
        ("0000004000000000", "0 0 4294967295", True),  # CAP_PERFMON alone
        ("0000000000000000", "0 0 4294967295", False),
        ("00000000a80425fb", "0 0 4294967295", False),  # of docker's root
        ("000001ffffffffff", "0 1000 1", False),
    )
    for capabilities, ids, may in cases:
        (here / "status").write_text(f"Name:\tx\nCapEff:\t{capabilities}\n")
        (here / "uid_map").write_text(f"         {ids}\n")
        assert tools.perf_use(str(tmp_path)) == (
            (True, None) if may else (False, reason("perf-not-permitted", level=4))
        )


def test_a_checkout_that_is_not_the_users_own_is_left_alone(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert home.build() == home.root() / "build"
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert home.build().parent == tmp_path / "numalab" / "build"


def test_where_no_run_can_be_kept_that_is_said(monkeypatch, tmp_path):
    def refused(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.raises(Fault, match="no run can be kept in .*here.*NUMALAB_RUNS=DIR"):
        launch.measure(None, tmp_path / "here" / "run")
