"""``numalab lab run`` with a fleet, a guest and an article that pretend."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from numalab import fleet
from numalab.agent.errors import Fault
from numalab.lab import guests, hosts, inventory, measure
from numalab.pages import report

FOLDER = Path("runs/small/1-host")


class Lab:
    """What happened, in order."""

    def __init__(self):
        self.did = []
        self.runs = {"small": [FOLDER]}
        self.fails = None
        self.was_up = False
        self.experiments = []  # that its file names
        self.crashes = 0  # how often the guest dies while it is measured


@pytest.fixture
def lab(monkeypatch):
    lab = Lab()

    def run(requests, group, inventories, settings, *, seed):
        assert group == "small" and inventories == [inventory.path()]
        assert settings.allow_host_changes and settings.notebook
        lab.did.append(["measured", *(asked.experiment.name for asked in requests)])
        if lab.crashes:
            lab.crashes, lab.was_up = lab.crashes - 1, False
            raise fleet.Failed(1, {"small": []}, {"small": ["the connection broke"]})
        if lab.fails:
            raise lab.fails
        return lab.runs

    def look(name):
        pid = 1 if lab.was_up else None
        return guests.Guest(name, pid, None, None, None, None)

    def up(name, say):
        lab.did.append("up")
        lab.was_up = True

    monkeypatch.setattr(hosts, "load", lambda name: SimpleNamespace(experiments=lab.experiments))
    monkeypatch.setattr(fleet, "run", run)
    monkeypatch.setattr(guests, "look", look)
    monkeypatch.setattr(guests, "up", up)
    monkeypatch.setattr(guests, "stop", lambda name: lab.did.append("stopped, disk kept"))
    monkeypatch.setattr(guests, "down", lambda name, say: lab.did.append("down"))
    monkeypatch.setattr(report, "make", lambda runs, say: lab.did.append(f"article of {len(runs)}"))
    return lab


def call(*chosen, keep=False, profile="smoke"):
    measure.measure("small", chosen, profile, keep=keep, seed=None, say=print)


def test_a_guest_is_measured_shown_and_ended(lab):
    call("stream", "host", "stream")
    assert lab.did == ["up", ["measured", "stream", "host"], "article of 1", "down"]


def test_without_names_everything_is_measured(lab):
    call()
    assert {"host", "latency", "stream"} <= set(lab.did[1])


def test_without_names_what_the_hosts_file_names_is_measured(lab, capsys):
    lab.experiments = ["stream", "host"]
    call()
    assert lab.did[1] == ["measured", "stream", "host"]
    assert "stream, host, as its file says" in capsys.readouterr().out
    call("latency")
    assert ["measured", "latency"] in lab.did


@pytest.mark.parametrize("was_up", [True, False])
def test_a_guest_that_was_up_or_shall_stay_up_does(lab, was_up):
    lab.was_up = was_up
    call("host", keep=not was_up)
    assert "down" not in lab.did and "stopped, disk kept" not in lab.did


def test_what_was_measured_is_shown_though_something_failed_and_the_disk_stays(lab):
    lab.fails = fleet.Failed(1, lab.runs, {"small": ["stream: it broke"]})
    with pytest.raises(fleet.Failed, match="the same command again|The same command again"):
        call("host")
    assert lab.did[2:] == ["article of 1", "stopped, disk kept"]


def test_nothing_measured_is_no_article(lab):
    lab.fails = fleet.Failed(1, {}, {"small": ["it cannot be reached"]})
    with pytest.raises(fleet.Failed):
        call("host")
    assert lab.did[2:] == ["stopped, disk kept"]


def test_an_interruption_ends_the_guest_and_keeps_its_disk(lab):
    lab.fails = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        call("host")
    assert lab.did[-1] == "stopped, disk kept"


def test_mistakes_are_found_before_the_guest_is_booted(lab):
    with pytest.raises(Fault, match="there is no experiment"):
        call("strem")
    with pytest.raises(Fault, match="profile"):
        call("host", profile="smok")
    assert lab.did == []


def test_a_guest_that_crashes_is_booted_again_to_go_on(lab):
    lab.crashes = 2
    call("host")
    again = ["up", ["measured", "host"]]
    assert lab.did == [*again * 3, "article of 1", "down"]


def test_a_guest_that_crashes_for_ever_is_given_up(lab):
    lab.crashes = 99
    with pytest.raises(Fault, match="1 of 1 hosts failed"):
        call("host")
    assert lab.did.count("up") == measure._ATTEMPTS
