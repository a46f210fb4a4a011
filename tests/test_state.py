"""The state of synthetic machines: settings, hypervisors, and what changed between two readings."""

import shutil
from dataclasses import replace

import pytest

import sysfs_tree
from numalab.agent.contract import State, from_json, to_json
from numalab.agent.host import state, topology

CPU = "sys/devices/system/cpu"
X86 = "vendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Xeon(R) CPU\nflags\t\t: fpu lm\n"
GUEST = X86.replace("fpu lm", "fpu lm hypervisor")
ARM = "BogoMIPS\t: 50.00\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd0c\n"
CLOCKS = "sys/devices/system/clocksource/clocksource0/available_clocksource"
QEMU = {"sys/class/dmi/id/sys_vendor": "QEMU", "sys/class/dmi/id/product_name": "Standard PC"}


def read(tmp_path, machine=sysfs_tree.ONE_NODE, **files):
    return state.read(sysfs_tree.write(tmp_path, replace(machine, files=files.get("files", {}))))


def test_every_entry_has_a_value_or_a_reason(tmp_path):
    for found in (read(tmp_path), state.read("/")):
        assert from_json(State, to_json(found)) == found
        for name, entry in found.items():
            assert (entry.value is None) == bool(entry.reason), name


def test_settings(tmp_path):
    found = read(
        tmp_path,
        files={
            "proc/sys/kernel/numa_balancing": "1",
            f"{CPU}/isolated": "",
            f"{CPU}/nohz_full": "2-3",
            f"{CPU}/smt/control": "on",
            "proc/pressure/cpu": "some avg10=1.50 avg60=0.00 avg300=0.00 total=9\n",
            "sys/class/thermal/thermal_zone0/type": "x86_pkg_temp",
            "sys/class/thermal/thermal_zone0/temp": "45500",
            f"{CPU}/cpu0/thermal_throttle/core_throttle_count": "3",
            f"{CPU}/cpu1/thermal_throttle/core_throttle_count": "7",
            f"{CPU}/vulnerabilities/meltdown": "Mitigation: PTI",
            "etc/os-release": 'NAME="Rocky"\nPRETTY_NAME="Rocky Linux 9.4"\n',
        },
    )
    expected = {
        "kernel.numa_balancing": "1",
        "thp.enabled": "madvise",
        "thp.defrag": "madvise",
        "cpu.isolated": "none",
        "cpu.nohz_full": "2-3",
        "cpu.smt": "on",
        "psi.cpu": 1.5,
        "load.average": [0.1, 0.2, 0.3],
        "temperature.celsius": {"x86_pkg_temp": 45.5},
        "throttle.core": 7,
        "cpu.mitigations": {"meltdown": "Mitigation: PTI"},
        "os.release": "Rocky Linux 9.4",
        "memory.total_bytes": 16 << 30,
        "cpuset.cpus": "0-7",
    }
    assert {name: state.value(found, name) for name in expected} == expected


def test_what_is_missing_says_so(tmp_path):
    found = read(tmp_path, files={"proc/loadavg": "soon", "proc/cmdline/x": "a folder",
                                  "proc/cmdline": None})  # fmt: skip
    assert "there is no" in str(found["vm.lru_gen"].reason)
    assert "cannot be read" in str(found["kernel.cmdline"].reason)
    assert found["load.average"].value is None
    assert "no cpufreq policies" in str(found["cpu.governor"].reason)


@pytest.mark.parametrize(
    ("files", "turbo"),
    [
        ({f"{CPU}/intel_pstate/no_turbo": "0"}, "on"),
        ({f"{CPU}/intel_pstate/no_turbo": "1"}, "off"),
        ({f"{CPU}/cpufreq/boost": "1"}, "on"),
        ({f"{CPU}/cpufreq/boost": "0"}, "off"),
        ({}, None),
    ],
)
def test_turbo(tmp_path, files, turbo):
    assert state.value(read(tmp_path, files=files), "cpu.turbo") == turbo


def test_governors_of_policies_and_of_old_kernels(tmp_path):
    one = {f"{CPU}/cpufreq/policy{n}/scaling_governor": "performance" for n in range(4)}
    assert state.value(read(tmp_path / "one", files=one), "cpu.governor") == "performance"
    mixed = {**one, f"{CPU}/cpufreq/policy3/scaling_governor": "powersave"}
    assert state.value(read(tmp_path / "mixed", files=mixed), "cpu.governor") == (
        "performance (3 policies), powersave (1 policies)"
    )
    old = {f"{CPU}/cpu0/cpufreq/scaling_governor": "ondemand"}
    assert state.value(read(tmp_path / "old", files=old), "cpu.governor") == "ondemand"


