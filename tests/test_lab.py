"""The lab without a guest: definitions, QEMU's command line, the image's recipe and its build."""

import os
import select
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import yaml

import topologies
import waiting
from numalab.agent.contract import Setting
from numalab.agent.errors import Fault
from numalab.agent.host import state
from numalab.lab import guests, hosts, image, qemu, tools
from small_host import DEFINITION

REPOSITORY = Path(__file__).resolve().parent.parent
NAMES = sorted(path.stem for path in (REPOSITORY / "lab" / "hosts").glob("*.yml"))


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A checkout of its own with the lab's files, an empty cache, and no programs of the lab's."""
    root = tmp_path / "checkout"
    for name in ("experiments", "notebooks", "lab/hosts"):
        (root / name).mkdir(parents=True)
    for name in ("image.yml", "guest-init", "image-steps"):
        (root / "lab" / name).write_bytes((REPOSITORY / "lab" / name).read_bytes())
    (root / "lab" / "hosts" / "small.yml").write_text(DEFINITION)
    monkeypatch.setenv("NUMALAB_HOME", str(root))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(tools, "_KEYRING", Path(__file__))
    return root


def define(home, name, text):
    (home / "lab" / "hosts" / f"{name}.yml").write_text(textwrap.dedent(text))


def program(home, name, text):
    """Put a program on PATH in place of the lab's."""
    path = home.parent / "bin" / name
    path.write_text(f"#!{sys.executable}\n{textwrap.dedent(text)}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def wiring(tmp_path, accelerator="tcg"):
    return qemu.Wiring(
        accelerator, tmp_path / "vmlinuz", tmp_path / "initrd", tmp_path / "a,b" / "disk",
        2222, "AAAAkey", tmp_path / "console",
    )  # fmt: skip


def pairs(words):
    """QEMU's options with their values; what is given several times is a list."""
    found = {}
    for word, value in zip(words[1:], words[2:] + [""], strict=True):
        if word.startswith("-"):
            found.setdefault(word, []).append(value)
    return found


# definitions


@pytest.mark.parametrize("name", NAMES)
def test_every_committed_host_becomes_a_machine_of_its_shape(name, tmp_path):
    host = hosts.load(name)
    words = pairs(qemu.argv(host, wiring(tmp_path)))
    numa = words["-numa"]
    nodes = [one.split(",") for one in numa if one.startswith("node,")]
    cpus = [parts[2] for parts in nodes if parts[2].startswith("cpus=")]
    assert len(nodes) == host.all_nodes == len(words["-object"])
    assert len(cpus) == host.nodes
    each = host.cores * host.threads
    assert cpus[-1] == f"cpus={host.cpus - each}-{host.cpus - 1}"
    assert words["-smp"][0].startswith(f"{host.cpus},sockets={host.sockets}")
    shape = dict(part.split("=") for part in words["-smp"][0].split(",")[1:])
    product = 1
    for count in shape.values():
        product *= int(count)
    assert product == host.cpus
    assert words["-m"] == [f"{len(nodes) * host.memory >> 20}M"]
    for i in range(len(nodes)):
        for j in range(len(nodes)):
            told = f"dist,src={i},dst={j},val={host.distances[i][j]}"
            assert (told in numa) == (i != j)
    assert host.distances == [list(row) for row in zip(*host.distances, strict=True)]
    assert (host.image or host.arch) in image.recipe().images


def test_a_guest_is_wired_to_this_machine_only_and_ends_when_it_crashes(tmp_path):
    words = pairs(qemu.argv(hosts.load("intel-2n"), wiring(tmp_path)))
    assert words["-netdev"] == ["user,id=net0,hostfwd=tcp:127.0.0.1:2222-:22"]
    assert "-no-reboot" in words and "-nodefaults" in words
    kernel, _, init = words["-append"][0].partition(" -- ")
    assert {"oops=panic", "panic=-1", "init=/guest-init", "console=ttyS0"} <= set(kernel.split())
    assert init == "name=intel-2n key=AAAAkey accelerator=tcg"
    assert "a,,b/disk" in words["-drive"][0]


def test_emulation_leaves_out_what_crashes_it_and_kvm_takes_the_processor_that_is_there(tmp_path):
    host = hosts.load("intel-2n")
    emulated = pairs(qemu.argv(host, wiring(tmp_path)))
    assert emulated["-cpu"] == [f"Broadwell,-cx16,model-id={host.model}"]
    own = pairs(qemu.argv(hosts.load("services-2n"), wiring(tmp_path)))
    assert own["-cpu"] == [f"Broadwell,model-id={host.model}"], "HAProxy uses it"
    assert "clearcpuid=cx16" in own["-append"][0].split(" -- ")[0].split(), "the kernel does not"
    accelerated = pairs(qemu.argv(host, wiring(tmp_path, "kvm")))
    assert accelerated["-cpu"] == [f"host,model-id={host.model}"]
    assert accelerated["-accel"] == ["kvm"]


def test_what_becomes_a_snapshot_boots_on_one_thread(tmp_path):
    host = hosts.load("intel-2n-timed")
    for monitor, thread in ((True, "single"), (False, "multi")):
        words = pairs(qemu.argv(host, wiring(tmp_path)._replace(monitor=monitor)))
        assert f"thread={thread}" in words["-accel"][0].split(",")


def test_an_arm_guest_has_its_own_machine_and_console(tmp_path):
    words = pairs(qemu.argv(hosts.load("arm-16n"), wiring(tmp_path)))
    assert words["-M"] == ["virt,gic-version=3"]
    assert words["-cpu"] == ["neoverse-n1"]
    assert "console=ttyAMA0" in words["-append"][0]
    assert words["-smp"] == ["16,sockets=2,clusters=8,cores=1,threads=1"]


def test_nodes_of_one_x86_socket_are_its_dies(tmp_path):
    words = pairs(qemu.argv(hosts.load("amd-8n"), wiring(tmp_path)))
    assert words["-smp"] == ["16,sockets=2,dies=4,cores=2,threads=1"]


def test_a_variant_says_what_differs_and_nothing_else(tmp_path):
    plain, variant = hosts.load("intel-2n"), hosts.load("intel-2n-numa-off")
    told = {"name", "says", "kernel"}
    assert plain.model_dump(exclude=told) == variant.model_dump(exclude=told)
    kernel = pairs(qemu.argv(variant, wiring(tmp_path)))["-append"][0].partition(" -- ")[0]
    assert "numa=off" in kernel.split()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("socket: 2", "socket: unknown key, did you mean sockets?"),
        ("memory: 2 GB", "memory: is not a size like 512 MiB or 2 GiB"),
        ("memory: 1 MiB", "memory: is too little for a node"),
        ("distances: [[10, 20]]", "distances: 2 nodes need 2 rows of as many"),
        ("distances: [[10, 20], [20, 11]]", "11 from node 1 to node 1"),
        ("distances: [[10, 300], [20, 10]]", "300 from node 0 to node 1"),
        ("nodes: two", "nodes: input should be a valid integer"),
        ("sockets: 3", "the cores do not divide evenly over the sockets"),
        ("arch: mips", "arch: input should be 'x86_64' or 'aarch64'"),
        ("model: one, two", "model: up to 47 ASCII characters, no comma"),
        ("{arch: aarch64, model: Phytium}", "only an x86 CPU can be given a name"),
        ("kernel: quiet -- name=other", "kernel: -- ends the kernel's words"),
        ('kernel: "a\'b"', "kernel: string should match pattern"),
        ("cores: 200", "255 are the most"),
        ("name: other", "it may not set 'name'"),
        ("image: aarch64-16k", "image: aarch64-16k is not of x86_64"),
    ],
)
def test_a_wrong_definition_names_the_file_the_key_and_what_is_wrong(home, change, said):
    changed = {"like": "small", **yaml.safe_load(change)}
    define(home, "wrong", yaml.safe_dump(changed))
    with pytest.raises(Fault) as fault:
        hosts.load("wrong")
    assert str(home / "lab" / "hosts" / "wrong.yml") in str(fault.value)
    assert said in str(fault.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("says: none", "arch: this key is missing"),
        ("- a\n- b", "holds no mapping of keys"),
        ("says: [", "line"),
        ("says: a\nsays: b", "stands twice"),
        ("like: wrong", "it is like itself (wrong → wrong)"),
        ("like: smal", "there is no host 'smal' in the lab. did you mean small?"),
    ],
)
def test_a_file_that_is_no_definition_is_refused(home, text, said):
    define(home, "wrong", text)
    with pytest.raises(Fault) as fault:
        hosts.load("wrong")
    assert said in str(fault.value) and "wrong" in str(fault.value)


