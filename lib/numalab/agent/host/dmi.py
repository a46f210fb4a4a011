"""What the firmware says of the memory modules: an upper bound of the DRAM's bandwidth.

Format: DMTF DSP0134, System Management BIOS Reference Specification 3.7, sections 6.1.2 (the
structure table) and 7.18 (Memory Device, type 17). The kernel shows the table to root only.
"""

from __future__ import annotations

from typing import Iterator, Tuple

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
    modules = [body for kind, body in _structures(table) if kind == _MEMORY_DEVICE]
    speeds = [_speed(body) for body in modules if _word(body, 0x0C)]  # the size; 0: an empty slot
    if not speeds:
        return Setting(None, reason("no-memory-modules"))
    if not all(speeds):
        return Setting(None, reason("module-speed-unknown"))
    return Setting(round(sum(speeds) / 1e9, 1))


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


def _word(body: bytes, offset: int, size: int = 2) -> int:
    """A little-endian number; 0 where this version's structure ends before it."""
    end = offset + size
    return int.from_bytes(body[offset:end], "little") if end <= len(body) else 0


def _speed(body: bytes) -> float:
    """The peak of a module in bytes a second; 0 where the firmware does not state it."""
    width = _word(body, 0x0A)  # bits of data; 0xFFFF is unknown
    transfers = _word(body, 0x20) or _word(body, 0x15)  # configured, else maximum speed, MT/s
    if transfers == 0xFFFF:
        transfers = _word(body, 0x58, 4) or _word(body, 0x54, 4)  # extended speeds
    return 0.0 if width == 0xFFFF else transfers * 1e6 * width / 8
