"""Sentences of the codes of the trial room."""

from __future__ import annotations

from typing import Any, Dict, Mapping

from . import Template, sentence, units

Fields = Mapping[str, Any]


def _all(said: Fields) -> str:
    return "; ".join(sentence(one["code"], one.get("fields") or {}) for one in said["reasons"])


def _where(nodes: Any) -> str:
    return units.listed("node", str(nodes)) if nodes else "the host"


def _no_room(said: Fields) -> str:
    return (
        f"not started: it needs {units.size(said['need'])}, {_where(said['nodes'])} has "
        f"{units.size(said['free'])} free ({units.size(said['freeable'])} with the page cache "
        "dropped)"
    )


def _little_room(said: Fields) -> str:
    return (
        f"{_where(said['nodes'])} has {units.size(said['free'])} free of the "
        f"{units.size(said['need'])} needed: the page cache there has to make room"
    )


def _memory_outside(said: Fields) -> str:
    in_all = f" ({units.percent(said['outside'])} outside in all)" if said["others"] else ""
    return (
        f"{units.percent(said['share'])} of {units.size(said['bytes'])} on node {said['node']}, "
        f"not {said['nodes']}{in_all}"
    )


def _memory_uneven(said: Fields) -> str:
    fair, allowed = units.percent(said["fair"]), f"{said['points']:.2g} points"
    return (
        f"{units.percent(said['share'])} of {units.size(said['bytes'])} on node {said['node']}: "
        f"its fair share is {fair}, {allowed} more or less at most, and never nothing"
    )


def _memory_too_coarse(said: Fields) -> str:
    share, fair = units.percent(said["share"]), units.percent(said["fair"])
    return (
        f"{share} of {units.size(said['bytes'])} on node {said['node']}, whose fair share is "
        f"{fair}: with so few or so large pages this can be chance (a larger size of the tool's "
        "memory can be proven)"
    )


def _with_last_words(text: str) -> Template:
    def said(fields: Fields) -> str:
        return text.format(**fields) + (f": {fields['said']}" if fields["said"] else "")

    return said


def _values(said: Fields) -> str:
    return " or ".join(said["values"])