@pytest.mark.parametrize("name", ["intel", "../image", "", "INTEL-2N"])
def test_an_unknown_host_is_refused_with_those_that_exist(name):
    with pytest.raises(Fault, match=f"Known: {', '.join(NAMES)}"):
        hosts.load(name)


# the recipe and the build


def test_an_image_is_named_by_all_that_it_is_made_from(home):
    before = {arch: image.identity(arch) for arch in ("x86_64", "aarch64")}
    assert before["x86_64"] != before["aarch64"]
    assert image.identity("x86_64") == before["x86_64"]
    for name in ("image.yml", "guest-init", "image-steps"):
        path = home / "lab" / name
        text = path.read_text()
        path.write_text(text + "# changed\n")
        assert image.identity("x86_64") != before["x86_64"], name
        path.write_text(text)
    assert image.identity("x86_64") == before["x86_64"]
    (home / "lab" / "hosts" / "other.yml").write_text(DEFINITION)
    assert image.identity("x86_64") == before["x86_64"]


def test_no_mirror_is_named(home):
    for file in (REPOSITORY / "lab").rglob("*"):
        if file.is_file():
            assert "://" not in file.read_text(), file
    words = image._command(image.recipe(), "x86_64", "root", Path("/work"))
    assert words[-1] == image.recipe().suite and not any("://" in word for word in words)


