"""``numalab lab run``: boot a guest, measure it as a fleet of one, write the article, end it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from numalab import asking, fleet
from numalab.agent.errors import Fault
from numalab.pages import report

from . import guests, hosts, image, inventory

_ATTEMPTS = 6  # an emulated guest crashes now and then; what it measured before is kept


def measure(
    name: str,
    chosen: Sequence[str],
    profile: str,
    *,
    keep: bool,
    seed: int | None,
    say: image.Say,
) -> Path:
    """Measure experiments in a guest; return the article.

    None named: those that the host's file names, else all that have the profile.

    What an experiment sets in the guest is allowed. Afterwards the guest is gone, unless it was
    up before or ``keep`` says to leave it. When not everything could be measured there is an
    article of what could, and Fault; then, and when interrupted, the guest's disk stays, and the
    same call completes what is missing.
    """
    if not chosen and (chosen := hosts.load(name).experiments):
        say(f"{name}: measuring {', '.join(chosen)}, as its file says")
    if chosen:
        asked = [asking.ask(one, profile, "", seed=seed) for one in dict.fromkeys(chosen)]
    else:
        asked = asking.ask_all(profile, "", seed, asking.Settings(), True)
    keep = keep or guests.look(name).running
    guests.up(name, say)
    try:
        article = _measure(name, asked, seed, say)
    except BaseException:
        if not keep:
            guests.stop(name)
            say(f"{name} is ended and keeps its disk: the same command completes what is missing")
        raise
    if not keep:
        guests.down(name, say)
    return article


def _measure(name: str, asked: list[asking.Asked], seed: int | None, say: image.Say) -> Path:
    settings = asking.Settings(allow_host_changes=True, busy=True)
    for attempt in range(_ATTEMPTS):
        try:
            runs, failed = fleet.run(asked, name, [inventory.path()], settings, seed=seed), None
        except fleet.Failed as fault:
            runs, failed = fault.runs, fault
        guest = guests.look(name)
        if failed is None or guest.running or attempt == _ATTEMPTS - 1:
            break
        say(f"{name}: {guest.why}; booting it again to go on")
        guests.up(name, say)
    if not runs.get(name):
        raise failed or Fault(f"nothing was measured on {name}")
    article = report.make(runs[name], say=say)
    if failed is not None:
        raise failed
    return article
