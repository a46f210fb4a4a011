"""What the firmware says of the memory modules: an upper bound of the DRAM's bandwidth.

Format: DMTF DSP0134, System Management BIOS Reference Specification 3.7, sections 6.1.2 (the
structure table) and 7.18 (Memory Device, type 17). The kernel shows the table to root only.
"""

from __future__ import annotations

import struct
from typing import Iterator, Optional, Tuple

from .. import kernel
from ..contract import Setting, reason

TABLE = "sys/firmware/dmi/tables/DMI"
_MEMORY_DEVICE, _END = 17, 127


def dram_peak(root: str = "/") -> Setting:
    """Return the bound in GB/s, or why it is unknown: no DRAM traffic of the host can be faster.

    It is the sum over all populated modules of transfers a second times bytes a transfer, as if
    each had a memory channel to itself; two modules that share a channel make the bound too high,
    never too low.
    """
    path = f"{root.rstrip('/')}/{TABLE}"
    try:
        table = kernel.read_bytes(path)
    except OSError as error:
        return Setting(None, reason("file-unreadable", path=path, error=error.strerror))
    total, modules = 0.0, 0
    for kind, body in _structures(table):
        if kind != _MEMORY_DEVICE:
            continue
        populated, speed = _module(body)
        if populated and speed is None:
            return Setting(None, reason("module-speed-unknown"))
        if populated and speed is not None:
            total += speed
            modules += 1
    if not modules:
        return Setting(None, reason("no-memory-modules"))
    return Setting(round(total / 1e9, 1))


def _structures(table: bytes) -> Iterator[Tuple[int, bytes]]:
    """Yield (type, formatted area with its header); stop at the end mark or at damage."""
    place = 0
    while place + 4 <= len(table):
        kind, length = table[place], table[place + 1]
        if length < 4 or place + length > len(table):
            return
        yield kind, table[place : place + length]
        strings_end = table.find(b"\0\0", place + length)
        if kind == _END or strings_end < 0:
            return
        place = strings_end + 2


def _module(body: bytes) -> Tuple[bool, Optional[float]]:
    """Return whether a module is in the slot, and its peak in bytes a second where stated."""

    def word(offset: int, form: str = "<H") -> int:
        end = offset + struct.calcsize(form)
        return int(struct.unpack(form, body[offset:end])[0]) if end <= len(body) else 0

    size = word(0x0C)
    if size == 0:
        return False, None
    width = word(0x0A)  # bits of data; 0xFFFF is unknown
    transfers = word(0x20) or word(0x15)  # configured, else maximum speed, MT/s
    if transfers == 0xFFFF:
        transfers = word(0x58, "<I") or word(0x54, "<I")  # extended speeds
    if not transfers or not width or width == 0xFFFF:
        return True, None
    return True, transfers * 1e6 * width / 8
