"""The Ansible inventory of the running guests: ``build/lab/inventory.yml`` in the checkout."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from numalab import home

from . import ssh

if TYPE_CHECKING:
    from .guests import Guest

GROUP = "lab"


def path() -> Path:
    """Return where the inventory is, or would be."""
    return home.build() / "lab" / "inventory.yml"


def write(guests: Iterable[Guest]) -> None:
    """Write the inventory of those guests that run; remove it when none does."""
    running = {guest.name: _entry(guest) for guest in guests if guest.running}
    file = path()
    if not running:
        file.unlink(missing_ok=True)
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump({GROUP: {"hosts": running}}, sort_keys=False, width=1000)
    part = file.with_name(f".{file.name}")
    part.write_text(f"# The lab's running guests, by numalab lab up and down.\n{text}")
    part.replace(file)


def _entry(guest: Guest) -> dict[str, Any]:
    words = " ".join(ssh.options()[2:])
    return {
        "ansible_host": "127.0.0.1",
        "ansible_port": guest.port,
        "ansible_user": "root",
        "ansible_ssh_private_key_file": str(ssh.key_file()),
        "ansible_ssh_common_args": words,
        "ansible_python_interpreter": "/usr/bin/python3",
    }
