"""How guests are reached: one key for all, and no memory of their host keys."""

from __future__ import annotations

import subprocess
from pathlib import Path

from . import image


def key_file() -> Path:
    """Return the private key that logs in to guests; made when there is none."""
    path = image.cache() / "key"
    path.parent.mkdir(parents=True, exist_ok=True)
    with image.locked(path.with_name("key.lock"), lambda: None):
        if not path.with_name("key.pub").is_file():  # ssh-keygen writes it last
            path.unlink(missing_ok=True)
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "numalab-lab"]
            subprocess.run([*command, "-f", str(path)], check=True, stdout=subprocess.DEVNULL)
    return path


def command(port: int | None, *words: str) -> list[str]:
    """Return the ssh command that reaches the running guest of a port."""
    return ["ssh", *options(), "-p", str(port), "root@127.0.0.1", *words]


def options() -> list[str]:
    """Return ssh's options for every guest: its key, and no memory of host keys."""
    return [
        *("-i", str(key_file()), "-o", "IdentitiesOnly=yes", "-o", "StrictHostKeyChecking=no"),
        *("-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"),
    ]
