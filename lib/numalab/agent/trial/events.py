"""Progress events: what a run says while it measures, one JSON object a line.

A *reason* in them is ``{"code", "fields"}``; its sentence is ``str(from_json(Reason, …))``.

    {"event": "progress", "reason", "share", "left_s"}     the tool prepares something; `share` of 1
    {"event": "plan", "trials", "done", "left_s"}          before the first trial
    {"event": "warning", "reason", "trial", "label"}       of one trial, or of the run (both null)
    {"event": "trial", "trial", "of", "block", "label",    one trial is in the journal; `reason` of
     "grade", "reason", "headline", "left_s"}              its grade or null; `headline` null or
                                                           {"metric", "value", "unit"}
    {"event": "look", "block"}                             enough? waits for a line on stdin
    {"event": "end", "status", "verified", "unverified",   the last one; `status` is complete or
     "error", "dir", "reason"}                             stopped, `reason` why it failed or null

Numbers of trials count from 1, times are in seconds, ``left_s`` is the estimate of what is left.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Dict, Iterable, Mapping, Optional

from ..contract import GRADES, Reason, TrialRecord, reason, to_json
from ..errors import Fault

Event = Dict[str, Any]


def say(event: Mapping[str, Any]) -> None:
    """Print an event as a line on standard output. BrokenPipeError when nobody reads it."""
    try:
        print(json.dumps(event, ensure_ascii=False), flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def failure(fault: Fault) -> Reason:
    """Return a fault as a reason that holds its hint too."""
    if fault.reason.code == "fault" or not fault.hint:
        return fault.reason
    return reason("with-hint", why=to_json(fault.reason), hint=fault.hint)


def progress(why: Reason, share: Optional[float] = None, left_s: Optional[float] = None) -> Event:
    """The tool prepares what its trials need."""
    return {
        "event": "progress",
        "reason": to_json(why),
        "share": None if share is None else round(share, 3),
        "left_s": None if left_s is None else round(left_s, 1),
    }


def plan(trials: int, done: int, left_s: float) -> Event:
    """The first trial is about to start."""
    return {"event": "plan", "trials": trials, "done": done, "left_s": round(left_s, 1)}


def warning(why: Reason, trial: Optional[int] = None, label: Optional[str] = None) -> Event:
    """Something to know about the run, or about one of its trials."""
    return {"event": "warning", "reason": to_json(why), "trial": trial, "label": label}


def trial(
    record: TrialRecord,
    of: int,
    label: str,
    headline: Optional[Mapping[str, Any]],
    left_s: float,
) -> Event:
    """A trial is in the journal."""
    return {
        "event": "trial",
        "trial": record.trial,
        "of": of,
        "block": record.block,
        "label": label,
        "grade": record.grade,
        "reason": to_json(record.reason),
        "headline": headline,
        "left_s": round(left_s, 1),
    }


def look(block: int) -> Event:
    """So many blocks are measured: is that enough?"""
    return {"event": "look", "block": block}


def end(
    status: str, records: Iterable[TrialRecord], folder: str, why: Optional[Reason] = None
) -> Event:
    """Nothing is measured any more."""
    grades = [record.grade for record in records]
    return {
        "event": "end",
        "status": status,
        **{grade: grades.count(grade) for grade in GRADES},
        "dir": folder,
        "reason": to_json(why),
    }