MAKES_FILES = """
    import os, re, sys
    if sys.argv[1] == "--unshare-helper":
        os.execvp(sys.argv[2], sys.argv[2:])
    open(os.environ["COUNT"], "a").write("x")
    for word in sys.argv:
        found = re.match("--customize-hook=download (/\\\\S+) (/\\\\S+)", word)
        if found:
            open(found.group(2), "w").write("made of " + found.group(1))
"""


@pytest.fixture
def builder(home, monkeypatch):
    """mmdebstrap and what else an image takes, pretended; returns how often it was made."""
    monkeypatch.setenv("COUNT", str(home.parent / "count"))
    monkeypatch.setattr(image, "_NEED_BYTES", 1)
    program(home, "mmdebstrap", MAKES_FILES)
    for name in ("mkfs.ext4", "qemu-img", "newuidmap"):
        program(home, name, "")
    count = home.parent / "count"
    return lambda: len(count.read_text()) if count.exists() else 0


def leftovers(home):
    images = image.cache() / "images"
    work = Path("/var/tmp").glob(f"numalab-image-*-{image._mark(images)}")
    return [*images.glob(".part*"), *work]


def test_an_image_is_built_once_and_again_when_the_recipe_changes(home, builder):
    said = []
    folder = image.ensure("x86_64", said.append)
    assert sorted(path.name for path in folder.iterdir()) == sorted(image.FILES)
    assert (folder / "disk").read_text() == "made of /disk"
    assert "building the image of x86_64 guests" in said[0]
    assert image.ensure("x86_64", said.append) == folder and builder() == 1
    (home / "lab" / "guest-init").write_text("#!/bin/sh\n")
    assert image.ensure("x86_64", said.append) != folder and builder() == 2
    assert not folder.exists(), "an image that no disk is based on goes"
    assert leftovers(home) == []


def test_an_older_image_stays_while_a_guests_disk_is_based_on_it(home, builder):
    folder = image.ensure("x86_64", print)
    guest = guests.folder("small")
    guest.mkdir(parents=True)
    (guest / "image").write_text(folder.name)
    (home / "lab" / "guest-init").write_text("#!/bin/sh\n")
    image.ensure("x86_64", print)
    assert folder.is_dir()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("cp: error writing 'x': No space left on device", "the disk is full"),
        ("E: Unable to locate package linux-perf", "a package that lab/image.yml names"),
        ("E: Failed to fetch http://deb/x", "the packages cannot be fetched"),
        ("E: something else", "E: something else"),
    ],
)
def test_a_failed_build_says_why_in_one_message_and_leaves_nothing(home, builder, line, said):
    program(
        home, "mmdebstrap", f"import sys; sys.argv[1] == '--unshare-helper' or sys.exit({line!r})"
    )
    with pytest.raises(Fault) as fault:
        image.ensure("x86_64", print)
    assert said in str(fault.value) and line in str(fault.value)
    assert "x86_64.log" in str(fault.value)
    assert image.find("x86_64") is None and leftovers(home) == []
    program(home, "mmdebstrap", MAKES_FILES)
    assert image.ensure("x86_64", print).is_dir()


