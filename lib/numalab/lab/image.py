"""The guests' images: Debian packages named in ``lab/image.yml``, made once, named by the recipe.

An image is a folder with disk, vmlinuz and initrd; its name ends with a hash of all that it is made
from.
mmdebstrap makes it with the host's apt settings. It appears whole or not at all.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from numalab import home
from numalab.agent import kernel
from numalab.agent.errors import Fault
from numalab.agent.paths import cache_folder

from . import tools

Say = Callable[[str], None]
FILES = ("disk", "vmlinuz", "initrd")  # disk: the root file system, ext4 in a qcow2
_SOURCES = ("guest-init", "image-steps")  # of lab/, beside image.yml
_NOWHERE = Path("/WORK")
_NEED_BYTES = 4 * 2**30  # unpacked root, image and downloads at the same time


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Kind(_Strict):
    """One image: Debian's name of its architecture, its kernel package, and whether it is bare.

    Its own name begins with the architecture as uname(1) prints it: ``aarch64-16k``.
    """

    debian: str
    kernel: str
    bare: bool = False  # only the packages of ``bare``: no server, no compiler, no numactl
    more: list[str] = []  # packages beside those of all images that are not bare


class Newer(_Strict):
    """Packages of a later suite, and the libraries that may come from there too."""

    suite: str
    packages: list[str]
    libraries: list[str]


class Recipe(_Strict):
    """``lab/image.yml``."""

    suite: str
    size: str
    images: dict[str, Kind]
    bare: list[str]
    packages: list[str]
    newer: Newer
    beside: list[str]
    must_run: list[str]

    def kind(self, name: str) -> Kind:
        """Return an image by its name; Fault for one that the recipe does not make."""
        if name not in self.images:
            known = ", ".join(self.images)
            raise Fault(f"lab/image.yml makes no image for {name}", f"it knows {known}")
        return self.images[name]


def cache() -> Path:
    """Return the folder of images, guests and the key: $XDG_CACHE_HOME/numalab/lab."""
    return cache_folder() / "lab"


def recipe() -> Recipe:
    """Read ``lab/image.yml``; Fault where it cannot be understood."""
    path = home.root() / "lab" / "image.yml"
    try:
        return Recipe(**yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, yaml.YAMLError, TypeError, ValidationError) as error:
        raise Fault(f"{path} cannot be used: {error}", "restore it from the repository") from None


def identity(name: str) -> str:
    """Return the name of the folder of what the present recipe makes for an image's name."""
    digest = hashlib.sha256(json.dumps(_command(recipe(), name, "root", _NOWHERE)).encode())
    for file in (*_SOURCES, "image.yml"):
        digest.update((home.root() / "lab" / file).read_bytes())
    return f"{name}-{digest.hexdigest()[:12]}"


def find(name: str) -> Path | None:
    """Return the folder of the present recipe's image, None when it is not built."""
    folder = cache() / "images" / identity(name)
    return folder if folder.is_dir() else None


def ensure(name: str, say: Say) -> Path:
    """Return the folder of the present recipe's image; build it when there is none.

    A second caller waits for the first one's build. Raises Fault when it cannot be built.
    """
    folder = cache() / "images" / identity(name)
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = folder.parent / f"{name}.lock"
    with locked(lock, lambda: say(f"waiting: another numalab builds the {name} image")):
        if not folder.is_dir():
            _build(name, folder, say)
            _remove_unused(name, folder)
    return folder


