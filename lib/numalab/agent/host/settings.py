"""The settings of a host: how they are named, where they are, what they are.

Names: those of sysctl(8) (``vm.zone_reclaim_mode``), ``thp.enabled`` and the like for files of
/sys/kernel/mm/transparent_hugepage, ``lru_gen.enabled`` for /sys/kernel/mm/lru_gen (the
multi-generational LRU; Documentation/admin-guide/mm/multigen_lru.rst), and ``resctrl.mounted``:
whether resctrl is mounted ("0", "1"), which a run that may change the host does for its collectors.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Dict, Optional

from .. import kernel
from ..contract import Reason, reason
from ..errors import Fault

# Writing one of these does something once; there is no value to put back.
ONE_WAY = ("vm.drop_caches", "vm.compact_memory")
BALANCING = "kernel.numa_balancing"
# What moves or joins pages by itself: every cell holds the host's own value, and says so.
HELD = (BALANCING, "thp.enabled", "thp.defrag")
_FOLDERS = {"thp": kernel.HUGE_PAGES, "lru_gen": "sys/kernel/mm/lru_gen"}  # as state.py names them
MOUNTED = "resctrl.mounted"
_RESCTRL = "sys/fs/resctrl"
_NAME = re.compile(r"[a-z][a-z0-9_-]*(\.[A-Za-z0-9_-]+)+\Z")


def path_of(name: str, root: Path = Path("/")) -> Path:
    """Return the file (of resctrl the folder) of a setting; Fault for what is no setting's name."""
    if not _NAME.match(name):
        raise Fault(
            f"{name!r} is not the name of a kernel setting",
            "name it like kernel.numa_balancing, thp.enabled or lru_gen.enabled",
        )
    first, _, rest = name.partition(".")
    if first in _FOLDERS:
        return root / _FOLDERS[first] / rest.replace(".", "/")
    if name == MOUNTED:
        return root / _RESCTRL
    return root / "proc/sys" / name.replace(".", "/")


def absent(name: str, root: Path = Path("/")) -> Optional[Reason]:
    """Return why a setting cannot be set on this host at all, None where its file is there."""
    path = path_of(name, root)
    return None if path.exists() else reason("no-such-setting", name=name, path=str(path))


def same(name: str, wanted: str, now: str) -> bool:
    """Tell whether a setting that reads ``now`` is what was ``wanted``.

    Of lru_gen.enabled the kernel shows only the parts (bits) that the processor can do, and the
    first bit alone says whether it is on.
    """
    if " ".join(wanted.split()) == now:
        return True
    try:
        asked, found = int(wanted, 0), int(now, 0)
    except ValueError:
        return False
    if name == "lru_gen.enabled":
        return asked & 1 == found & 1 and not found & ~asked
    return asked == found


def value(path: Path) -> str:
    """Return what the file of a setting says now; of resctrl's folder whether it is mounted."""
    if path.name == "resctrl":
        return "1" if (path / "info").is_dir() else "0"
    return kernel.chosen(path.read_text().strip())


def own(root: str = "/") -> Dict[str, str]:
    """Return the host's own values that every cell of a run holds, where the kernel has them."""
    found = {}
    for name in HELD:
        with contextlib.suppress(OSError):
            found[name] = value(path_of(name, Path(root)))
    return found
