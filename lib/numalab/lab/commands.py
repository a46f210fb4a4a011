"""``numalab lab``: emulated NUMA hosts on this machine."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from numalab.agent.errors import Fault

app = typer.Typer(
    name="lab", help="Emulated NUMA hosts on this machine (QEMU).", no_args_is_help=True
)

Names = Annotated[list[str], typer.Argument(metavar="NAME...", help="Hosts: numalab lab list.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="A host: numalab lab list.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for a script.")]


def _say(words: str) -> None:
    print(words, flush=True)


@contextmanager
def _ended_like_by_ctrl_c() -> Iterator[None]:
    """Let SIGTERM and SIGHUP clean up as Ctrl-C does."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@app.command(name="list")
def list_hosts(as_json: Json = False) -> None:
    """List the hosts that the lab can boot."""
    from . import hosts

    loaded = [hosts.load(name) for name in hosts.names()]
    if as_json:
        print(json.dumps([host.model_dump() for host in loaded], indent=2))
        return
    for host in loaded:
        memory = f"{host.memory / 2**30:g} GiB"
        shape = (
            f"{host.arch}, {host.all_nodes} × {memory}, {host.cpus} CPUs, {host.sockets} sockets"
        )
        print(f"{host.name}\n    {host.says}\n    {shape}")


@app.command()
def up(names: Names) -> None:
    """Boot guests, and wait until ssh reaches them."""
    from . import guests, inventory

    failed = []
    with _ended_like_by_ctrl_c():
        for name in dict.fromkeys(names):
            try:
                guest = guests.up(name, _say)
            except Fault as fault:
                if len(names) == 1:
                    raise
                print(f"✗ {name}: {fault}", file=sys.stderr)
                failed.append(name)
                continue
            print(f"{name}: numalab lab ssh {name}   (127.0.0.1:{guest.port})", flush=True)
    if failed:
        raise Fault(f"not every guest is up: {', '.join(failed)} failed")
    print(f"Ansible inventory: {inventory.path()}")


@app.command()
def down(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME...", show_default="", help="Hosts.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every guest.")] = False,
) -> None:
    """End guests and remove their disks."""
    from . import guests, hosts

    if bool(names) == every:
        raise Fault("name the guests to end, or --all", "numalab lab status shows them")
    there = [guest.name for guest in guests.known()]
    for name in names or []:
        if name not in (*there, *hosts.names()):
            hosts.load(name)  # Fault, with the names that there are
    for name in there if every else dict.fromkeys(names or []):
        print(f"{name} is down" if guests.down(name, _say) else f"{name} was not up")


@app.command()
def status(as_json: Json = False) -> None:
    """Show the guests: whether they run, their port and process, since when."""
    from . import guests

    found = guests.known()
    if as_json:
        print(json.dumps([guest._asdict() for guest in found], indent=2))
        return
    for guest in found:
        if not guest.running:
            print(f"{guest.name}  not running: {guest.why}; its disk is kept until lab down")
            continue
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(guest.since))
        words = f"127.0.0.1:{guest.port}  pid {guest.pid}  {guest.accelerator}  since {since}"
        print(f"{guest.name}  {words}{f'  ({guest.why})' if guest.why else ''}")
    if not found:
        print("no guest is up; numalab lab list shows what there is")


@app.command()
def ssh(
    name: Name,
    command: Annotated[
        list[str] | None, typer.Argument(help="What to run there, after --.", show_default="")
    ] = None,
) -> None:
    """Log in to a guest as root, or run a command there."""
    from . import guests, hosts
    from . import ssh as reaching

    hosts.load(name)
    guest = guests.look(name)
    if not guest.running:
        raise Fault(f"{name} is not running", f"numalab lab up {name}")
    sys.stdout.flush()
    words = reaching.command(guest.port, *(command or []))
    os.execvp(words[0], words)


@app.command()
def run(
    name: Name,
    experiments: Annotated[
        list[str] | None,
        typer.Argument(metavar="EXPERIMENT...", help="Else all of them.", show_default=""),
    ] = None,
    profile: Annotated[
        str, typer.Option("--profile", "-p", help="smoke, quick or full.")
    ] = "smoke",
    seed: Annotated[int | None, typer.Option(help="Of the order of trials.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the guest up.")] = False,
) -> None:
    """Boot a guest, measure everything in it, write the article, and end it."""
    from . import measure

    with _ended_like_by_ctrl_c():
        measure.measure(name, experiments or [], profile, keep=keep, seed=seed, say=_say)