SENTENCES: Dict[str, Template] = {
    # before the first trial
    "calibrating": "measuring {cell} once, for what depends on it",
    "not-calibrated": "{cell}, measured once before the first trial, failed: {why}",
    # an imported run
    "measured-elsewhere": "measured by hand elsewhere: the placement was not recorded",
    "imported-from": "imported, not read from the host: {note}",
    "fault": lambda said: f"{said['what']}. {said['hint']}" if said.get("hint") else said["what"],
    "with-hint": "{why}. {hint}",
    "several-reasons": _all,
    # the run
    "nothing-here": "there is nothing to measure on this host",
    "no-time-here": "there is not enough time to measure any of it",
    "changes-not-allowed": "nothing is measured: this experiment needs permission to set "
    "{settings}",
    "changes-need-permission": "it needs permission to set {settings}: --allow-host-changes",
    "given-up": "given up after {trials:n trial}, which all failed alike: {why}",
    "disk-full": "the disk is full: {path} could not be written ({why})",
    "journal-torn": "{path}: the last line (after {lines} whole ones) was cut short by a crash and "
    "is left out; its trial will be measured again",
    "stopped-here": "stopped on this host",
    "not-packed": "the results could not be packed: {why}",
    "agent-bug": "the agent met a bug of its own: {kind}: {what}",
    # host settings
    "no-such-setting": "this kernel has no {name} (there is no {path})",
    "setting-unreadable": "{name} cannot be read ({path}: {why})",
    "setting-will-be-written": lambda said: (
        f"{said['name']} = {_values(said)} is about to be written; it cannot be undone"
    ),
    "setting-will-change": lambda said: (
        f"{said['name']}: {said['now']} → {_values(said)} for the time of this run"
    ),
    "setting-cannot-be-put-back": "it cannot be put back",
    "setting-refused": "{name} cannot be set to {value} ({path}: {why})",
    "setting-not-taken": "{name} was set to {value} and reads {now}",
    "setting-changed-by-others": "somebody else set {name} from {was} to {now} meanwhile",
    "setting-not-as-planned": "{name} was {planned} when this was planned and is {now} now",
    "setting-is-theirs": "somebody else set it to {value} since: left as it is",
    "setting-not-restored": "{name} could not be put back to {value} ({path}: {why})",
    "setting-not-put-back": "{name} was not put back: {why}",
    "setting-put-back": "{name} is {value} again",
    "setting-left": "{name}: {why}",
    "host-rebooted": "the host was rebooted since it was changed: nothing to put back",
    "leftover-put-back": "an earlier run had left {name} changed: put back",
    "leftovers-pending": "an earlier run left host settings changed: `numalab restore` puts them "
    "back",
    # the tool
    "not-started": "{program} cannot be started: {why}",
    "no-room": _no_room,
    "little-room": _little_room,
    "time-limit": "it did not {what} within {limit_s:g} s and was killed (the request's "
    "time_limit_s sets the limit)",
    "output-limit": "it printed more than {bytes:size} and was killed",
    "tool-killed": _with_last_words("it was killed by {signal}"),
    "tool-exited": _with_last_words("it ended with exit status {status}"),
    "tool-ended": _with_last_words('it ended without saying "{event}"'),
    "tool-did-not-quit": "it did not end within {limit_s:.0f} s of `quit` and was killed",
    "no-json-record": "it printed {said!r} where a JSON record was expected",
    "tool-fault": "{what}",
    "tour-in-part": "{verified} of {cells} cells are verified; of the others the first: {why}",
    "pids-unreadable": 'it said "pids": {said}, which is no list of processes',
    "pid-not-its-own": "it named process {pid}, which is none of its own",
    "pids-missing": "it named {named} processes for {wanted} instances",
    "out-of-memory": "{why} (the kernel ran out of memory and killed a process meanwhile)",
    "output-unreadable": "{why}",
    "host-busy": lambda said: (
        f"others use {units.percent(said['share'])} of the CPUs"
        + (f" ({', '.join(said['names'])})" if said["names"] else "")
    ),
    "servers-running": "a database server runs on this host: {names}",
    "nothing-while-busy": lambda said: f"nothing is measured: {_all(said)}",
    "held-back": "its control group used up its CPU time (cpu.max) and was stopped "
    "{times:n time} meanwhile",
    "disturbed": lambda said: (
        f"others used {units.percent(said['share'])} of this cell's CPU time"
        + (f" ({', '.join(said['names'])})" if said["names"] else "")
    ),
    # the binding
    "cpus-refused": "not started: it cannot be bound to {cpus:CPUs} ({error}); offline, or outside "
    "of this process's cpuset",
    "policy-refused": "not started: its memory cannot have the policy {policy} on {nodes:nodes} "
    "({error})",
    "policy-not-in-force": "not started: asked for memory policy {policy} on nodes {nodes}, the "
    "kernel set {now} on {on}; is a node outside of this process's cpuset?",
    # containers
    "container-not-seen": "no container was seen that {engine} started: only its processes could "
    "be proven",
    "several-containers": "{number} containers began since {engine} was started: which is this "
    "trial's is not known",
    "container-left": lambda said: (
        "its container still runs: processes " + ", ".join(map(str, said["pids"]))
    ),
    # the proof
    "one-visible-node": "verified: one visible node",
    "not-proven": "placement not proven: {why}",
    "no-proof": "no proof was made",
    "process-ended": "process {pid} has ended",
    "numa-maps-forbidden": "no permission to read {path} (run as the owner of the workload or as "
    "root)",
    "no-numa-maps": "there is no {path}: this kernel was built without NUMA (CONFIG_NUMA)",
    "numa-maps-unreadable": "process {pid}: {why}",
    "task-forbidden": "no permission to read {path}",
    "no-allowed-cpus": "{path} has no Cpus_allowed_list",
    "buffers-not-placed": "the tool could not place {bytes:size} of its own buffers (move_pages "
    "said {said})",
    "no-anonymous-page": "the workload holds no anonymous page",
    "no-interleaved-memory": "no memory of the workload has the policy interleave",
    "memory-outside": _memory_outside,
    "memory-uneven": _memory_uneven,
    "memory-too-coarse": _memory_too_coarse,
    "cpus-allowed-outside": "threads may run on {cpus:CPUs}, not only on {wanted}",
    "cpus-seen-outside": "threads were seen on {cpus:CPUs}, not only on {wanted}",
    "seen-in-part": "it was seen with {seen:size} and came to hold {peak:size}",
    "unknown-instance": "it is of an instance {instance!r}, which the cell does not have",
}
