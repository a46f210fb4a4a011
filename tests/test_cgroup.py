"""Limits of control groups, of both versions and any depth, and what a plan makes of them."""

from dataclasses import replace

import pytest

import topologies
from numalab.agent.host import cgroup
from numalab.agent.plan import kinds, resolve

V2 = {"proc/self/cgroup": "0::/a/b", "proc/mounts": "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0"}
V1 = {
    "proc/self/cgroup": "4:memory:/job\n1:cpu,cpuacct:/job\n0::/",
    "proc/mounts": "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu,cpuacct 0 0\n"
    "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0",
}
GIB = 1 << 30


def write(root, *trees):
    for tree in trees:
        for path, text in tree.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
    return str(root)


def test_the_tightest_group_above_a_process_counts(tmp_path):
    group = "sys/fs/cgroup/a"
    root = write(tmp_path, V2, {
        f"{group}/b/cpu.max": "max 100000", f"{group}/cpu.max": "150000 100000",
        f"{group}/b/memory.max": f"{4 * GIB}", f"{group}/b/memory.current": f"{3 * GIB}",
        f"{group}/b/memory.stat": f"anon 5\nactive_file {GIB}\ninactive_file 0",
        f"{group}/memory.max": "max", f"{group}/b/cpu.stat": "nr_periods 9\nnr_throttled 2",
        f"{group}/cpu.stat": "nr_throttled 3",
    })  # fmt: skip
    assert cgroup.cpu_time(root) == 1.5
    assert cgroup.memory_left(root) == 2 * GIB
    assert cgroup.throttled(root) == 5


def test_version_1(tmp_path):
    cpu, memory = "sys/fs/cgroup/cpu/job", "sys/fs/cgroup/memory/job"
    root = write(tmp_path, V1, {
        f"{cpu}/cpu.cfs_quota_us": "400000", f"{cpu}/cpu.cfs_period_us": "100000",
        f"{cpu}/cpu.stat": "nr_periods 9\nnr_throttled 7\nthrottled_time 1",
        f"{memory}/memory.limit_in_bytes": f"{GIB}", f"{memory}/memory.usage_in_bytes": f"{GIB}",
        f"{memory}/memory.stat": f"cache 1\ntotal_inactive_file {GIB // 2}\ntotal_active_file 0",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
    })  # fmt: skip
    assert cgroup.cpu_time(root) == 4
    assert cgroup.memory_left(root) == GIB // 2
    assert cgroup.throttled(root) == 7


@pytest.mark.parametrize("files", [{}, V2, V1, {"proc/self/cgroup": "0::/../other\ngarbage"}])
def test_without_limits_there_are_none(tmp_path, files):
    root = write(tmp_path, files)
    assert (cgroup.cpu_time(root), cgroup.memory_left(root)) == (None, None)


def limited(**limits):
    host = topologies.topology(2)
    return replace(host, allowed=replace(host.allowed, **limits))


def test_room_is_bounded_by_the_group(tmp_path):
    local = kinds.bound(limited(), limited().cpus_of[0], "bind", [0])
    free, freeable = resolve.room_bytes(limited(), local)
    assert free > GIB and freeable > GIB
    assert resolve.room_bytes(limited(memory_bytes=GIB), local) == (GIB, GIB)
