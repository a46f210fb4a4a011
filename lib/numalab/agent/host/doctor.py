"""What is wrong with this host's use of its nodes, right now, and what to type about it.

Counters since boot alone are never more than a note, because they stay when the cause is gone.
Nothing is changed.
"""

from __future__ import annotations

import json
import textwrap
from typing import Dict, Iterator, List, Sequence, Tuple

from .. import cpulist
from ..contract import Json, Reason, reason, to_json
from ..errors import Fault
from . import catalogue, describe, state, survey, topology
from .findings import Facts, Finding
from .survey import NodeUse, ProcessUse, Survey

_MOST_PROCESSES = 10


def read(root: str) -> Facts:
    """Return what can be read of the machine below ``root``; Fault where there is none."""
    host = topology.read(root)
    return Facts(host, state.read(root), survey.read(host))


def diagnose(facts: Facts) -> List[Finding]:
    """Return the findings, the severest first."""
    return catalogue.examine(facts, catalogue.HEALTH)


def run(root: str, ignore: Sequence[str], as_json: bool, width: int) -> Tuple[str, int]:
    """Examine the machine below ``root``; return what to print and the exit status.

    The status is 0 when there is nothing to act on and 1 when there is. ``ignore`` are the codes of
    findings that somebody has accepted: they are not shown and do not count. Raises Fault for a
    code that does not exist.
    """
    unknown = sorted(set(ignore) - set(catalogue.HEALTH))
    if unknown:
        known = ", ".join(catalogue.HEALTH)
        raise Fault(f"there is no finding {unknown[0]!r} to ignore", f"known: {known}")
    facts = read(root)
    findings = [one for one in diagnose(facts) if one.code not in ignore]
    healthy = catalogue.healthy(findings)
    if not as_json:
        return text(facts, findings, width), 0 if healthy else 1
    record = {
        "healthy": healthy, "ignored": sorted(ignore),
        "findings": [_shown(one) for one in findings], "survey": to_json(facts.survey),
        **describe.as_record(facts),
    }  # fmt: skip
    return json.dumps(record, ensure_ascii=False), 0 if healthy else 1


def _shown(finding: Finding) -> Dict[str, Json]:
    """A finding for a reader of JSON: its code and fields, and its sentences."""
    return {
        "id": finding.code,
        "fields": to_json(finding.what.fields),
        "severity": finding.severity,
        "nodes": list(finding.nodes),
        "pids": list(finding.pids),
        "what": str(finding.what),
        "evidence": [str(one) for one in finding.evidence],
        "do": [{"command": one.command, "effect": str(one.effect)} for one in finding.remedies],
    }


def text(facts: Facts, findings: Sequence[Finding], width: int = 100) -> str:
    """Return the diagnosis as lines of at most ``width`` columns (60 or more), for a terminal."""
    width = max(60, width)
    lines = describe.headline(facts, width)
    lines += _node_lines(facts.survey)
    lines += _process_lines(facts.processes, width)
    lines += describe.setting_lines(facts.state, width)
    lines += describe.device_lines(facts.host, width)
    for limit in _limits(facts):
        lines += describe.marked("–", str(limit), width)
    for finding in findings:
        lines += _finding_lines(finding, width)
    if catalogue.healthy(list(findings)):
        partly = " in what can be read" if facts.survey.unreadable else ""
        lines.append(f"✓ nothing found{partly}")
    return describe.printable("\n".join(lines))


def _node_lines(survey: Survey) -> List[str]:
    lines = ["node   memory     free    cache     anon  huge free"]
    if len(survey.nodes) > 1:
        lines[0] += "  foreign"
    for node in survey.nodes:
        gib = describe.gib
        line = (
            f"{node.number:>4}{gib(node.memory_bytes):>9}{gib(node.free_bytes):>9}"
            f"{gib(node.page_cache_bytes):>9}{gib(node.anonymous_bytes):>9}"
            f"{gib(node.huge_page_bytes):>11}"
        )
        lines.append(line + (f"{_foreign(node):>9}" if len(survey.nodes) > 1 else ""))
    return lines


def _foreign(node: NodeUse) -> str:
    """The share of the pages meant for a node that came from others, since boot."""
    foreign = node.numastat.get("numa_foreign")
    asked = node.numastat.get("numa_hit", 0) + (foreign or 0)
    return "?" if foreign is None or not asked else f"{100 * foreign / asked:.2g} %"


def _process_lines(processes: Sequence[ProcessUse], width: int) -> List[str]:
    if not processes:
        return []
    lines = ["    pid  process           memory  by node               CPUs of  policy"]
    for process in processes[:_MOST_PROCESSES]:
        memory, total = dict(process.memory or {}), process.total or 1
        largest = sorted(memory, key=lambda node: -memory[node])[:4]
        by_node = " ".join(f"{node}:{100 * memory[node] / total:.0f}%" for node in largest)
        policies = process.policies
        policy = max(policies, key=lambda one: sum(policies[one].values()), default="?")
        where = "?" if process.cpu_nodes is None else cpulist.format(process.cpu_nodes) or "none"
        lines.append(
            f"{process.pid:>7}  {process.name[:15]:<15} {describe.gib(process.total):>8}  "
            f"{by_node:<20}  {where:<7}  {policy}"
        )
    if len(processes) > _MOST_PROCESSES:
        more = len(processes) - _MOST_PROCESSES
        lines.append(f"         and {more} more (--json shows them)")
    return [line[:width] for line in lines]


def _limits(facts: Facts) -> Iterator[Reason]:
    """What this diagnosis could not see."""
    survey = facts.survey
    if facts.doubtful:
        yield reason("memory-not-judged")
    if survey.unreadable:
        yield reason("processes-unreadable", count=survey.unreadable, least=survey.least_bytes)
    if survey.unread:
        yield reason("processes-left-out", count=survey.unread)
    if survey.container:
        yield reason("in-a-container")
    yield from survey.problems


def _finding_lines(finding: Finding, width: int) -> List[str]:
    lines = describe.marked(describe.MARKS[finding.severity], str(finding.what), width)
    for sentence in finding.evidence:
        lines += [f"  {line}" for line in describe.marked("·", str(sentence), width - 2)]
    for remedy in finding.remedies:
        lines.append(f"    {remedy.command}")
        lines += [f"      {line}" for line in textwrap.wrap(str(remedy.effect), width - 6)]
    return lines
