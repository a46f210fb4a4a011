"""Sentences of the codes of the collectors room."""

from __future__ import annotations

from typing import Dict

from . import Template

SENTENCES: Dict[str, Template] = {
    "not-asked-for": "not asked for",
    "not-collected": "it was not collected",
    "collector-failed": "the collector failed: {error}",
    "counter-unreadable": "cannot read {path}: {error}",
    "counter-not-known": "this kernel has no such counter",
    "counter-reset": "the counter was reset in between",
    # by node
    "no-nodes-in-sysfs": "there are no NUMA nodes in sysfs",
    "numa-stat-off": "the kernel does not count: vm.numa_stat is 0",
    "level-not-shown": "this kernel shows no {name} by node",
    "vmstat-empty": "/proc/vmstat holds none of the counters",
    # CPU time
    "no-cpu-times": "/proc/stat lists no CPU",
    "cell-cpus-unknown": "the cell's CPUs are not in /proc/stat",
    "workload-had-ended": "the workload had ended when its CPU time was to be read",
    # resctrl
    "resctrl-not-mounted": (
        "resctrl is not mounted (where the processor monitors memory bandwidth, a run with "
        "--allow-host-changes mounts it)"
    ),
    "resctrl-counts-nothing": "this processor does not monitor memory bandwidth by resctrl",
    "resctrl-says": "resctrl says {word}",
    "traffic-not-counted": "this processor does not count it",
    "traffic-unknown": "total or local traffic is unknown",
    "less-total-than-local": "less total than local traffic was counted",
    # an emulated host's memory model
    "emulator-lost-time": (
        "the emulator lost its synchronisation: this machine was too busy for it"
    ),
    "nothing-read": "nothing was read from memory",
    "nothing-ran": "no instruction ran on these CPUs",
    # perf
    "perf-not-installed": "perf is not installed",
    "perf-not-run": "{path} cannot be run: {error}",
    "perf-hangs": "{path} does not end ({seconds:seconds} for `true`)",
    "perf-permission": "perf: no permission (kernel.perf_event_paranoid = {level})",
    "perf-without-counts": "perf printed no counts; it printed: {said}",
    "perf-not-attached": "perf did not attach within {seconds:seconds}",
    "perf-does-not-end": "perf did not end within {seconds:seconds} of being told to",
    "no-event-counts": "perf can count none of the events here",
    "too-many-counters": "{threads} threads × {events} events are too many to attach to",
    "workload-gone-before-perf": "the workload had ended when perf was to be attached",
    "event-not-known": "perf does not know this event here",
    "event-not-supported": "not supported by this processor or virtual machine",
    "event-not-counted": "not counted: the event never ran on a counter",
    "event-without-line": "perf printed no line for it",
    "software-event-spared": (
        "not counted by perf: that would cost at each of its many context switches"
    ),
    "multiplexed": "multiplexed: counted {percent:g} % of the time and scaled",
    "multiplexed-user-only": (
        "multiplexed: counted {percent:g} % of the time and scaled; user space only"
    ),
    "user-space-only": "user space only",
    "counter-missing": "{name} has no value",
    "nothing-counted": "nothing was counted below the line of {formula}",
    "formula-too-large": "{formula} is too large for a number",
    "no-formula": "{what}",
    # traffic between nodes
    "one-node-no-traffic": "this host has one node: nothing goes between nodes",
    "no-traffic-counter-known": "no counter of traffic between nodes is known for this processor",
    "perf-lists-no": "perf list shows no {names} on this host",
    "perf-unit-unknown": "perf printed it in an unknown unit: {unit}",
    # calibration of remote-memory events
    "traffic-uncounted": "no counts under known-{traffic} traffic",
    "traffic-too-small": "only {counts:.0f} counts under known-{traffic} traffic",
    "local-counts-as-remote": "{share:.0%} of known-local traffic counted as remote",
    "remote-counts-as-local": "only {share:.0%} of known-remote traffic counted as remote",
}
