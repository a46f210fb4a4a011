"""Starting the agent on this machine and following it while it measures."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path

from numalab import home, untrusted
from numalab.agent import contract
from numalab.agent.contract import Plan, Request
from numalab.agent.errors import Fault
from numalab.agent.trial.events import Event

BUG = 1  # the exit status of a Python program that a bug ended


def new_run_directory(base: Path, host: str, experiment: str) -> Path:
    """Return the path of a new run directory, BASE/HOST/STARTED-EXPERIMENT (UTC); not made yet.

    Raises Fault for a name that is not that of one folder.
    """
    untrusted.check_name(host, "a host")
    untrusted.check_name(experiment, "an experiment")
    started = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    folder = base / host / f"{started}-{experiment}"
    if folder.exists():
        raise Fault(f"{folder} exists already", "start again in a second")
    return folder


def make_plan(request: Request, root: Path = Path("/")) -> Plan:
    """Return the plan that this machine's agent makes of a request, or makes for a copied tree."""
    from numalab.agent.host import topology
    from numalab.agent.plan import make as planning

    return planning.make(request, topology.read(str(root)))


def measure(
    plan: Plan,
    folder: Path,
    *,
    allow_host_changes: bool = False,
    busy: bool = False,
    on_event: Callable[[Event], None] = lambda event: None,
) -> Event:
    """Run a plan on this machine into a run directory; return the agent's last event.

    A directory that holds an unfinished run of the same plan is completed. ``on_event`` gets
    every progress event. Ctrl-C stops the agent in order; what was measured stays. Raises
    Fault with the agent's own words when it fails.
    """
    plan_file = folder.parent / f".{folder.name}.plan.json"
    memo = _memo(folder)
    command = [sys.executable, "-m", "numalab.agent", "run"]
    command += ["--plan", str(plan_file), "--out", str(folder)]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        plan_file.write_text(contract.dumps(plan), encoding="utf-8")
    except PermissionError:
        raise Fault(
            f"no run can be kept below {folder.parent}: this user may not write there",
            "NUMALAB_RUNS=DIR keeps runs elsewhere",
        ) from None
    try:
        memo.parent.mkdir(parents=True, exist_ok=True)
        memo.write_text(f"{folder}\n", encoding="utf-8")
        end = _follow([*command, *_flags(allow_host_changes, busy)], on_event)
        memo.unlink(missing_ok=True)
        return end
    finally:
        plan_file.unlink(missing_ok=True)
        if not folder.exists():  # refused: nothing is left of it
            memo.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                folder.parent.rmdir()


def resume(
    folder: Path,
    *,
    allow_host_changes: bool = False,
    busy: bool = False,
    begun_elsewhere: bool = False,
    on_event: Callable[[Event], None] = lambda event: None,
) -> Event:
    """Complete an unfinished run; see ``measure``.

    Its plan names programs, and may be a stranger's: Fault for a run that was not begun in this
    checkout, unless ``begun_elsewhere`` says that this is known.
    """
    memo = _memo(folder)
    if not (begun_elsewhere or memo.exists()):
        raise Fault(
            f"{folder} was not begun here: to complete it starts the programs that its plan names",
            "if you trust whoever made it: --begun-elsewhere",
        )
    command = [sys.executable, "-m", "numalab.agent", "resume", str(folder)]
    end = _follow([*command, *_flags(allow_host_changes, busy)], on_event)
    memo.unlink(missing_ok=True)
    return end


def refuse_busy() -> None:
    """Raise Fault when others are at work on this machine, or a database server runs on it."""
    from numalab.agent.trial import quiet

    quiet.refuse(quiet.busy())


def _memo(folder: Path) -> Path:
    """The file that says, outside of a run directory, that the run was begun in this checkout."""
    digest = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()
    return home.build() / "begun" / digest[:32]


def _flags(allow_host_changes: bool, busy: bool) -> list[str]:
    flags = {"--allow-host-changes": allow_host_changes, "--busy": busy}
    return [flag for flag, given in flags.items() if given]


def _follow(command: list[str], on_event: Callable[[Event], None]) -> Event:
    # A session of its own: Ctrl-C reaches the agent once, from here, not twice.
    agent = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
            "NUMALAB_SOURCE_COMMIT": source_commit(),
        },
    )
    last: Event = {}
    interrupted = False
    try:
        while True:
            try:
                for event in _events(agent):
                    on_event(event)
                    last = event
                break
            except KeyboardInterrupt:
                if interrupted:
                    agent.kill()
                else:
                    interrupted = True
                    agent.send_signal(signal.SIGINT)
        said = agent.stderr.read() if agent.stderr else ""
        code = agent.wait()
    finally:
        if agent.poll() is None:
            agent.kill()
            agent.wait()
    if interrupted:
        raise KeyboardInterrupt
    if code != 0 or last.get("event") != "end":
        raise Fault(_why(said.strip(), code))
    return last


def _events(agent: subprocess.Popen[str]) -> Iterator[Event]:
    assert agent.stdout is not None
    for line in agent.stdout:
        try:
            event = json.loads(line)
        except ValueError:
            raise Fault(f"the agent printed {line.strip()!r}, which is no progress event") from None
        yield event


def source_commit() -> str:
    """Return this checkout's commit, with "-dirty" where files differ; "" outside a checkout."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _why(said: str, code: int) -> str:
    """The agent's own words; of a bug in it the last line, and how it ended if it said nothing."""
    if not said:
        return f"the measuring agent ended with status {code} and said nothing"
    if code == BUG:
        return f"the measuring agent met a bug of its own: {said.splitlines()[-1]}"
    return said.removeprefix("numalab: ").removesuffix(".")
