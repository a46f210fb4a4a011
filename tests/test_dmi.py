"""The bound that the firmware's list of memory modules puts on bandwidth."""

import struct

import pytest

from numalab.agent.contract import Setting
from numalab.agent.host import dmi


def _module(size=0x4000, width=64, speed=3200, configured=2933, length=0x54):
    body = bytearray(length)
    body[0], body[1] = 17, length
    struct.pack_into("<HH", body, 0x0A, width, size)
    struct.pack_into("<H", body, 0x15, speed)
    if length > 0x22:
        struct.pack_into("<H", body, 0x20, configured)
    return bytes(body) + b"DIMM A1\0Samsung\0\0"


OTHER = bytes([1, 4, 0, 0]) + b"a system\0\0"
BARE = bytes([2, 6, 0, 0, 9, 9]) + b"\0\0"
END = bytes([127, 4, 0, 0]) + b"\0\0"


def _read(tmp_path, table):
    path = tmp_path / dmi.TABLE
    path.parent.mkdir(parents=True)
    path.write_bytes(table)
    return dmi.dram_peak(str(tmp_path))


def test_populated_modules_add_up_at_their_configured_speed(tmp_path):
    table = OTHER + BARE + _module() * 8 + _module(size=0) + END + _module()
    assert _read(tmp_path, table) == Setting(round(8 * 2933 * 8 / 1000, 1))


def test_old_firmware_states_the_maximum_speed_only(tmp_path):
    assert _read(tmp_path, _module(length=0x1B) + END).value == 25.6


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (END, "no memory module"),
        (_module(speed=0, configured=0) + END, "every module's speed"),
        (_module(width=0xFFFF) + END, "every module's speed"),
        (b"", "no memory module"),
        (b"\x11\x02\x00\x00", "no memory module"),
        (_module()[:20], "no memory module"),
    ],
)
def test_what_is_not_stated_is_null_with_its_reason(tmp_path, table, words):
    found = _read(tmp_path, table)
    assert found.value is None and words in str(found.reason)


def test_a_host_without_the_table_says_so(tmp_path):
    assert "No such file" in str(dmi.dram_peak(str(tmp_path)).reason)
