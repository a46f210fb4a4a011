"""Architecture, vendor and model of a processor, as far as the machine's files tell."""

from __future__ import annotations

import os
import re
from typing import Dict, List, NamedTuple, Optional, Tuple

from .. import kernel

# Each CPU's part of it can cost the kernel a measurement: read the first ones only.
CPUINFO_BYTES = 4096

# Main ID Register, implementer and part numbers: Arm's and the vendors' reference manuals.
_ARM_VENDORS = {
    0x41: "ARM", 0x42: "Broadcom", 0x43: "Cavium", 0x46: "Fujitsu", 0x48: "HiSilicon",
    0x4E: "NVIDIA", 0x50: "APM", 0x51: "Qualcomm", 0x61: "Apple", 0x6D: "Microsoft",
    0x70: "Phytium", 0xC0: "Ampere",
}  # fmt: skip
_ARM_PARTS = {
    (0x41, 0xC09): "Cortex-A9", (0x41, 0xC0F): "Cortex-A15", (0x41, 0xD03): "Cortex-A53",
    (0x41, 0xD05): "Cortex-A55", (0x41, 0xD07): "Cortex-A57", (0x41, 0xD08): "Cortex-A72",
    (0x41, 0xD0B): "Cortex-A76", (0x41, 0xD0C): "Neoverse-N1", (0x41, 0xD40): "Neoverse-V1",
    (0x41, 0xD46): "Cortex-A510", (0x41, 0xD47): "Cortex-A710", (0x41, 0xD49): "Neoverse-N2",
    (0x41, 0xD4D): "Cortex-A715", (0x41, 0xD4E): "Cortex-X3", (0x41, 0xD4F): "Neoverse-V2",
    (0x41, 0xD84): "Neoverse-V3", (0x41, 0xD85): "Cortex-X925", (0x41, 0xD87): "Cortex-A725",
    (0x41, 0xD8E): "Neoverse-N3", (0x43, 0x0A1): "ThunderX", (0x43, 0x0AF): "ThunderX2",
    (0x46, 0x001): "A64FX", (0x48, 0xD01): "Kunpeng-920 (TaiShan v110)",
    (0x48, 0xD02): "Kunpeng (TaiShan v120)", (0x4E, 0x004): "Carmel", (0x50, 0x000): "X-Gene",
    (0x51, 0xC00): "Falkor", (0x70, 0x303): "Phytium FTC310", (0x70, 0x660): "Phytium FTC660",
    (0x70, 0x661): "Phytium FTC661", (0x70, 0x662): "Phytium FTC662",
    (0x70, 0x663): "Phytium FTC663", (0x70, 0x664): "Phytium FTC664",
    (0x70, 0x862): "Phytium FTC862", (0xC0, 0xAC3): "AmpereOne", (0xC0, 0xAC4): "AmpereOne (1a)",
}  # fmt: skip
_ARCHES = "x86_64|aarch64|loongarch64|ppc64le|ppc64|s390x|riscv64|mips64|sparc64|ia64|armv7l|i686"
_SIGNS = (  # architecture, the field of cpuinfo that shows it and its beginning; the first counts
    ("ia64", "arch", "IA-64"),
    ("s390x", "vendor_id", "IBM/S390"),
    ("x86_64", "flags", r".*\blm\b"),
    ("i686", "flags", "(?!-)"),
    ("aarch64", "CPU architecture", "8|AArch64"),
    ("armv7l", "CPU implementer", "0x"),
    ("loongarch64", "ISA", ".*loongarch64"),
    ("loongarch64", "CPU Family", "Loongson-64bit"),
    ("riscv64", "isa", "rv64"),
    ("riscv32", "isa", "rv32"),
    ("ppc64", "cpu", r"POWER\d|PPC970|Cell"),
    ("sparc64", "type", "sun4"),
    ("mips64", "isa", "mips.*mips64"),
    ("mips", "ASEs implemented", "(?!-)"),
)


class Processor(NamedTuple):
    """What a processor is; None where no file says."""

    arch: Optional[str]
    model: Optional[str]
    vendor: Optional[str]


def read(root: str) -> Processor:
    """Return the processor of the machine below ``root``."""
    text = kernel.read_text(f"{root}/proc/cpuinfo", CPUINFO_BYTES) or ""
    fields: Dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    parts = _arm_parts(text)
    vendor = fields.get("vendor_id") or fields.get("vendor")
    if parts:
        vendor = _ARM_VENDORS.get(parts[0][0])
        model: Optional[str] = " + ".join(map(_arm_name, parts))
    else:
        model = _model(text, fields, vendor) or _product(root)
    return Processor(
        _architecture(root, text, fields), " ".join(model.split()) if model else None, vendor
    )


def _arm_parts(text: str) -> List[Tuple[int, int]]:
    """The (implementer, part) of each kind of core, in the order of its first CPU."""
    found: Dict[Tuple[int, int], None] = {}
    implementer = None
    for name, value in re.findall(r"^CPU (implementer|part)\s*:\s*(\w+)", text, re.M):
        try:
            number = int(value, 16)
        except ValueError:
            number = 0
        if name == "implementer":
            implementer = number
        elif implementer is not None:
            found[(implementer, number)] = None
    return list(found)


def _arm_name(part: Tuple[int, int]) -> str:
    vendor = _ARM_VENDORS.get(part[0], f"implementer {part[0]:#x}")
    return _ARM_PARTS.get(part) or f"{vendor} part {part[1]:#x}"


def _model(text: str, fields: Dict[str, str], vendor: Optional[str]) -> Optional[str]:
    for name in ("model name", "Model Name", "cpu model"):
        if fields.get(name):
            return fields[name]
    if vendor == "IBM/S390":
        machine = re.search(r"machine\s*[=:]\s*(\w+)", text)
        return f"IBM/S390 machine {machine.group(1)}" if machine else None
    return next((fields[name] for name in ("cpu", "uarch", "isa") if fields.get(name)), None)


def _product(root: str) -> Optional[str]:
    for folder in ("sys/class/dmi/id", "sys/devices/virtual/dmi/id"):
        words = kernel.read_text(f"{root}/{folder}/product_name")
        if words:
            return words
    return None


def _architecture(root: str, text: str, fields: Dict[str, str]) -> Optional[str]:
    if os.path.realpath(root) == "/":
        return os.uname().machine
    own = kernel.read_text(f"{root}/proc/sys/kernel/arch")
    # The compiler's or the package's name: the builder's name in it may be another machine's.
    version = kernel.read_text(f"{root}/proc/version") or ""
    named = re.search(rf"(?<![a-z0-9])({_ARCHES})\b", version)
    shown = next((arch for arch, name, sign in _SIGNS if re.match(sign, fields.get(name, "-"))), "")
    if named and shown in ("", "ppc64"):  # POWER runs in either byte order
        shown = named.group(1)
    return own or shown or None
