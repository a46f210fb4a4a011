"""Real runs of a service of this checkout, small: for its tests."""

import contextlib
import os
import signal
import threading
from pathlib import Path

from numalab import services
from numalab.agent import drivers, kernel
from numalab.agent.contract import SCHEMA, Plan, Request, TrialRecord, from_json
from numalab.agent.errors import Fault
from numalab.agent.host import topology
from numalab.agent.plan import make as planning
from numalab.agent.trial import journal, run


def why_not(name: str) -> str:
    """Return why a service cannot run here; "" where it can."""
    try:
        drivers.driver("service").find({"service": services.load(name)})
    except Fault as fault:
        return str(fault)
    return ""


def plan(name: str, binding: str = "unbound", host=None, **options) -> Plan:
    """Return the plan of one trial of a service."""
    asked = {
        "schema": SCHEMA, "experiment": "service", "profile": "smoke", "host": "here",
        "tool": {"name": "service", "prefer": ["service"], "options": {
            "service": services.load(name), "connections": 2, "time_s": 1, "saturation_s": 1,
            "warmup_s": 0, "rate": 50, **options}},
        "bindings": [binding], "baseline": binding, "control": False, "blocks": 1, "seed": 1,
        "headline": "requests_per_second", "collectors": {"perf": False},
    }  # fmt: skip
    return planning.make(from_json(Request, asked), host or topology.read())


def measure(folder: Path, name: str, **options) -> list[TrialRecord]:
    """Run it; return its journal."""
    return run_plan(folder, plan(name, **options))


def run_plan(folder: Path, given: Plan) -> list[TrialRecord]:
    """Run a plan; return its journal."""
    run.run(given, folder, emit=lambda event: None, lock_name=f"numalab-test-{os.getpid()}",
            record=folder.parent / "settings.json")  # fmt: skip
    return list(journal.read(folder / "journal.ndjson"))


def own(word: str) -> list[int]:
    """Return the processes below this one that have words, as a shell shows them, in their command

    line. The process of the trial is none of them: its words are JSON that holds those of all.
    """
    found = []
    for pid in kernel.descendants(os.getpid()):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
            if word in " ".join(words) and "--tool" not in words:
                found.append(pid)
    return found


@contextlib.contextmanager
def killing(word: str, once: str, first=lambda pid: None):
    """Kill a process below this one by a word of its command line, once another is there.

    ``first`` is called with its number before.
    """
    killed: list[int] = []
    over = threading.Event()

    def watch() -> None:
        while not (killed or over.wait(0.1)):
            victims = own(word)
            if victims and own(once):
                first(victims[0])
                os.kill(victims[0], signal.SIGKILL)
                killed.append(victims[0])

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield killed
    finally:
        over.set()
        watcher.join()
