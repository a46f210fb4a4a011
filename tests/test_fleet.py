"""The fleet, with real Ansible: hosts of the local connection and of a private sshd.

Every host has a folder and a lock of its own, so that they measure side by side on one machine and
beside whoever else measures here.
"""

import contextlib
import getpass
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import own_agent
import waiting
from numalab import agent_archive, asking, check, fleet, home
from numalab.agent.contract import SCHEMA, to_json
from numalab.agent.errors import Fault
from numalab.agent.trial import journal
from numalab.fleet import ansible, receive
from numalab.fleet.record import Record
from numalab.runs import load as load_run

REPOSITORY = Path(__file__).resolve().parent.parent
pytest.importorskip("ansible", reason="ansible-core is not installed")


@pytest.fixture
def place(tmp_path, agent, monkeypatch):
    """A checkout of its own (experiments, notebooks and playbooks are the real ones)."""
    for name in ("experiments", "notebooks", "fleet", "services"):
        (tmp_path / "checkout").mkdir(exist_ok=True)
        (tmp_path / "checkout" / name).symlink_to(REPOSITORY / name)
    monkeypatch.setenv("NUMALAB_HOME", str(tmp_path / "checkout"))
    monkeypatch.setenv("NUMALAB_RUNS", str(tmp_path / "runs"))
    for name in [name for name in os.environ if name.startswith("ANSIBLE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(agent_archive, "build", lambda path: Path(shutil.copy(agent, path)))
    yield tmp_path
    for path in tmp_path.glob("on-*/*/*/status.json"):
        pid = json.loads(path.read_text())["pid"]
        if pid and Path(f"/proc/{pid}").exists():
            os.kill(pid, signal.SIGKILL)


def local(place: Path, name: str) -> dict:
    return {"ansible_connection": "local", "numalab_folder": str(place / f"on-{name}")}


SHUT = {"ansible_host": "127.0.0.1", "ansible_port": 9, "ansible_user": "nobody"}


def inventory(place: Path, **hosts: dict) -> Path:
    path = place / "inventory.yml"
    path.write_text(yaml.safe_dump({"all": {"children": {"lot": {"hosts": hosts}}}}))
    return path


def asked(*argv: str, blocks: int = 1) -> list[asking.Asked]:
    one = asking.ask(
        "command", "smoke", "", options={"argv": list(argv)}, blocks=blocks, bindings=["local"],
        collectors=False,
    )  # fmt: skip
    return [one]


def held(place: Path, *, blocks: int = 1):
    """A program whose second trial, and every later one, waits until the file "hold" is removed."""
    (place / "hold").touch()
    once = f"[ -e {place}/once ] || {{ touch {place}/once; exit 0; }}"
    (one,) = asked(
        "sh", "-c", f"{once}; while [ -e {place}/hold ]; do sleep 0.1; done", blocks=blocks
    )
    return [replace(one, request=replace(one.request, time_limit_s=3600.0))]


def measure(requests, path: Path, **settings):
    settings = {"notebook": False, "busy": True, **settings}
    return fleet.run(requests, "lot", [path], asking.Settings(**settings))


def await_trial(place: Path, host: str) -> dict:
    """Wait until a host has measured a trial; return its status."""

    def measured():
        for path in place.glob(f"on-{host}/{host}/*/status.json"):
            status = json.loads(path.read_text())
            if status["state"] == "running" and any(job["last"] for job in status["jobs"]):
                return status
        return None

    written = [place / f"on-{host}"]
    return waiting.wait_for(measured, progress=lambda: waiting.sizes(written), every_s=0.1)


@pytest.fixture
def sshd(place):
    """Connection variables of a private sshd, as this user."""
    server = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
    if not server or not shutil.which("ssh"):
        pytest.skip("no ssh server and client here (openssh-server)")
    folder = place / "sshd"
    folder.mkdir(mode=0o700)
    for name in ("host", "key"):
        keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(keygen, check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "config").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {folder}/host\nPidFile none\nUsePAM no\n"
        f"AuthorizedKeysFile {folder}/key.pub\nStrictModes no\nSubsystem sftp internal-sftp\n"
    )
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    serving = subprocess.Popen(
        [server, "-D", "-e", "-f", str(folder / "config")], stderr=subprocess.DEVNULL
    )
    options = (
        "-F none -o StrictHostKeyChecking=no -o LogLevel=ERROR"
        f" -o UserKnownHostsFile={folder}/known"
    )
    try:

        def answers():
            with socket.socket() as client:
                return client.connect_ex(("127.0.0.1", port)) == 0

        with contextlib.suppress(waiting.Stuck):  # ssh says below what is wrong
            waiting.wait_for(answers, serving)
        logged_in = subprocess.run(
            ["ssh", *options.split(), "-p", str(port), "-i", str(folder / "key"), "127.0.0.1", ":"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True,
        )  # fmt: skip
        if logged_in.returncode != 0:
            pytest.skip(f"this user cannot log in by ssh: {logged_in.stderr.strip()}")
        yield {
            "ansible_host": "127.0.0.1",
            "ansible_port": port,
            "ansible_user": getpass.getuser(),
            "ansible_ssh_private_key_file": str(folder / "key"),
            "ansible_ssh_common_args": options,
        }
    finally:
        serving.terminate()
        serving.wait()


def test_a_host_is_measured_over_ssh_and_no_connection_is_left(place, sshd, monkeypatch):
    made = []
    make = ansible.tempfile.mkdtemp
    monkeypatch.setattr(
        ansible.tempfile, "mkdtemp", lambda **how: made.append(make(**how)) or made[-1]
    )
    far = {**sshd, "numalab_folder": str(place / "on-far")}
    (folder,) = measure(asked("true"), inventory(place, far=far))["far"]
    assert not check.check(folder).faults
    (sockets,) = {Path(path) for path in made if "numalab-" in path}
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert not sockets.exists() and str(sockets) not in running, "ssh's connection is left"


def test_good_hosts_go_on_beside_one_that_is_out_and_the_next_try_completes_only_that(
    place, capsys
):
    path = inventory(place, near=local(place, "near"), out=SHUT)
    requests = asked("true")
    with pytest.raises(fleet.Failed, match="1 of 2 hosts failed: out. The same command") as failed:
        measure(requests, path)
    assert "cannot be reached" in failed.value.failures["out"][0]
    assert "Connection refused" in failed.value.failures["out"][0]
    first = failed.value.runs
    (folder,) = first["near"]
    assert first["out"] == [] and folder.parent == place / "runs" / "near"
    assert load_run(folder).manifest.host == "near"
    assert not check.check(folder).faults
    said = capsys.readouterr().out
    assert "near: complete" in said and "out: failed" in said

    path = inventory(place, near=local(place, "near"), out=local(place, "out"))
    # Another seed was drawn: still the same command.
    runs = measure(asked("true"), path, as_json=True, notebook=True)
    assert runs["near"] == first["near"]
    assert [folder.parent.name for folder in runs["out"]] == ["out"]
    told = json.loads(capsys.readouterr().out)
    assert told["hosts"]["out"]["state"] == "complete"
    assert told["hosts"]["out"]["runs"][0]["folder"] == str(runs["out"][0])
    assert (runs["out"][0] / "notebook.ipynb").is_file()
    assert not list(place.glob("on-*/*/*")), "what was fetched is removed from the hosts"
    seeds = {load_run(run[0]).manifest.seed for run in runs.values()}
    assert len(seeds) == 1


def when_a_trial_is_measured(place: Path, act):
    """Call ``act`` with the status of the host "one" once it has measured; return the thread."""

    def wait():
        try:
            act(await_trial(place, "one"))
        except BaseException:
            (place / "hold").unlink()  # what the test waits for comes to an end
            raise

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def test_a_killed_agent_is_reported_and_its_run_completed(place):
    path = inventory(place, one=local(place, "one"))
    requests = held(place, blocks=4)
    killed = []

    def kill(status):
        os.kill(status["pid"], signal.SIGKILL)
        killed.append(status["jobs"][0]["run"])

    killer = when_a_trial_is_measured(place, kill)
    with pytest.raises(fleet.Failed) as failed:
        measure(requests, path)
    killer.join()
    (place / "hold").unlink()
    assert "it was killed, or the host was restarted" in failed.value.failures["one"][0]
    assert failed.value.runs == {"one": []}
    (folder,) = measure(requests, path)["one"]
    assert folder.name == killed[0], "the run was begun anew"
    trials = [record.trial for record in journal.read(folder / "journal.ndjson")]
    assert trials == sorted(set(trials)) and len(trials) == 8
    assert not check.check(folder).faults


def test_after_ctrl_c_the_hosts_go_on_and_can_be_stopped_and_completed(place, capsys):
    path = inventory(place, one=local(place, "one"))
    requests = held(place, blocks=4)
    interrupter = when_a_trial_is_measured(place, lambda _: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        measure(requests, path)
    interrupter.join()
    assert "the hosts go on measuring" in capsys.readouterr().err
    status = await_trial(place, "one")
    os.kill(status["pid"], 0)

    settings = asking.Settings(notebook=False, busy=True)
    assert fleet.stop(requests, "lot", [path], settings) == {"one": "stopped"}
    (there,) = place.glob("on-one/one/*/status.json")
    (stopped,) = json.loads(there.read_text())["jobs"]
    assert (stopped["state"], stopped["reason"]["code"]) == ("stopped", "stopped-here")
    (place / "hold").unlink()
    (folder,) = measure(requests, path)["one"]
    assert folder.name == status["jobs"][0]["run"]
    assert len(journal.read(folder / "journal.ndjson")) == 8
    with pytest.raises(Fault, match="left nothing running"):
        fleet.stop(requests, "lot", [path], settings)


@pytest.fixture
def old(place, monkeypatch):
    """A system whose every Python is 3.6 until its package manager brings another."""
    fake = place / "fake"
    fake.mkdir()
    for name in ("python3", *(f"python3.{minor}" for minor in range(9, 20))):
        (fake / name).write_text("#!/bin/sh\necho 3.6\n")
    (fake / "id").write_text("#!/bin/sh\necho 0\n")
    (fake / "apt-get").write_text(f'#!/bin/sh\necho "$@" >> {place}/installed\nexit 100\n')
    for path in fake.iterdir():
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake}:{os.environ['PATH']}")
    return fake


def test_what_a_host_has_not_is_installed_before_ansible_needs_python_there(place, old):
    manager = (old / "apt-get").read_text().replace("exit 100", f"case $* in *python3*) "
        f"ln -sf {sys.executable} {old}/python3;; esac")  # fmt: skip
    (old / "apt-get").write_text(manager)
    (folder,) = measure(asked("true"), inventory(place, one=local(place, "one")))["one"]
    assert "python3" in (place / "installed").read_text()
    assert load_run(folder).manifest.status == "complete"


def test_a_server_is_installed_where_one_is_measured_and_nowhere_else():
    def needs(name, **options):
        return fleet._needs_server(asking.ask(name, "smoke", "one", options=options).request)

    assert needs("mysql-binding") and needs("mysql-cores")
    assert not needs("mysql-binding", server="/opt/mysqld") and not needs("stream")
    packages = yaml.safe_load((REPOSITORY / "fleet" / "packages.yml").read_text())
    for family, brings in packages["numalab_packages"].items():
        assert set(brings) == {"python", "sysbench", "cc", "headers", "perf", "server"}, family


def test_numactl_is_not_needed(place):
    """The agent binds by itself: numactl is only one more witness of the host's shape."""
    (place / "bin").mkdir()
    for name in ("mkdir", "find", "touch", "uname", "id", "cat"):
        (place / "bin" / name).symlink_to(shutil.which(name))
    look = REPOSITORY / "fleet" / "look.sh"
    said = subprocess.run(
        [shutil.which("sh"), str(look)], capture_output=True, text=True, check=True,
        env={"PATH": str(place / "bin"), "FOLDER": str(place / "on-one"), "PROBES": ""},
    ).stdout  # fmt: skip
    (missing,) = [line for line in said.splitlines() if line.startswith("missing=")]
    assert "numactl" not in missing


def test_a_host_without_a_usable_python_and_a_busy_one_say_so(place, old):
    busy = {**local(place, "busy"), "ansible_python_interpreter": sys.executable}
    path = inventory(place, none=local(place, "none"), busy=busy)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(b"\0" + own_agent.lock_of(place / "on-busy" / "busy").encode())
        other.listen()
        with pytest.raises(fleet.Failed, match="2 of 2 hosts failed") as failed:
            measure(asked("true"), path)
    reasons = failed.value.failures
    assert "no Python 3.9 or newer" in reasons["none"][0] and "is 3.6" in reasons["none"][0]
    assert "another numalab measurement is running" in reasons["busy"][0]
    assert str(os.getpid()) in reasons["busy"][0]


def test_a_wrong_group_or_inventory_is_named(place):
    path = inventory(place, one=local(place, "one"))
    with pytest.raises(Fault, match="no host or group nowhere. it has the groups .*lot"):
        ansible.hosts("nowhere", [path])
    with pytest.raises(Fault, match="no host or group two"):
        ansible.hosts("one:two", [path])
    with pytest.raises(Fault, match="there is no inventory"):
        ansible.hosts("lot", [place / "none.yml"])
    with pytest.raises(Fault, match="there is no inventory, which .* or name one with --inventory"):
        ansible.hosts("all", [])
    path.write_text("all: [\n")
    with pytest.raises(Fault, match="cannot read the inventory"):
        ansible.hosts("lot", [path])


def test_a_name_that_is_no_folder_is_refused(place):
    with pytest.raises(Fault, match="cannot name a folder"):
        ansible.hosts("lot", [inventory(place, **{"user@host": SHUT})])


def test_without_ansible_the_message_says_how_to_get_it(place, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(place / "python"))
    monkeypatch.setenv("PATH", str(place))
    with pytest.raises(Fault, match="needs Ansible.*pip install ansible-core"):
        ansible.hosts("lot", [inventory(place, one=SHUT)])


def test_what_the_users_configuration_sets_is_left_alone(place, monkeypatch):
    monkeypatch.chdir(place)
    assert ansible._environment(7, place)["ANSIBLE_FORKS"] == "7"
    assert ansible._environment(7, place)["ANSIBLE_PIPELINING"] == "1"
    (place / "ansible.cfg").write_text("[defaults]\nforks = 2\n[ssh_connection]\npipelining = no\n")
    monkeypatch.setenv("ANSIBLE_TIMEOUT", "3")
    environment = ansible._environment(7, place)
    assert "ANSIBLE_FORKS" not in environment and "ANSIBLE_PIPELINING" not in environment
    assert environment["ANSIBLE_TIMEOUT"] == "3"


def test_two_at_once_with_the_same_command_do_not_meet(place):
    requests = [one.request for one in asked("true")]
    command = {"group": "lot", "requests": [to_json(one) for one in requests]}
    with Record(command).opened(requests, ["one"]):
        with pytest.raises(Fault, match="at work already"), Record(command).opened(requests, []):
            pass
        with Record({**command, "group": "other"}).opened(requests, ["one"]):
            pass


def test_ansible_ends_when_the_command_that_started_it_is_gone(tmp_path):
    code = (
        "import sys; sys.path.insert(0, 'fleet/callback_plugins')\n"
        "from types import SimpleNamespace as Fake\n"
        "from numalab_events import CallbackModule\n"
        "one = Fake(get_name=lambda: 'one', vars={'numalab_step': 'look'})\n"
        "for _ in range(2): CallbackModule().v2_runner_on_start(one, one); sys.stdin.read(1)\n"
    )
    reading, writing = os.pipe()
    playing = subprocess.Popen(
        [sys.executable, "-c", code], cwd=REPOSITORY, stdin=subprocess.PIPE, pass_fds=[writing],
        start_new_session=True, env={**os.environ, "NUMALAB_EVENTS_FD": str(writing)},
    )  # fmt: skip
    os.close(writing)
    with open(reading) as events:
        event = json.loads(events.readline())
        assert (event["host"], event["step"]) == ("one", "look")
    playing.communicate(b"x")
    assert playing.returncode == -signal.SIGKILL


# --- what a host has done ------------------------------------------------------------------------


def order(name: str, *argv: str, blocks: int = 1) -> dict:
    (one,) = asked(*argv, blocks=blocks)
    requests = [{"key": "1-command", "request": {**to_json(one.request), "host": "one"}}]
    return {"schema": SCHEMA, "session": name, "busy": True, "requests": requests}


def start(agent: Path, folder: Path, given: dict):
    return subprocess.run(
        [sys.executable, str(agent), "job", "start", str(folder)],
        input=json.dumps(given), capture_output=True, text=True,
        timeout=waiting.SILENT_S,
    )  # fmt: skip


def await_end(folder: Path) -> dict:
    def status():
        return json.loads((folder / "status.json").read_text())

    def ended():
        return status() if status()["state"] == "ended" else None

    last = waiting.wait_for(
        ended, status()["pid"], progress=lambda: waiting.sizes([folder]), tells=status
    )
    waiting.wait_for(lambda: not waiting.lives(last["pid"]))  # it holds its lock until then
    return last


def test_what_a_host_left_out_is_asked_for_no_more(place):
    with Record({"group": "lot"}).opened([asked("true")[0].request], ["one"]):
        pass
    record = Record({"group": "lot"})
    with record.opened([], []):
        assert list(record.missing("one")) == ["1-command"]
        record.leave_out("one", "1-command", "one node")
        assert record.missing("one") == {} and record.runs("one") == {}


# --- what arrives --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fetched(tmp_path_factory, agent):
    """An archive as a host packs it."""
    folder = tmp_path_factory.mktemp("on-one") / "one" / "first"
    assert start(agent, folder, order("first", "true")).returncode == 0
    await_end(folder)
    return folder / "runs.tar"


def arrive(place: Path, content: bytes) -> dict:
    (place / "record" / "hosts").mkdir(parents=True, exist_ok=True)
    (place / "record" / "incoming").mkdir(exist_ok=True)
    (place / "record" / "incoming" / "one.tar").write_bytes(content)
    return receive.accept(place / "record", home.runs(), "one")


def test_a_whole_archive_is_taken_in_once(place, fetched):
    ended = subprocess.Popen(["true"])
    ended.wait()
    (place / "runs" / ".incoming" / f"one-{ended.pid}" / "runs").mkdir(parents=True)
    taken = arrive(place, fetched.read_bytes())
    assert home.find_runs() == list(taken.values())
    assert not (place / "runs" / ".incoming").exists()
    assert arrive(place, fetched.read_bytes()) == taken
    noted = journal.read_json(place / "record" / "hosts" / "one.json")["runs"]
    assert noted == {"1-command": str(taken["1-command"])}


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_a_cut_transfer_never_looks_like_a_run(place, fetched, share):
    whole = fetched.read_bytes().rstrip(b"\0")
    with pytest.raises(Fault, match="give the same command again|missing"):
        arrive(place, whole[: int(len(whole) * share)])
    assert home.find_runs() == [] and not (place / "runs" / ".incoming").exists()
    assert not (place / "record" / "hosts" / "one.json").exists()


def test_a_changed_file_is_refused(place, fetched, tmp_path):
    with tarfile.open(fetched) as archive:
        archive.extractall(tmp_path / "x", filter="data") if hasattr(
            tarfile, "data_filter"
        ) else archive.extractall(tmp_path / "x")
    (name,) = journal.read_json(tmp_path / "x" / "runs.json")["runs"].values()
    raw = next((tmp_path / "x" / name / "raw").iterdir())
    raw.write_bytes(raw.read_bytes() + b"x")
    with tarfile.open(tmp_path / "changed.tar", "w") as archive:
        for path in (tmp_path / "x").iterdir():
            archive.add(path, arcname=path.name)
    with pytest.raises(Fault, match="is not what the host wrote"):
        arrive(place, (tmp_path / "changed.tar").read_bytes())
    assert home.find_runs() == []


def test_nothing_is_unpacked_outside_of_its_place(place, tmp_path):
    (tmp_path / "evil").write_text("x")
    for name in ("../evil", "/tmp/evil"):
        with tarfile.open(tmp_path / "evil.tar", "w") as archive:
            entry = tarfile.TarInfo(name)
            archive.addfile(entry)
        with pytest.raises(Fault, match="not of numalab"):
            arrive(place, (tmp_path / "evil.tar").read_bytes())


def test_no_other_run_is_overwritten(place, fetched):
    (folder,) = arrive(place, fetched.read_bytes()).values()
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "seed": 0}))
    with pytest.raises(Fault, match="is another run already"):
        arrive(place, fetched.read_bytes())


# --- the command line ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["command", "--stop"], "need --hosts"),
        (["command", "--hosts", "lot", "--host", "one"], "cannot be used with"),
        (["--all", "--hosts", "nowhere", "-p", "smoke"], "no host or group nowhere"),
    ],
)
def test_the_command_line_says_what_does_not_go_together(place, arguments, words):
    path = inventory(place, one=SHUT)
    given = ["-i", str(path)] if "--hosts" in arguments else []
    done = subprocess.run(
        [sys.executable, "-m", "numalab.cli", "run", *arguments, *given],
        capture_output=True, text=True, cwd=REPOSITORY,
    )  # fmt: skip
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr
