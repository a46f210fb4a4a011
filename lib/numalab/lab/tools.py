"""The programs that the lab calls, and the one command that installs what is missing."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

from numalab.agent.errors import Fault

from .qemu import PROGRAMS

_PACKAGES = {  # program: Debian's and Ubuntu's package
    "mkfs.ext4": "e2fsprogs",
    "mmdebstrap": "mmdebstrap",
    "newuidmap": "uidmap",
    "qemu-img": "qemu-utils",
    "qemu-system-aarch64": "qemu-system-arm",
    "qemu-system-x86_64": "qemu-system-x86",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
}
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def need_for_guest(arch: str) -> None:
    """Raise Fault unless a guest of this architecture can be booted with what is installed."""
    _need(PROGRAMS[arch], "qemu-img", "ssh", "ssh-keygen")


def need_for_image(arch: str) -> None:
    """Raise Fault unless the image can be made with what is installed."""
    missing = [] if _KEYRING.is_file() else ["debian-archive-keyring"]
    if platform.machine() != arch and not _runs_foreign(arch):
        missing += ["arch-test", "binfmt-support", "qemu-user-static"]
    _need("mmdebstrap", "mkfs.ext4", "qemu-img", "newuidmap", also=missing)


def _runs_foreign(arch: str) -> bool:
    return Path(f"/proc/sys/fs/binfmt_misc/qemu-{arch}").exists() and bool(find("arch-test"))


def find(program: str) -> str | None:
    """Return a program's path; those of an administrator count too."""
    return shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")


def _need(*programs: str, also: list[str] | None = None) -> None:
    packages = [_PACKAGES[name] for name in programs if not find(name)] + (also or [])
    if not packages:
        return
    names = " ".join(dict.fromkeys(packages))
    if shutil.which("apt-get"):
        raise Fault(
            f"the lab needs packages that are not installed: {names}",
            f"sudo apt-get install -y --no-install-recommends {names}",
        )
    raise Fault(
        f"the lab needs programs that are not installed, Debian's packages {names}",
        "it makes its guests with Debian's tools: use a Debian or Ubuntu machine",
    )