def test_a_full_disk_is_seen_before_the_build(home, builder, monkeypatch):
    monkeypatch.setattr(image, "_NEED_BYTES", 2**60)
    with pytest.raises(Fault, match=r"GiB free, the image needs .*Free|free some space"):
        image.ensure("x86_64", print)
    assert builder() == 0


def test_missing_programs_are_named_in_one_command(home, builder, monkeypatch):
    monkeypatch.setattr(tools, "find", lambda name: None)
    monkeypatch.setattr(tools.shutil, "which", lambda name: "/usr/bin/apt-get")
    with pytest.raises(Fault) as fault:
        image.ensure("x86_64", print)
    assert fault.value.hint == (
        "sudo apt-get install -y --no-install-recommends mmdebstrap e2fsprogs qemu-utils uidmap"
    )
    with pytest.raises(Fault, match="qemu-system-arm"):
        tools.need_for_guest("aarch64")


def test_an_ordinary_user_without_a_range_of_ids_is_told_what_to_do(home, builder, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    program(home, "mmdebstrap", "import sys; sys.exit('E: invalid configuration of subuid')")
    with pytest.raises(Fault, match="an ordinary user cannot .*subuid.*sudo usermod"):
        image.ensure("x86_64", print)


BUILD = "from numalab.lab import image; image._NEED_BYTES = 1; from numalab.lab import tools; "
BUILD += "from pathlib import Path; tools._KEYRING = Path('/etc/passwd'); "
BUILD += "print(image.ensure('x86_64', lambda words: print(words, flush=True)))"


def start_build():
    return subprocess.Popen(
        [sys.executable, "-c", BUILD], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "lib")},
    )  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_build_is_not_taken_for_whole(home, builder, number):
    pids = home.parent / "pid"
    program(
        home, "mmdebstrap",
        f"import os, sys, time; sys.argv[1] == '--unshare-helper' and sys.exit();"
        f"open({str(pids)!r}, 'w').write(str(os.getpid()) + '\\n'); time.sleep(600)",
    )  # fmt: skip
    child = start_build()
    waiting.wait_for(lambda: pids.exists() and pids.read_text().endswith("\n"), child)
    child.send_signal(number)
    waiting.follow(child)
    waiting.wait_for(lambda: not waiting.lives(int(pids.read_text())))
    assert image.find("x86_64") is None
    if number == signal.SIGINT:
        assert leftovers(home) == []
    program(home, "mmdebstrap", MAKES_FILES)
    assert image.ensure("x86_64", print).is_dir() and leftovers(home) == []


def test_two_commands_build_one_image(home, builder):
    hold = home.parent / "hold"
    hold.touch()
    held = f"import time\n    while os.path.exists({str(hold)!r}): time.sleep(0.02)\n    open(os"
    program(home, "mmdebstrap", MAKES_FILES.replace("open(os", held))
    children = []
    try:
        for says in ("building the image", "waiting: another numalab"):
            children.append(start_build())
            assert select.select([children[-1].stdout], [], [], waiting.SILENT_S)[0]
            assert says in children[-1].stdout.readline()
    finally:
        hold.unlink()
        outputs = [waiting.follow(child)[0] for child in children]
    assert [child.returncode for child in children] == [0, 0]
    assert builder() == 1
    assert not any("waiting" in output or "building" in output for output in outputs)
    assert len({output.splitlines()[-1] for output in outputs}) == 1


def test_a_guest_of_the_lab_is_emulated_whatever_runs_it(tmp_path):
    found = {"virt.hypervisor": Setting("kvm")}
    host = topologies.topology()
    assert state.emulated(host, found) == (False, None)
    (tmp_path / "etc").mkdir()
    assert state.read(str(tmp_path))["lab.guest"].value is None
    written = next(
        line.split('"')[1]
        for line in (REPOSITORY / "lab" / "guest-init").read_text().splitlines()
        if "is a guest of numalab's lab" in line
    )
    (tmp_path / "etc" / "numalab-lab").write_text(written.replace("$name", "intel-2n") + "\n")
    found["lab.guest"] = state.read(str(tmp_path))["lab.guest"]
    emulated, why = state.emulated(host, found)
    assert emulated and why.code == "lab-guest"
    assert str(why).startswith("intel-2n is a guest of numalab's lab")
