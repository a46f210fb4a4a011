"""The agent's command line: what the zipapp and ``python -m numalab.agent`` run."""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

from . import VERSION
from .contract import Plan, Request, to_json
from .errors import Fault


def main(arguments: Optional[List[str]] = None) -> int:
    """Run one command; return the exit status.

    0; 1 where doctor found something; 2 for a fault; 3 for a run that cannot be completed any more;
    128 + N after signal N.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without our signs shows "?"
    options = _parser().parse_args(arguments)
    from .trial.journal import CannotComplete
    from .trial.run import Interrupted

    try:
        return options.action(options) or 0
    except Interrupted as stopped:
        print(f"numalab: {stopped}", file=sys.stderr)
        return 128 + stopped.number
    except Fault as fault:
        print(f"numalab: {fault}", file=sys.stderr)
        return fault.STATUS if isinstance(fault, CannotComplete) else 2
    except BrokenPipeError:  # `… | head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        print(f"numalab: {error.filename or 'the system'}: {error.strerror}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="numalab-agent", description="Measures on this host what numalab asks for."
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    host = commands.add_parser("host", help="show this host's topology and settings")
    host.add_argument("--root", default="/", metavar="DIR", help="read a copied sysfs tree")
    host.add_argument("--json", action="store_true", help="print JSON")
    host.set_defaults(action=_host)

    doctor = commands.add_parser(
        "doctor",
        help="find what is wrong with this host's use of its nodes, and what to do about it",
        description="Exit status: 0 nothing found, 1 something found, 2 it could not be run.",
    )
    doctor.add_argument("--root", default="/", metavar="DIR", help="read a copied tree")
    doctor.add_argument("--json", action="store_true", help="print JSON")
    doctor.add_argument(
        "--ignore", action="append", default=[], metavar="ID", help="a finding that is accepted"
    )
    doctor.set_defaults(action=_doctor)

    plan = commands.add_parser("plan", help="turn a request into a plan (JSON)")
    plan.add_argument("request", type=Path, metavar="REQUEST.json")
    plan.set_defaults(action=_plan)

    run = commands.add_parser("run", help="measure a plan into a new run directory")
    run.add_argument("--plan", type=Path, required=True, metavar="PLAN.json")
    run.add_argument("--out", type=Path, required=True, metavar="DIR")
    run.set_defaults(action=_run)

    resume = commands.add_parser("resume", help="complete an unfinished run directory")
    resume.add_argument("folder", type=Path, metavar="DIR")
    resume.set_defaults(action=_resume)
    for one in (run, resume):
        one.add_argument(
            "--allow-host-changes",
            action="store_true",
            help="make the plan's changes to host settings, and put them back at the end",
        )
        one.add_argument(
            "--busy", action="store_true", help="measure although others are at work on this host"
        )
        one.add_argument(
            "--ask", action="store_true", help="end after a look for which a line says enough"
        )

    job = commands.add_parser("job", help="measure for a fleet, detached from the connection")
    job.add_argument("what", choices=("start",), help="start: the order comes on stdin")
    job.add_argument("folder", type=Path, metavar="DIR")
    job.set_defaults(action=_job)

    restore = commands.add_parser("restore", help="put back host settings that a run left changed")
    restore.set_defaults(action=_restore)
    version = commands.add_parser("version", help="print the agent's version")
    version.set_defaults(action=lambda options: print(VERSION))
    return parser


def _columns() -> int:
    return shutil.get_terminal_size((100, 24)).columns


def _host(options: argparse.Namespace) -> None:
    from .host import describe

    print(describe.run(options.root, options.json, _columns()))


def _doctor(options: argparse.Namespace) -> int:
    from .host import doctor

    output, status = doctor.run(options.root, options.ignore, options.json, _columns())
    print(output)
    return status


def _plan(options: argparse.Namespace) -> None:
    from .host import topology
    from .plan import make
    from .trial import journal

    plan = make.make(journal.load(Request, options.request), topology.read())
    print(json.dumps(to_json(plan), indent=1, ensure_ascii=False))


def _run(options: argparse.Namespace) -> None:
    from .trial import journal, run

    plan = journal.load(Plan, options.plan)
    run.run(plan, options.out, **_options(options))


def _resume(options: argparse.Namespace) -> None:
    from .trial import run

    run.resume(options.folder, **_options(options))


def _options(options: argparse.Namespace) -> Dict[str, Any]:
    """The options of `run` that come from the command line."""

    def enough() -> bool:
        return options.ask and sys.stdin.readline().strip() == "enough"

    return {
        "allow_host_changes": options.allow_host_changes, "busy": options.busy, "enough": enough,
    }  # fmt: skip


def _job(options: argparse.Namespace) -> None:
    from .trial import job

    try:
        order = json.load(sys.stdin)
    except ValueError as error:
        raise Fault(f"the order on standard input is not JSON: {error}") from None
    print(json.dumps(job.start(options.folder, order), ensure_ascii=False))


def _restore(options: argparse.Namespace) -> None:
    from .trial import host_changes

    done = host_changes.restore()
    print("\n".join(map(str, done)) or "no run left a host setting changed")


if __name__ == "__main__":
    sys.exit(main())
