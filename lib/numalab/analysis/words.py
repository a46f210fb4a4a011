"""Sentences of the codes of the analysis: what a run cannot say, and what should be doubted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..agent import words
from ..agent.words import units

Fields = Mapping[str, Any]


def _without_value(fields: Fields) -> str:
    why = "; ".join(fields["why"])
    return f"{fields['metric']} could not be measured" + (f" ({why})" if why else "")


def _unverified(fields: Fields) -> str:
    said = ", ".join(f"{count} graded {grade}" for grade, count in fields["counts"].items())
    return f"no trial of these cells is verified ({said})"


def _outlier(fields: Fields) -> str:
    blocks = ", ".join(map(str, fields["blocks"]))
    noun = "block" if len(fields["blocks"]) == 1 else "blocks"
    away = 100 * fields["away"]
    return f"{noun} {blocks} far from the others (up to {away:+.0f} % of the median)"


# What readers call a partition of the CPUs that the firmware knows (``core_groups``).
CORE_GROUPS = {
    "all": "all CPUs",
    "core": "hardware threads of a core",
    "cluster": "cores of one cluster",
    **{f"cache-{level}": f"CPUs that share a level-{level} cache" for level in (2, 3, 4)},
    "node": "node",
    "die": "die",
    "package": "package",
    "kind": "kind of core",
}


def _admitted(fields: Fields) -> str:
    return f"the firmware admits {units.count(fields['nodes'], 'node')}"


def _group(one: Fields) -> str:
    """One level of core groups, their latency, and the step to what lies outside."""
    least, most = one["least_cpus"], one["most_cpus"]
    size = f"{least}" if least == most else f"{least} to {most}"
    first = " | ".join([*one["first"], *(["…"] if one["count"] > 3 else [])])
    name = f" (explained as: {CORE_GROUPS[one['explains']]})" if one["explains"] else ""
    return (
        f"{one['count']} groups of {size} CPUs{name} ({first}) reach each other in "
        f"{one['latency_ns']:.0f} ns, and others in {one['outside_ns']:.0f} ns "
        f"({one['outside_ns'] / one['latency_ns']:.1f} times)"
    )


def _groups(fields: Fields) -> str:
    """The levels that are finer than the nodes, and how many nodes there are."""
    return f"{'; '.join(map(_group, fields['groups']))}; {_admitted(fields)}"


def _explained(fields: Fields) -> str:
    if not fields["levels"]:
        return f"all CPUs reach each other at one latency; {_admitted(fields)}"
    names = [
        f"{level['latency_ns']:.0f} ns: "
        + CORE_GROUPS.get(level["explains"], "groups no finer than the nodes")
        for level in fields["levels"]
    ]
    return f"every step of the latencies is explained ({'; '.join(names)}); {_admitted(fields)}"


def _nodes_hidden(fields: Fields) -> str:
    caches = [units.count(n, f"level-{level} cache") for level, n in fields["caches"].items()]
    return (
        f"{_groups(fields)}, and no cache that it lists has this shape ({', '.join(caches)}): "
        "the host seems to hide its nodes"
    )


words.add(
    {
        # why two cells have no ratio, or nothing is decided
        "value-not-positive": "no ratio: in some block a value is 0 or less",
        "cell-without-value": "one of the two has no value",
        "no-shared-block": "no block holds both",
        "different-tools": lambda f: (
            f"results of different tools make no ratio: {', '.join(map(str, f['tools']))}"
        ),
        "different-units": "different units: {one} and {other}",
        "different-evidence": "{one} and {other} figures make no ratio",
        "only-in-one-run": "only in {run}",
        "no-value-in-run": "no value in {run}",
        "no-value-in-run-because": "no value in {run}: {why}",
        "no-aa-control": "there is no A/A control with enough blocks to decide by",
        "drifted": ("the run drifted: its A/A control differs from itself, so nothing is judged"),
        # why a claim cannot be tested here
        "emulated-times": "emulated: timings carry no NUMA meaning",
        "cell-skipped": "{cell} was skipped: {why}",
        "variant-left-out": "this run leaves out {variant} (profile {profile})",
        "cell-not-in-run": "the run holds no {cell} cell",
        "metric-not-measured": "{metric} was not measured",
        "without-counter": "no {name}: {why}",
        "metric-without-value": _without_value,
        "not-measured-at": lambda f: f"{f['metric']} was not measured at {', '.join(f['points'])}",
        "no-verified-trial": _unverified,
        "no-pair-has-a-ratio": "{what}: {why}",
        "direction-unknown": (
            "which way {metric} is better is not said: the claim needs better: higher or lower"
        ),
        "no-cell-of-rank": "no {cell} cell of the plan is ranked {rank}",
        "same-cells": "{cell} and {other} are the same on this host",
        "no-partner": "no {other} cell runs on the same CPUs as a {cell} cell",
        "alike-on-one-node": (
            "{cell} and {other} have the same CPUs and the same memory on a host that shows one "
            "node"
        ),
        "pairs-do-not-match": (
            "{cell} has {pairs} pairs, {other} has {others}: their ratios do not match"
        ),
        "one-point-only": "{metric} has one point only in {cell}",
        "several-points": "{metric} has several points: it cannot follow, or be followed",
        "no-cells-alike-in-cpus": "no two of these cells have as many CPUs",
        "nothing-to-follow": "no two of these cells with as many CPUs differ in {metric}",
        "nodes-are-shown": "this host shows its nodes: judged is its run with the nodes hidden",
        "no-run-with-nodes-shown": (
            "it needs a run of this machine with its nodes shown beside this one"
        ),
        "no-cell-on-same-cpus": (
            "no cell of this run is on the CPUs of one of the run with nodes shown"
        ),
        "setting-not-recorded": "{setting} was not recorded before the run",
        "setting-unknown-before": "{setting} is unknown on this host: {why}",
        # whether core-to-core latencies show nodes that the firmware hides
        "too-few-cpus-for-groups": "{cpus} CPUs are too few to show groups",
        "cpus-without-node": "the topology does not say which node each measured CPU is on",
        "no-step-between-packages": lambda f: (
            f"{_admitted(f)} for {f['packages']} packages, but the latencies show no step between "
            "the packages (as on a virtual machine whose packages are made up)"
        ),
        "latencies-explained": _explained,
        "groups-of-virtual-machine": lambda f: (
            f"{_groups(f)}; on a virtual machine the firmware's caches and nodes may be made up, "
            "so it cannot be told what these groups are"
        ),
        "packages-merged": lambda f: (
            f"{_groups(f)} for {f['packages']} packages: memory is interleaved over them"
        ),
        "kinds-of-core": lambda f: (
            f"{'; '.join(map(_group, f['groups']))}; the host has cores of more than one kind, "
            "which explains steps"
        ),
        "groups-doubted": lambda f: f"{_groups(f)}; {words.sentence(**f['why'])}",
        "nodes-hidden": _nodes_hidden,
        "no-level-3-cache": (
            "the topology lists no level-3 cache, so groups that share one cannot be told apart "
            "from hidden nodes, unless the same model's documentation or its node list with NUMA "
            "switched on does"
        ),
        "may-be-clusters": (
            "groups of {cores} cores or fewer may be core clusters, whose shared cache tags no "
            "kernel lists"
        ),
        "may-be-quadrants": (
            "each group is several level-3 caches, and the step to the next group is small: the "
            "quadrants of one I/O die look like this when the firmware (AMD: NPS1) makes one node "
            "of them"
        ),
        # what should be doubted in a run
        "few-blocks": "{values:n usable value}: fewer than {needed} decide nothing",
        "noisy": lambda f: (
            f"the standard deviation is {f['variation']:.0%} of the mean: more blocks or a quieter "
            "host would help"
        ),
        "outlier": _outlier,
        "two-modes": lambda f: (
            f"two groups of values, {f['low']} low and {f['high']} high, {100 * f['apart']:.0f} % "
            "apart: something switched between trials"
        ),
        "first-block": lambda f: (
            f"the first block is {100 * f['away']:+.1f} % from the others: the host was not warm"
        ),
        "trend": lambda f: (
            f"it changed by {100 * f['change']:+.1f} % over the run (p = {f['p_value']:.2g}): the "
            "host was not in a steady state"
        ),
    }
)