@contextmanager
def locked(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold a lock that ends with its process; call ``waiting`` when another has it."""
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(name: str, folder: Path, say: Say) -> None:
    arch = name.partition("-")[0]
    tools.need_for_image(arch)
    mode = _mode()
    # Not below /tmp, which is often in memory; and the users of a namespace must reach it.
    work = Path("/var/tmp") / f"numalab-image-{os.getuid()}-{name}-{_mark(folder.parent)}"
    part = folder.with_name(f".part-{name}")
    _clear(work, mode)  # of a build that was killed: its lock ended with it
    shutil.rmtree(part, ignore_errors=True)
    _need_space(folder.parent, work.parent)
    foreign = arch != os.uname().machine
    long = "about 10 minutes, since foreign code is emulated" if foreign else "1 to 3 minutes"
    say(f"building the image of {name} guests, once: {long}")
    started = time.monotonic()
    log = folder.with_name(f"{name}.log")
    try:
        part.mkdir()
        work.mkdir()
        os.chmod(work, 0o1777 if mode == "unshare" else 0o755)
        for file in _SOURCES:
            shutil.copy(home.root() / "lab" / file, work)
        made = recipe()
        with open(log, "wb") as output:
            status = _run(
                _command(made, name, mode, work),
                {**os.environ, **_environment(made, name, work), "TMPDIR": str(work)},
                output,
            )
        if status != 0:
            raise _failure(name, log, status)
        for file in FILES:
            shutil.move(work / file, part / file)
        part.rename(folder)
    finally:
        _clear(work, mode)
        shutil.rmtree(part, ignore_errors=True)
    log.unlink()
    say(f"built it in {time.monotonic() - started:.0f} s")


def _mark(images: Path) -> str:
    """What tells the working folders of two caches apart: each has a lock of its own."""
    return hashlib.sha256(str(images.resolve()).encode()).hexdigest()[:8]


def _command(made: Recipe, name: str, mode: str, work: Path) -> list[str]:
    """mmdebstrap(1). It runs the hooks outside the new root, "$1", but in its user namespace."""
    kind = made.kind(name)
    packages = made.bare if kind.bare else [*made.packages, *made.newer.packages, *kind.more]
    step = f"sh {work}/image-steps"
    return [
        "mmdebstrap",
        f"--mode={mode}",
        "--format=null",
        "--variant=minbase",
        f"--architectures={kind.debian}",
        f"--include={','.join([kind.kernel, *packages])}",
        "--dpkgopt=force-unsafe-io",
        *(f"--dpkgopt=path-exclude=/usr/share/{less}/*" for less in ("doc", "man", "locale")),
        f'--setup-hook={step} newer_suite "$1"',
        f'--essential-hook={step} small_initrd "$1"',
        f'--customize-hook={step} beside "$1"',
        f"--customize-hook=upload {work}/guest-init /guest-init",
        f'--customize-hook={step} settle "$1"',
        f'--customize-hook={step} disk "$1"',
        *(f"--customize-hook=download /{file} {work}/{file}" for file in FILES),
        made.suite,
    ]


def _environment(made: Recipe, name: str, work: Path) -> dict[str, str]:
    """What image-steps reads."""
    bare = made.kind(name).bare
    newer = [] if bare else [*made.newer.packages, *made.newer.libraries]
    must_run = [one for one in made.must_run if not bare or one.startswith(("python3", "sshd"))]
    return {
        "BESIDE": "" if bare else " ".join(made.beside),
        "MUST_RUN": "\n".join(must_run),
        "NEWER": " ".join(newer),
        "NEWER_SUITE": made.newer.suite,
        "SIZE": made.size.replace(" ", "").replace("iB", ""),
        "SUITE": made.suite,
        "WORK": str(work),
    }


def _mode() -> str:
    """How mmdebstrap may write files of other users: as root, or in a user namespace."""
    if os.geteuid() == 0:
        return "root"
    tried = subprocess.run(
        ["mmdebstrap", "--unshare-helper", "true"], capture_output=True, text=True
    )
    if tried.returncode != 0:
        why = (tried.stderr.strip().splitlines() or ["it does not say why"])[-1]
        raise Fault(
            f"an ordinary user cannot make the lab's image here: {why}",
            "give this user a range of ids (sudo usermod --add-subuids 100000-165535 "
            "--add-subgids 100000-165535 USER) and allow user namespaces, "
            "or run this command once with sudo",
        )
    return "unshare"


def _need_space(*folders: Path) -> None:
    for folder in folders:
        free = shutil.disk_usage(folder).free
        if free < _NEED_BYTES:
            raise Fault(
                f"{folder} has {free / 2**30:.1f} GiB free, the image needs "
                f"{_NEED_BYTES / 2**30:.0f} GiB while it is made",
                "free some space (XDG_CACHE_HOME moves the images, not /var/tmp)",
            )


def _run(command: list[str], environment: dict[str, str], output: IO[bytes]) -> int:
    """Run mmdebstrap in a session of its own, which ends with this process."""
    child = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=output,
        stderr=subprocess.STDOUT, start_new_session=True,
        preexec_fn=kernel.die_with_parent(by=signal.SIGINT),
    )  # fmt: skip
    try:
        return child.wait()
    finally:
        if child.poll() is None:  # interrupted: mmdebstrap cleans up after itself on SIGINT
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGINT)
                try:
                    child.wait(30)
                except subprocess.TimeoutExpired:
                    os.killpg(child.pid, signal.SIGKILL)
                    child.wait()


def _clear(work: Path, mode: str) -> None:
    """Remove a build's folder; in a namespace its files belong to other users."""
    if not work.exists():
        return
    helper = ["mmdebstrap", "--unshare-helper"] if mode == "unshare" else []
    inside = [str(path) for path in work.iterdir()]
    subprocess.run([*helper, "rm", "-rf", "--one-file-system", *inside], capture_output=True)
    shutil.rmtree(work, ignore_errors=True)


_CAUSES = (  # what a line of the log says, what it means, what to do
    (r"No space left on device", "the disk is full", "free some space and repeat the command"),
    (
        r"Unable to locate package|has no installation candidate|unmet dependencies",
        "a package that lab/image.yml names cannot be had",
        "look at its line below; the later suite moves, so its list of libraries may have to",
    ),
    (
        r"Could not resolve|Failed to fetch|Could not connect|Connection (timed out|refused)",
        "the packages cannot be fetched",
        "mmdebstrap uses this machine's apt settings (a proxy, for instance): "
        "does apt-get update work?",
    ),
    (
        r"NO_PUBKEY|not signed|Missing key",
        "the signature of Debian's packages cannot be checked",
        "install debian-archive-keyring, of a release as new as the suite",
    ),
    (
        r"cannot be executed|arch-test|binfmt|Exec format error",
        "this machine cannot run the foreign programs that belong into the image",
        "install qemu-user-static and see that binfmt_misc is mounted and holds qemu-aarch64",
    ),
)


def _failure(name: str, log: Path, status: int) -> Fault:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line for line in lines if line.startswith("E: ")] or lines[-3:]
    for pattern, meaning, hint in _CAUSES:
        found = next((line for line in lines if re.search(pattern, line)), None)
        if found:
            return Fault(
                f"the image of {name} guests was not made: {meaning} ({found.strip()})",
                f"{hint}. The whole story: {log}",
            )
    return Fault(
        f"the image of {name} guests was not made: {' '.join(errors[:3]) or f'status {status}'}",
        f"the whole story: {log}",
    )


def _remove_unused(name: str, present: Path) -> None:
    """Remove images of earlier recipes that no guest's disk is based on."""
    used = {path.read_text() for path in (cache() / "guests").glob("*/image")}
    for folder in present.parent.glob(f"{name}-{'[0-9a-f]' * 12}"):
        if folder != present and folder.is_dir() and folder.name not in used:
            shutil.rmtree(folder, ignore_errors=True)
