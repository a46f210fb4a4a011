"""Sentences of the codes of the plan room."""

from __future__ import annotations

from typing import Any, Dict, Mapping

from . import Template, units

Fields = Mapping[str, Any]


def settings(values: Mapping[str, Any]) -> str:
    """Return settings with their values: "vm.swappiness = 0 or 60, thp.enabled = never"."""
    return ", ".join(f"{name} = {' or '.join(given)}" for name, given in values.items())


def _cores_per_node(fields: Fields) -> str:
    return "cores per node: " + ", ".join(f"{n} on {node}" for node, n in fields["cores"].items())


def _needs_more_room(fields: Fields) -> str:
    need, room = units.size(fields["need_bytes"]), units.size(fields["room_bytes"])
    if "instance" in fields:
        return f"{fields['instance']} needs {need}, its memory is {room} at most"
    return f"it needs {need}, but {units.listed('node', fields['nodes'])} can hold {room} at most"


def _budget_too_small(fields: Fields) -> str:
    return (
        f"it takes at least {units.seconds(fields['least_s'])}, and its budget is "
        f"{units.seconds(fields['budget_s'])} (--budget or the profile full gives more)"
    )


def _option_differs(fields: Fields) -> str:
    value, its = (_as_size(fields[name]) for name in ("value", "its"))
    return f"{fields['option']} is {value} here, {its} in {fields['cell']}"


def _as_size(value: Any) -> Any:
    """Return a number of bytes in binary units: that is what whole pages above 1 MiB are."""
    whole = isinstance(value, int) and value >= 1 << 20 and value % 4096 == 0
    return units.size(value) if whole else value


def _without(what: str) -> Template:
    def said(fields: Fields) -> str:
        nodes = str(fields["node"])
        return f"{units.listed('node', nodes)} {'has' if nodes.isdecimal() else 'have'} no {what}"

    return said


def _memory_only_node(fields: Fields) -> str:
    said = f"node {fields['node']} has memory without CPUs"
    if fields["tier"] is not None:
        said += f", in the kernel's memory tier {fields['tier']}"
    figures = ((fields["ns"], "ns"), (fields["mb_s"], "MB/s"))
    known = [f"{value} {unit}" for value, unit in figures if value is not None]
    return said + (f"; by the firmware: reads {' and '.join(known)}" if known else "")


def _stands_for_pairs(fields: Fields) -> str:
    pairs = units.count(fields["pairs"], "pair")
    distance = f"at distance {fields['distance']}"
    if fields["distance"] is None:
        distance = "of unknown distance"
    return f"{fields['here']}→{fields['there']} stands for {pairs} {distance}"