@pytest.mark.parametrize(
    ("machine", "per_package", "mode"),
    [
        (sysfs_tree.AMD_8N, 4, "NPS4"),
        (sysfs_tree.INTEL_2N, 1, "SNC off"),
        (sysfs_tree.ARM_16N, 8, None),
        (sysfs_tree.CXL_3N, 1, "SNC off"),
        (sysfs_tree.OLD_KERNEL_4N, 1, "SNC off"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_the_firmware_mode_is_inferred(machine, per_package, mode):
    found = state.read(sysfs_tree.shared(machine))
    assert state.value(found, "numa.nodes_per_package") == per_package
    assert state.value(found, "numa.mode") == mode


def test_a_node_that_holds_two_packages(tmp_path):
    machine = replace(
        sysfs_tree.AMD_8N,
        cpus=tuple(replace(cpu, node=0) for cpu in sysfs_tree.AMD_8N.cpus),
        nodes=(sysfs_tree.Node(0, distances=[10]),),
    )
    found = read(tmp_path, machine)
    assert state.value(found, "numa.nodes_per_package") == 0
    assert state.value(found, "numa.mode") == "NPS0"


@pytest.mark.parametrize(
    ("cpuinfo", "files", "hypervisor", "is_emulated"),
    [
        (X86, {"sys/class/dmi/id/sys_vendor": "Dell Inc."}, "none", False),
        (X86, {}, None, False),  # a copy without the firmware's names: VirtualBox may lack the flag
        (X86, {"proc/bus/pci/devices": "0010\t80eebeef\t12\t0"}, "virtualbox", False),
        (X86, {"sys/bus/pci/devices/0000:00:02.0/vendor": "0x80ee"}, "virtualbox", False),
        (
            GUEST,
            {"sys/class/dmi/id/sys_vendor": "innotek GmbH", CLOCKS: "kvm-clock"},
            "virtualbox",
            False,
        ),
        (X86, {"proc/bus/pci/devices": "0010\t15ad0405\t12\t0"}, "vmware", False),
        (GUEST, {}, "unnamed", False),
        (GUEST, {CLOCKS: "tsc kvm-clock"}, "kvm", False),
        (GUEST, {**QEMU, CLOCKS: "kvm-clock tsc acpi_pm"}, "kvm", False),
        (GUEST, {**QEMU, CLOCKS: "tsc hpet acpi_pm"}, "qemu", True),
        (X86, QEMU, "qemu", True),
        (GUEST, {CLOCKS: "tsc hyperv_clocksource_tsc_page"}, "hyper-v", False),
        (GUEST, {"sys/class/dmi/id/sys_vendor": "VMware, Inc."}, "vmware", False),
        (GUEST, {"sys/class/dmi/id/sys_vendor": "Amazon EC2"}, "kvm", False),
        (GUEST, {"sys/hypervisor/type": "xen"}, "xen", False),
        (
            GUEST.replace("Intel(R) Xeon(R) CPU", "QEMU TCG CPU version 2.5+"),
            {CLOCKS: "tsc"},
            "tcg",
            True,
        ),
        (ARM, {}, None, False),
        (ARM, {"proc/device-tree/compatible": "linux,dummy-virt"}, None, False),
        (
            ARM.replace("50.00", "125.00"),
            {"proc/device-tree/compatible": "linux,dummy-virt"},
            "tcg",
            True,
        ),
        (ARM.replace("0x41", "0x00"), {}, "tcg", True),
        (ARM, {**QEMU, "sys/class/ptp/ptp0/clock_name": "KVM virtual PTP"}, "kvm", False),
        (ARM, {"sys/class/dmi/id/sys_vendor": "QEMU"}, "qemu", True),
        ("cpu : POWER9\nmodel : IBM pSeries (emulated by qemu)\n", {}, "qemu", True),
        (
            "cpu : POWER9\nmodel : IBM pSeries (emulated by qemu)\n",
            {"proc/device-tree/hypervisor/compatible": "linux,kvm"},
            "kvm",
            False,
        ),
        (
            "vendor_id : IBM/S390\n",
            {"proc/sysinfo": "Manufacturer:         IBM\nVM00 Control Program: KVM/Linux\n"},
            "kvm",
            False,
        ),
        ("vendor_id : IBM/S390\n", {"proc/sysinfo": "Manufacturer:   QEMU\n"}, "tcg", True),
    ],
)
def test_hypervisors_and_emulators(tmp_path, cpuinfo, files, hypervisor, is_emulated):
    machine = replace(sysfs_tree.ONE_NODE, cpuinfo=cpuinfo, files=files)
    root = sysfs_tree.write(tmp_path, machine)
    found = state.read(root)
    assert state.value(found, "virt.hypervisor") == hypervisor
    shown, why = state.emulated(topology.read(root), found)
    assert shown is is_emulated
    assert bool(why) is is_emulated
    if hypervisor not in (None, "none"):
        assert state.value(found, "virt.evidence")
        assert state.value(found, "numa.mode") is None


def test_compare_names_settings_and_throttling_only(tmp_path):
    before = read(
        tmp_path,
        files={
            "proc/loadavg": "0.1 0.1 0.1 1/2 3",
            f"{CPU}/vulnerabilities/mds": "Vulnerable",
            f"{CPU}/cpu0/thermal_throttle/core_throttle_count": "1",
        },
    )
    assert state.compare(before, before) == []
    root = sysfs_tree.write(tmp_path / "after", sysfs_tree.ONE_NODE)
    changes = {
        "proc/loadavg": "9.1 0.1 0.1 1/2 3",
        "proc/sys/kernel/numa_balancing": "1",
        "sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never",
        f"{CPU}/vulnerabilities/mds": "Mitigation: Clear CPU buffers",
        f"{CPU}/cpu0/thermal_throttle/core_throttle_count": "5",
    }
    for path, text in changes.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    (root / "proc/sys/vm/swappiness").unlink()
    after = state.read(root)
    lines = list(map(str, state.compare(before, after)))
    assert [line.split(" ")[0] for line in lines] == [
        "cpu.mitigations,",
        "kernel.numa_balancing",
        "thp.enabled",
        "the",
        "vm.swappiness",
    ]
    assert lines[1] == "kernel.numa_balancing changed from 0 to 1"
    assert "throttled 4 times" in lines[3]
    assert "to unknown (there is no" in lines[4]


def test_a_tree_without_anything_still_has_a_state(tmp_path):
    root = sysfs_tree.write(tmp_path, sysfs_tree.ONE_NODE)
    shutil.rmtree(root / "proc")
    shutil.rmtree(root / "sys")
    assert all(entry.reason for entry in state.read(root).values())
