"""Reading /proc and /sys: formats, what cannot be read, trees of processes, a child's end."""

import os
import subprocess
import sys
import time

import pytest

from numalab.agent import kernel


def test_what_cannot_be_read_is_none(tmp_path):
    assert kernel.read_text(str(tmp_path / "nothing")) is None
    assert kernel.read_text(str(tmp_path)) is None  # a folder
    assert kernel.read_int(str(tmp_path / "nothing")) is None
    assert kernel.list_nodes(str(tmp_path)) == [] and kernel.vmstat(str(tmp_path)) == {}
    (tmp_path / "words").write_text(" many \n\0")
    assert kernel.read_text(str(tmp_path / "words")) == "many"
    assert kernel.read_int(str(tmp_path / "words")) is None
    assert kernel.read(str(tmp_path / "words"), 3) == " ma"


def test_a_pipe_in_a_copied_tree_does_not_make_us_wait(tmp_path):
    os.mkfifo(tmp_path / "meminfo")
    assert not kernel.read_text(str(tmp_path / "meminfo"))


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("f", {0, 1, 2, 3}),
        ("1,00000001", {0, 32}),
        ("00000000", set()),
        ("zz", None),
        ("1,1", None),
        ("", None),
        (None, None),
    ],
)
def test_bitmaps(text, numbers):
    assert kernel.cpu_mask(text) == numbers


def test_texts_of_the_kernel():
    assert kernel.chosen("always [madvise] never") == "madvise"
    assert kernel.chosen(" 1 \t 2 ") == "1 2"
    text = "Node 0 MemTotal:   4 kB\nNode 0 HugePages_Free:   3\nVmHWM:\t  2 kB\n"
    assert kernel.meminfo(text) == {"MemTotal": 4096, "HugePages_Free": 3, "VmHWM": 2048}
    assert kernel.counters("numa_hit 5\nodd\nnuma_miss 0\n") == {"numa_hit": 5, "numa_miss": 0}
    status = kernel.status("Name:\ta b\nCpus_allowed_list:\t0-3\n")
    assert status == {"Name": "a b", "Cpus_allowed_list": "0-3"}


def test_this_process_has_a_stat():
    own = kernel.processes()[os.getpid()]
    assert (own.parent, own.ended) == (os.getppid(), False)
    assert own.resident_pages > 100 and own.ticks >= 0
    assert os.getpid() in kernel.threads(os.getpid())
    with pytest.raises(ValueError):
        kernel.parse_stat("1 (cut) S 0")


def test_a_tree_holds_descendants_and_sessions():
    def process(pid, parent, session, state="S"):
        return kernel.Stat(pid, "p", state, parent, session, 0, 0, 0, 0, 0)

    table = {
        one.pid: one
        for one in (
            process(1, 0, 1), process(10, 1, 10), process(11, 10, 10), process(12, 11, 12),
            process(13, 1, 10), process(14, 10, 10, "Z"), process(20, 1, 20),
        )
    }  # fmt: skip
    assert kernel.tree(10, table) == [10, 11, 12, 13]  # 13 left its parent, not its session
    assert kernel.tree([20, 99], table) == [20]
    assert kernel.descendants(10, table) == [11, 14, 12]


def test_a_child_dies_with_its_parent():
    program = (
        "import subprocess, sys; from numalab.agent import kernel\n"
        "child = subprocess.Popen(['sleep', '60'], preexec_fn=kernel.die_with_parent())\n"
        "print(child.pid, flush=True); sys.stdin.read()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    child = int(parent.stdout.readline())
    assert kernel.stat_of(f"/proc/{child}").name == "sleep"
    parent.kill()
    parent.communicate()
    for _ in range(500):
        left = kernel.stat_of(f"/proc/{child}")
        if left is None or left.ended:
            return
        time.sleep(0.02)
    pytest.fail("the child lives on")


def test_mounts_and_own_groups_are_read_once_for_all(tmp_path):
    (tmp_path / "proc" / "self").mkdir(parents=True)
    assert kernel.mounts(str(tmp_path)) == [] and kernel.own_groups(str(tmp_path)) == {}
    (tmp_path / "proc" / "mounts").write_text(
        "/dev/sda1 /my\\040disk ext4 rw,noatime 0 0\nnone /sys/fs/cgroup cgroup2 rw 0 0\n"
    )
    (tmp_path / "proc" / "self" / "cgroup").write_text("4:cpu,cpuacct:/a:b\n0::/user\n")
    disk, groups = kernel.mounts(str(tmp_path))
    assert disk == ("/my disk", "ext4", ("rw", "noatime")) and groups.kind == "cgroup2"
    assert kernel.own_groups(str(tmp_path)) == {"cpu": "/a:b", "cpuacct": "/a:b", "": "/user"}