SENTENCES: Dict[str, Template] = {
    # why a binding, or a cell of it, is not on this host
    "binding-impossible": "{binding}: {why}",
    "cores-of-unknown-group": "which {within} a core belongs to is unknown on this host",
    "cpus-offline": "all CPUs of {node:nodes} are offline",
    "cpus-outside-cpuset": "no CPU of {node:nodes} is in this process's cpuset",
    "left-out": "this run leaves it out (profile {profile})",
    "memory-outside-cpuset": "the memory of {node:nodes} is outside this process's cpuset",
    "name-taken": "another cell has this name already, with other CPUs",
    "no-cpu-for-each-instance": "no node has a CPU for each of {count} instances",
    "distances-unknown": "the firmware gives no distances from {node:nodes} to every other",
    "no-memory-node": "no node has memory that may be used",
    "no-memory-only-node": (
        "every node of this host has CPUs, and this needs one that is memory only (CXL, HBM, "
        "persistent memory)"
    ),
    "no-weighted-interleave": "this kernel cannot interleave by weight (Linux 6.9 and later can)",
    "binding-forbidden": "{why}; in a container, start it with --cap-add SYS_NICE, or with a "
    "seccomp profile that allows set_mempolicy, mbind and move_pages",
    "call-forbidden": "this process may not call {call} ({error})",
    "no-proof-of-buffers": "{why}: the probe cannot prove where its memory is, and its trials are "
    "unverified",
    "counters-missing": "hardware counters: {why}",
    "limited-by-cpuset": "this process may only use {cpus:CPUs} and memory of {nodes:nodes}: the "
    "rest of this host is not measured",
    "call-kills": "a process that calls {call} is killed here ({signal})",
    "no-roomiest-node": "no node has both CPUs and memory that may be used",
    "no-second-thread": "no core of {node:nodes} has a second usable thread",
    "no-such-node": "node {node} does not exist",
    "no-usable-cpus": "the kernel of this host shows no NUMA nodes with CPUs that may be used",
    "node-of-another-kind": "node {node} is of another kind of memory: write {write}",
    "node-without-cpus": _without("CPUs"),
    "node-without-memory": _without("memory"),
    "only-memory-node": "only node {node} has memory that may be used, and this needs two",
    "one-node": "this host has one node, and this needs two",
    "the-others-are-memory-only": (
        "fewer than two nodes have both CPUs and memory; memory only: {nodes:nodes}"
    ),
    "weights-are-equal": (
        "every node has the weight {weight}, so it is the same as plain interleaving (weights are "
        "in /sys/kernel/mm/mempolicy/weighted_interleave)"
    ),
    "same-as": "it is the same as {cell} on this host",
    "settings-absent": lambda fields: f"this kernel has no {' and no '.join(fields['names'])}",
    "threads-beyond-cpus": "its CPUs have {threads:n hardware thread}",
    "too-few-cores": "this host has {usable:n usable core}, not {count}",
    "too-few-cores-within": ("no {within} has {count} usable cores (the largest has {largest})"),
    "too-few-cpus-for-instances": "{cpus:n CPU} for {count} instances",
    "too-few-nodes-for-instances": "{nodes:n node} with CPUs and memory for {count} instances",
    "instance-too-big": _needs_more_room,
    "node-too-small": _needs_more_room,
    "budget-case": "no time for it in {budget_s:seconds}: the last cases are left out first",
    "budget-cell": "does not fit into {budget_s:seconds}; the last cells are dropped first",
    "budget-class": "{cell} stands for it, which is as far from its memory ({budget_s:seconds})",
    "budget-sweep": "no time for this value of the sweep in {budget_s:seconds}",
    "budget-for-others": "the total of {budget_s:seconds} went to experiments with higher priority",
    "budget-too-small": _budget_too_small,
    "longer-than-limit": (
        "a trial takes about {planned_s:seconds}, but its limit is {limit_s:seconds}"
    ),
    # what should be known of a cell
    "compared-as-a-whole": "compared as a whole with {cell}: CPUs and memory policy both differ",
    "compared-with-nothing": "compared with nothing: no baseline cell matches it",
    "cores-per-node": _cores_per_node,
    "cpus-of-the-client": "{taken} of the {all} CPUs of node {node} are the client's",
    "cpuset-allows-part": (
        "this process's cpuset allows {usable} of the {all} CPUs of node {node}"
    ),
    "equally-far": (
        "nodes {nodes} are equally {how} from node {node}: node {stands} stands for them"
    ),
    "memory-only-node": _memory_only_node,
    "stands-for-nodes": "node {node} stands for {nodes:nodes}",
    "stands-for-pairs": _stands_for_pairs,
    "impossible-distance": (
        "the firmware's distance from node {here} to node {there} ({to}) is no longer than to "
        "itself ({own}): it cannot be true"
    ),
    "may-run-on": "may run on {count:n allowed CPU} ({cpus})",
    "one-thread-per-core": "one hardware thread per core; memory by first touch",
    "option-differs": _option_differs,
    "page-cache-must-go": (
        "needs {need_bytes:size}, free is {free_bytes:size}: page cache must make room first"
    ),
    "tool-fills-a-node": "the tool fills a node, which can take no equal share then",
    "balancing-may-move": (
        "{name} is {value}: automatic balancing may move its pages while it is measured (no policy "
        "binds them)"
    ),
    "threads-bounded": (
        "{threads:n thread}, not {asked}: this process's control group gives it the time of "
        "{limit:g} CPUs"
    ),
    "cpu-time-too-little": (
        "this process's control group gives it the time of {limit:g} CPUs (cpu.max), and {why}"
    ),
    # what should be known of a plan
    "tool-taken-to-be-there": "it is not on this machine, and taken to be on that of the tree",
    "baseline-added": "the baseline {cell} was added: others are compared with it",
    "baseline-not-in-first-case": (
        "nothing is compared: the baseline is not measured in the first case, {case}"
    ),
    "changes-host": lambda fields: (
        "changes the host while it measures, with --allow-host-changes: "
        + settings(fields["settings"])
    ),
    "host-with-one-memory-node": (
        "fewer than two nodes have memory that may be used: local and remote memory cannot be "
        "compared on the same CPUs here"
    ),
    "emulated-timing": (
        "the memory timing of this emulated host is configured: all times are the model's. The "
        "duration counts a trial {times} times as long as a machine's; beside other work it "
        "takes longer still"
    ),
    "host-with-one-node": (
        "this host has one NUMA node: remote memory, interleaving and everything else that needs "
        "a second node cannot be tested here"
    ),
    "limited-cpu-time": (
        "this process's control group gives it the time of {limit:g} CPUs (cpu.max): no more "
        "threads are started, and a trial that is held back is unverified"
    ),
    "limited-memory": (
        "this process's control group lets it have {bytes:size} more (memory.max): what needs more "
        "is left out"
    ),
    "no-control": "no A/A control: no baseline cell exists on this host",
    "nothing-to-measure": "nothing of this is measured, for the reasons below",
    "fewer-blocks": "{blocks:n block} of {asked} fit into {budget_s:seconds}",
    "too-few-blocks": (
        "{blocks:n block} can decide nothing, {fewest} are the fewest: results are shown as "
        "points and no claim is judged"
    ),
    # a memory policy, as a plan shows it
    "memory-bind": "only on {nodes:nodes}",
    "memory-default": "by first touch",
    "memory-interleave": "interleaved over {nodes:nodes}",
    "memory-weighted-interleave": "interleaved by weight over {nodes:nodes}",
    "memory-preferred": "on {nodes:nodes} while it has room",
    # What a policy of set_mempolicy(2) does when its nodes are full: only that of bind has no
    # others. `size` is " (192 GiB in all)", or nothing.
    "full-bind": (
        "all its memory must fit on {nodes:nodes}{size}: what does not is reclaimed, swapped or "
        "killed, never placed on another node"
    ),
    "full-default": (
        "what does not fit on {nodes:nodes}{size}, where it runs, goes to other nodes, unnoticed"
    ),
    "full-interleave": (
        "it takes as much memory of each of {nodes:nodes}{size}, whoever else needs it there; "
        "what a full one cannot give comes from another, unnoticed"
    ),
    "full-preferred": "what does not fit on {nodes:nodes}{size} goes to other nodes, unnoticed",
    "full-weighted-interleave": (
        "it takes memory of {nodes:nodes}{size} by the kernel's weights, whoever else needs it "
        "there; what a full one cannot give comes from another, unnoticed"
    ),
}
