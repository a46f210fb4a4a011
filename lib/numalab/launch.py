"""Starting the agent on this machine and following it while it measures."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path

from numalab import home, untrusted
from numalab.agent import contract
from numalab.agent.contract import Plan, Request
from numalab.agent.errors import Fault
from numalab.agent.trial import journal
from numalab.agent.trial.events import Event

_STOP_S = 60  # in which an agent ends its trial and puts the host's settings back
AGENT = (sys.executable, "-m", "numalab.agent")
BUG = 1  # the exit status of a Python program that a bug ended


class GivenUp(Fault):
    """The agent's own words for why a run cannot be completed any more."""


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
    enough: Callable[[], bool] | None = None,
) -> Event:
    """Run a plan on this machine into a run directory; return the agent's last event.

    A directory that holds an unfinished run of the same plan is completed. ``on_event`` gets
    every progress event; ``enough`` is asked at every look whether the run ends there. Ctrl-C stops
    the agent in order; what was measured stays. Raises Fault with the agent's own words when it
    fails.
    """
    memo = _memo(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remember(memo, folder)
        with tempfile.TemporaryFile() as plan_file:  # without a name: nothing of it can be left
            plan_file.write(contract.dumps(plan).encode("utf-8"))
            plan_file.flush()
            number = plan_file.fileno()
            command = ["run", "--plan", f"/proc/self/fd/{number}", "--out", str(folder)]
            flags = _flags(allow_host_changes, busy)
            end = _follow([*command, *flags], on_event, enough, (number,))
        memo.unlink(missing_ok=True)
        return end
    except OSError as error:
        raise Fault(
            f"no run can be kept in {folder.parent}: {error.strerror} ({error.filename})",
            "NUMALAB_RUNS=DIR keeps runs elsewhere",
        ) from None
    finally:
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
    enough: Callable[[], bool] | None = None,
) -> Event:
    """Complete an unfinished run; see ``measure``.

    Its plan names programs, and may be a stranger's: Fault for a run that was not begun in this
    checkout, unless ``begun_elsewhere`` says that this is known.
    """
    memo = _memo(folder)
    if not (begun_elsewhere or begun_here(folder)):
        raise Fault(
            f"{folder} was not begun here: to complete it starts the programs that its plan names",
            "if you trust whoever made it: --begun-elsewhere",
        )
    command = ["resume", str(folder), *_flags(allow_host_changes, busy)]
    end = _follow(command, on_event, enough)
    memo.unlink(missing_ok=True)
    return end


def begun_here(folder: Path) -> bool:
    """Tell whether an unfinished run was begun in this checkout."""
    return _memo(folder).exists()


def _memo(folder: Path) -> Path:
    """The file that says, outside of a run directory, that the run was begun in this checkout."""
    return home.memo("begun", os.fsencode(folder.resolve()))


def _remember(memo: Path, folder: Path) -> None:
    memo.parent.mkdir(parents=True, exist_ok=True)
    memo.write_bytes(os.fsencode(folder) + b"\n")


def _flags(allow_host_changes: bool, busy: bool) -> list[str]:
    flags = {"--allow-host-changes": allow_host_changes, "--busy": busy}
    return [flag for flag, given in flags.items() if given]


def _follow(
    command: list[str],
    on_event: Callable[[Event], None],
    enough: Callable[[], bool] | None = None,
    keep_open: Sequence[int] = (),
) -> Event:
    agent = _started([*command, *(["--ask"] if enough else [])], enough is not None, keep_open)
    last: Event = {}
    interrupted = False
    try:
        while True:
            try:
                for event in _events(agent, torn=interrupted):
                    on_event(event)
                    if event["event"] == "look" and enough and agent.stdin:
                        agent.stdin.write("enough\n" if enough() else "more\n")
                        agent.stdin.flush()
                    last = event
                break
            except KeyboardInterrupt:
                if interrupted:
                    agent.kill()
                else:
                    interrupted = True
                    agent.send_signal(signal.SIGINT)
                    if agent.stdin:  # no answer will come
                        agent.stdin.close()
        said = agent.stderr.read() if agent.stderr else ""
        code = agent.wait()
    finally:
        if agent.poll() is None:  # whoever looked on is gone: it stops in order
            assert agent.stdout is not None
            agent.stdout.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.send_signal(signal.SIGINT)
                agent.wait(_STOP_S)
            agent.kill()
            agent.wait()
    if interrupted:
        raise KeyboardInterrupt
    if code != 0 or last.get("event") != "end":
        raise (GivenUp if code == journal.CannotComplete.STATUS else Fault)(
            _why(said.strip(), code)
        )
    return last


def _started(
    command: list[str], to_answer: bool, keep_open: Sequence[int]
) -> subprocess.Popen[str]:
    # A session of its own: Ctrl-C reaches the agent once, from here, not twice.
    return subprocess.Popen(
        [*AGENT, *command],
        stdin=subprocess.PIPE if to_answer else subprocess.DEVNULL,
        pass_fds=keep_open,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
        env={
            **os.environ,
            "PYTHONIOENCODING": "utf-8",  # whatever the terminal's is
            "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
            "NUMALAB_SOURCE_COMMIT": source_commit(),
        },
    )


def _events(agent: subprocess.Popen[str], torn: bool) -> Iterator[Event]:
    """Yield what an agent reports; ``torn``: Ctrl-C may have taken the head of the first line."""
    assert agent.stdout is not None
    for line in agent.stdout:
        try:
            event = dict(json.loads(line))
        except (ValueError, TypeError):
            if torn:
                continue
            raise Fault(f"the agent printed {line.strip()!r}, which is no progress event") from None
        torn = False
        yield event


_GIT_S = 600


def source_commit() -> str:
    """Return this checkout's commit, with "-dirty" where files differ; "" outside a checkout.

    Fault where git does not answer: a run must not be without its commit for that.
    """
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=_GIT_S
        )
    except OSError:
        return ""
    except subprocess.TimeoutExpired:
        raise Fault(f"{' '.join(command)} did not end within {_GIT_S} s", "try again") from None
    return done.stdout.strip() if done.returncode == 0 else ""


def _why(said: str, code: int) -> str:
    """The agent's own words; of a bug in it the last line, and how it ended if it said nothing."""
    if not said:
        return f"the measuring agent ended with status {code} and said nothing"
    if code == BUG:
        return f"the measuring agent met a bug of its own: {said.splitlines()[-1]}"
    return said.removeprefix("numalab: ").removesuffix(".")
