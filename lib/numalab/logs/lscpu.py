"""Parser of lscpu: the summary, --extended, --parse, --caches, and their JSON.

Format: util-linux's lscpu.c (print_summary, print_summary_cputype, print_cpus_readable,
print_cpus_parsable, print_caches_readable) and lscpu(1). Since util-linux 2.37 the summary is
grouped and a cache's size is the sum over its instances; before, it is the size of one.

A summary in another language is read by the order of its lines and the form of its values,
which translation does not change: the first count is the CPUs and the list after it the online
ones; labels keep "NUMA", "L3" and "BogoMIPS"; threads, cores and sockets are the only three
successive counts whose product is the number of CPUs. What that does not settle keeps its label
and has no name.

Records:

- ``field``: ``name`` (see _NAMES; null for a field unknown here), ``label`` (as printed),
  ``section`` (or null), ``value`` (a number where it is one, else text), ``unit``, ``cpu_type``
  (0, 1 … where a machine has several types of cores)
- ``cache``: ``name`` (L1d …), ``value`` (bytes), ``unit`` B, ``instances`` (null before 2.37),
  ``scope`` (all, one)
- ``node``: ``node``, ``cpus`` (list format; "" for a node without CPUs)
- ``cpu`` (tables): ``cpu``, ``node``, ``socket``, ``core`` … as the columns are named, null for
  "-"; caches by their names; ``max_mhz``, ``min_mhz``, ``mhz``
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from numalab.agent import cpulist
from numalab.agent.contract import Record
from numalab.agent.drivers.reading import Line, lines, refuse
from numalab.agent.errors import ParseError

from .lines import Once, cpu_list

NAME = "lscpu"

_NAMES = {
    "Architecture": "architecture", "CPU op-mode(s)": "op_modes", "Address sizes": "address_sizes",
    "Byte Order": "byte_order", "CPU(s)": "cpus", "On-line CPU(s) list": "online",
    "On-line CPU(s) mask": "online_mask", "Off-line CPU(s) list": "offline",
    "Off-line CPU(s) mask": "offline_mask", "Thread(s) per core": "threads_per_core",
    "Core(s) per socket": "cores_per_socket", "Core(s) per cluster": "cores_per_cluster",
    "Cluster(s)": "clusters", "Socket(s)": "sockets", "Socket(s) per book": "sockets_per_book",
    "CPU socket(s)": "sockets", "Book(s)": "books", "Book(s) per drawer": "books_per_drawer",
    "Drawer(s)": "drawers", "NUMA node(s)": "nodes", "Vendor ID": "vendor",
    "BIOS Vendor ID": "bios_vendor", "Model name": "model_name",
    "BIOS Model name": "bios_model_name", "BIOS CPU family": "bios_cpu_family",
    "Machine type": "machine_type", "CPU family": "cpu_family", "Model": "model",
    "Stepping": "stepping", "Microcode version": "microcode", "Frequency boost": "boost",
    "CPU MHz": "mhz", "CPU max MHz": "max_mhz", "CPU min MHz": "min_mhz",
    "CPU(s) scaling MHz": "scaling_percent", "CPU dynamic MHz": "dynamic_mhz",
    "CPU static MHz": "static_mhz", "BogoMIPS": "bogomips", "Dispatching mode": "dispatching",
    "Physical sockets": "physical_sockets", "Physical chips": "physical_chips",
    "Physical cores/chip": "physical_cores_per_chip", "Flags": "flags", "ISA": "isa",
    "MMU": "mmu", "Virtualization": "virtualization", "Hypervisor": "hypervisor",
    "Hypervisor vendor": "hypervisor_vendor", "Virtualization type": "virtualization_type",
}  # fmt: skip
_COUNTS = {
    "cpus", "threads_per_core", "cores_per_socket", "cores_per_cluster", "clusters", "sockets",
    "sockets_per_book", "books", "books_per_drawer", "drawers", "nodes", "physical_sockets",
    "physical_chips", "physical_cores_per_chip",
}  # fmt: skip
_CORE_COUNTS = ("threads_per_core", "cores_per_socket", "sockets")
_DECIMALS = {  # with their units
    "mhz": "MHz", "max_mhz": "MHz", "min_mhz": "MHz", "dynamic_mhz": "MHz", "static_mhz": "MHz",
    "bogomips": "", "scaling_percent": "%",
}  # fmt: skip
_BY_TYPE = {  # what a machine with several types of cores says once for each
    "vendor", "bios_vendor", "model_name", "bios_model_name", "bios_cpu_family", "machine_type",
    "cpu_family", "model", "threads_per_core", "cores_per_socket", "cores_per_cluster", "sockets",
    "clusters", "stepping", "microcode", "boost", "scaling_percent", "max_mhz", "min_mhz",
    "bogomips", "flags", "isa", "mmu",
}  # fmt: skip
_SECTIONS = ("Virtualization features", "Caches (sum of all)", "NUMA", "Vulnerabilities")
_LABEL = re.compile(r"(?P<indent>\s*)(?P<label>[^:：]*?\S)\s*[:：](?P<value>\s.*|\Z)")
_UNMARKED = re.compile(r"(?P<indent>\s*)(?P<label>\S+(?: \S+)*)\s{2,}(?P<value>\S.*)\Z")
_PART = r"\d+(?:-\d+(?::\d+(?:/\d+)?)?)?"
_LIST = re.compile(rf"{_PART}(?:,{_PART})*\Z")
_SIZE = re.compile(
    r"(?P<size>\d+(?:[.,]\d+)?)\s*(?P<unit>[KMGT]?)(?:iB|B)?"
    r"(?: \((?P<count>\d+) [^\d()]+\))?\Z"
)
_CACHE = re.compile(r"\b(L\d[dip]?|Extra L\d\w*)\b")
_INTEGER = re.compile(r"\d+\Z")
_FLAGS = re.compile(r"[a-z0-9_.]+(?: +[a-z0-9_.]+)*\Z")


_VENDOR = re.compile(
    r"(?:GenuineIntel|AuthenticAMD|HygonGenuine|ARM|HiSilicon|IBM.*|APM|Cavium|Ampere|Phytium|Apple"
    r"|Loongson)\Z"
)
_NO_NUMBER = "lscpu prints no number here"
_COLUMNS = {
    "MAXMHZ": "max_mhz", "MINMHZ": "min_mhz", "MHZ": "mhz", "SCALMHZ%": "scaling_percent",
    "BOGOMIPS": "bogomips", "MODELNAME": "model_name", "ONE-SIZE": "one_bytes",
    "ALL-SIZE": "all_bytes",
}  # fmt: skip
_ID_COLUMNS = {"CPU", "CORE", "SOCKET", "CLUSTER", "NODE", "BOOK", "DRAWER", "ADDRESS"}
_SIZE_COLUMNS = {"ONE-SIZE", "ALL-SIZE"}
_CACHE_COLUMN = re.compile(r"L\d[dip]?(?::L\d[dip]?)*\Z")
_TABLE_HEAD = re.compile(r"(?:CPU|NAME|NODE|SOCKET|CORE|ONLINE|BOGOMIPS)(?:\s+[A-Z][\w:%-]*)*\Z")
_SWITCH = {"yes": True, "y": True, "true": True, "no": False, "n": False, "false": False}


def parse(text: str) -> list[Record]:
    """Return the records of one output in any of the forms; ParseError for anything else."""
    rows = [line for line in lines(text, (NAME,)) if line.text.strip()]
    if not rows:
        refuse(NAME, None, "it is empty")
    first = rows[0].text.strip()
    if first.startswith("{"):
        return _json(rows)
    if first.startswith("#"):
        return _parsable(rows)
    return _table(rows) if _TABLE_HEAD.match(first) else _summary(rows)


# --- the summary ------------------------------------------------------------------------------


@dataclass
class _Field:
    """One "label: value" of a summary."""

    line: Line
    indent: int
    label: str
    value: str
    name: str | None = None

    @property
    def is_count(self) -> bool:
        return bool(_INTEGER.match(self.value))

    def numbers(self) -> list[int]:
        """The numbers of a list of CPUs; ParseError when it is none."""
        if self.value in ("", "-"):
            return []
        if not _LIST.match(self.value):
            refuse(NAME, self.line, f"{self.value!r} is not a list of CPUs")
        return cpu_list(NAME, self.line, self.value)


def _summary(rows: list[Line]) -> list[Record]:
    english = all(row.text.split(":", 1)[0].isascii() for row in rows)
    fields: list[_Field] = []
    for line in rows:
        match = _LABEL.match(line.text)
        if fields and not match and _continue(fields[-1], line.text.strip()):
            continue
        match = match or (None if english else _UNMARKED.match(line.text))
        if not match:
            refuse(NAME, line, "this is not a field of lscpu: a label, a colon and a value")
        label = match["label"].strip()
        indent, value = len(match["indent"]), match["value"].strip()
        fields.append(_Field(line, indent, label, value, _NAMES.get(label)))
    return _records(fields)


def _continue(before: _Field, row: str) -> bool:
    """Add a line to the value that a mailer or a page wrapped; tell whether it is one."""
    if before.name == "flags" or (len(before.value) > 200 and _FLAGS.match(before.value)):
        glue = " " if _FLAGS.match(row) else None
    elif before.value.endswith(",") and re.match(r"[\d,-]+\Z", row):
        glue = ""
    else:
        glue = " " if before.label.startswith("Vulnerability ") else None
    if glue is None:
        return False
    before.value += glue + row
    return True


def _records(fields: list[_Field]) -> list[Record]:
    _name_translated(fields)
    out: list[Record] = []
    section: str | None = None
    once = Once(NAME)
    cpu_type = 0
    for at, field in enumerate(fields):
        # An empty field is a section's title where the next field is indented below it.
        opens = at + 1 < len(fields) and fields[at + 1].indent > field.indent
        if not field.value and (field.label in _SECTIONS or opens):
            section = field.label
            continue
        section = section if field.indent else None
        if field.name == "model_name" and "model_name" in once.seen:
            cpu_type += 1
        if field.name in _BY_TYPE:
            once.seen.add(field.name)
        else:
            once.add(field.line, field.name or field.label, field.label)
        out.append(_node(field, once) or _cache(field) or _plain(field, section))
        if field.name in _BY_TYPE:
            out[-1]["cpu_type"] = cpu_type
    if not any(r["kind"] == "node" or r.get("name") in _NAMES.values() for r in out):
        refuse(NAME, None, "it holds no field that lscpu prints")
    _check(out)
    return out


def _check(out: list[Record]) -> None:
    """Refuse a summary whose own numbers contradict each other, as a cut or altered one's do."""
    by_name = {r["name"]: r["value"] for r in out if r["kind"] == "field" and r["name"]}
    lists = [cpulist.parse(r["cpus"]) for r in out if r["kind"] == "node"]
    nodes, cpus = by_name.get("nodes"), by_name.get("cpus")
    if nodes is not None and lists and nodes != len(lists):
        refuse(NAME, None, f"it says {nodes} NUMA nodes and lists {len(lists)}: cut short?")
    if cpus is not None and "online" in by_name:
        online = len(cpulist.parse(by_name["online"]))
        count = online + len(cpulist.parse(by_name.get("offline", "")))
        if cpus not in (count, online):  # before 2.37 "CPU(s)" may leave the offline CPUs out
            refuse(NAME, None, f"it says {cpus} CPUs and lists {count}: cut short?")
    listed = [cpu for one in lists for cpu in one]
    if listed and "online" in by_name and set(listed) != set(cpulist.parse(by_name["online"])):
        refuse(NAME, None, "the CPUs of the nodes are not those online: cut short?")
    if len(listed) != len(set(listed)):
        refuse(NAME, None, "a CPU belongs to two NUMA nodes")


def _node(field: _Field, once: Once) -> Record | None:
    """Return the record of a node's CPUs, in any language; None for another field."""
    number = re.search(r"\d+", field.label)
    if "NUMA" not in field.label or not number:
        return None
    node = int(number[0])
    once.add(field.line, node, f"node {node}")
    return {"kind": "node", "node": node, "cpus": cpulist.format(field.numbers())}


def _cache(field: _Field) -> Record | None:
    name = _CACHE.search(field.label)
    if not name or field.name:
        return None
    # Since util-linux 2.34 sizes are sums over all instances, written "32 KiB"; before, "32K".
    scope = "all" if "iB" in field.value else "one"
    record: Record = {"kind": "cache", "name": name[1], "unit": "B", "scope": scope}
    if field.value == "unknown size":  # of Arm boards with old kernels
        return {**record, "value": None, "reason": "the kernel does not say", "instances": None}
    size, count = _size(field.line, field.value)
    return {**record, "value": size, "instances": count}


def _size(line: Line, text: str) -> tuple[int, int | None]:
    """Return the bytes of "4.5 MiB (72 instances)", and the number of instances or None."""
    match = _SIZE.match(text) or refuse(NAME, line, f"{text!r} is not the size of a cache")
    if not match["unit"] and "B" not in text and float(match["size"].replace(",", ".")) < 1024:
        refuse(NAME, line, f"{text!r} is not the size of a cache: its unit is missing")
    scale = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}[match["unit"]]
    size = int(round(float(match["size"].replace(",", ".")) * (1 << scale)))
    return size, int(match["count"]) if match["count"] else None


def _plain(field: _Field, section: str | None) -> Record:
    name, value = field.name, field.value
    if name is None and section is None and field.label.startswith("Vulnerability "):
        section = "Vulnerabilities"
    unit = _DECIMALS.get(name or "", "")
    record: Record = {"kind": "field", "name": name, "label": field.label, "section": section,
                      "value": value, "unit": unit}  # fmt: skip
    if name in ("online", "offline"):
        record["value"] = cpulist.format(field.numbers())
    elif (name in _COUNTS or name in _DECIMALS) and value == "-":
        record.update(value=None, reason=_NO_NUMBER)
    elif name in _COUNTS:
        record["value"] = int(value) if field.is_count else refuse(
            NAME, field.line, f"{value!r} is not a count")  # fmt: skip
    elif name in _DECIMALS:
        number = re.fullmatch(r"(\d+(?:[.,]\d+)?)\s*%?", value)
        if number:
            record["value"] = float(number[1].replace(",", "."))
        elif value:
            refuse(NAME, field.line, f"{value!r} is not a number")
        else:
            record.update(value=None, reason=_NO_NUMBER)
    return record


def _name_translated(fields: list[_Field]) -> None:
    """Name the fields of a summary that is in another language, by order and form of values."""
    known = {field.name for field in fields}
    if not known & {"cpus", "online", "nodes", "model_name"}:
        _name_by_order(fields)
    elif "cpus" in known and not {"online", "threads_per_core"} <= known:
        # Some translations leave "CPU(s)" as it is; and some summaries have no more than this.
        with contextlib.suppress(ParseError):
            _name_by_order(fields)


def _name_by_order(fields: list[_Field]) -> None:
    first, products = _name_cpus(fields)
    for field in fields[first:]:
        if field.name is None:
            field.name = _name_by_form(field)
    windows = [fields[i : i + 3] for i in range(first, len(fields) - 2)]
    fitting = [
        window
        for window in windows
        if all(field.is_count and not field.name for field in window)
        and math.prod(int(field.value) for field in window) in products
    ]
    if fitting and (len(fitting) == 1 or fitting[0] == windows[0]):
        for field, name in zip(fitting[0], _CORE_COUNTS, strict=True):
            field.name = name


def _name_cpus(fields: list[_Field]) -> tuple[int, tuple[int, int]]:
    """Name the number of CPUs and their lists: a summary begins with these.

    Return the place of the first field after them, and how many CPUs there are and are online.
    """
    at = next((i for i, field in enumerate(fields) if field.is_count), len(fields))
    if at + 1 >= len(fields) or fields[at].name not in (None, "cpus"):
        refuse(NAME, None, "it holds no field that lscpu prints")
    cpus, online = int(fields[at].value), fields[at + 1]
    if online.name not in (None, "online") or not _LIST.match(online.value):
        refuse(NAME, online.line, "after the number of CPUs there is no list of those online")
    if cpus < len(online.numbers()):
        refuse(NAME, online.line, "after the number of CPUs there is no list of those online")
    fields[at].name, online.name = "cpus", "online"
    after = at + 2
    if len(online.numbers()) < cpus:
        named = after < len(fields) and fields[after].name not in (None, "offline")
        if after >= len(fields) or named or not _LIST.match(fields[after].value):
            refuse(NAME, online.line, "the list of the CPUs that are offline is missing")
        fields[after].name = "offline"
        after += 1
    if at and not fields[0].name and re.fullmatch(r"[a-z]\w+", fields[0].value):
        fields[0].name = "architecture"
    return after, (cpus, len(online.numbers()))


def _name_by_form(field: _Field) -> str | None:
    if "NUMA" in field.label and not re.search(r"\d", field.label) and field.is_count:
        return "nodes"
    if _VENDOR.match(field.value):
        return "vendor"
    return "flags" if len(field.value) > 100 and _FLAGS.match(field.value) else None


# --- tables -----------------------------------------------------------------------------------


def _table(rows: list[Line]) -> list[Record]:
    """Read --extended and --caches: a head, then one row of cells without blanks per CPU."""
    head = rows[0].text.split()
    found = []
    for line in rows[1:]:
        cells = line.text.split()
        if "MODELNAME" in head and len(cells) > len(head):
            # A model's name holds blanks; the other cells do not.
            at, extra = head.index("MODELNAME"), len(cells) - len(head)
            cells[at : at + extra + 1] = [" ".join(cells[at : at + extra + 1])]
        found.append((line, cells))
    return _rows(rows[0], head, found)


def _parsable(rows: list[Line]) -> list[Record]:
    """Read --parse: the last comment line names the columns; an empty one precedes the caches."""
    comments = [line for line in rows if line.text.lstrip().startswith("#")]
    head, last = comments[-1], rows[len(comments) - 1]
    if last.number != head.number:
        refuse(NAME, head, "a comment between the rows")
    if not re.match(r"#\s*\w+(?:,[\w:%-]*)*\Z", head.text.strip()):
        refuse(NAME, head, "the comment above the rows does not name the columns")
    names = [column.strip() for column in head.text.lstrip("# ").split(",")]
    cells = [(line, line.text.strip().split(",")) for line in rows[len(comments) :]]
    return _rows(head, names, cells)


def _rows(head: Line, names: list[str], rows: list[tuple[Line, list[str]]]) -> list[Record]:
    """Return the records of a table; cells of a column without a name must be empty."""
    named = [name for name in names if name]
    if len(set(named)) != len(named):
        refuse(NAME, head, "a column appears twice")
    out: list[Record] = []
    for line, cells in rows:
        if len(cells) != len(names):
            refuse(NAME, line, f"{len(cells)} cells in a table of {len(names)} columns")
        if any(cell for name, cell in zip(names, cells, strict=True) if not name):
            refuse(NAME, line, "a value in the column without a name")
        pairs = zip(names, cells, strict=True)
        out.append(_row(line, [(name, cell) for name, cell in pairs if name]))
    if not out:
        refuse(NAME, head, "a head without rows: cut short?")
    return _unique(head, out)


def _unique(head: Line, out: list[Record]) -> list[Record]:
    cpus = [record["cpu"] for record in out if record.get("cpu") is not None]
    if len(cpus) != len(set(cpus)):
        refuse(NAME, head, "a CPU has two rows")
    return out


def _row(line: Line, pairs: Sequence[tuple[str, object]]) -> Record:
    is_cache = any(column.upper() == "NAME" for column, _ in pairs)
    record: Record = {"kind": "cache" if is_cache else "cpu"}
    for column, cell in pairs:
        text = "" if cell is None else str(cell).strip()
        if isinstance(cell, bool):
            text = "yes" if cell else "no"
        if _CACHE_COLUMN.match(column) or (column.upper() == "CACHE" and not is_cache):
            record.update(_cache_ids(line, column, text))
        else:
            name = _COLUMNS.get(column.upper()) or column.lower().replace("-", "_")
            missing = text in ("-", "")
            record[name] = None if missing else _cell(line, column.upper(), name, text, is_cache)
    if record.keys() & {"max_mhz", "min_mhz", "mhz"}:
        record["unit"] = "MHz"
    if is_cache:
        record["unit"] = "B"
    elif "cpu" in record and record["cpu"] is None:
        refuse(NAME, line, "a row without its CPU's number")
    return record


def _cell(line: Line, column: str, name: str, text: str, is_cache: bool) -> object:
    if column in _SIZE_COLUMNS:
        return _size(line, text)[0]
    if name in _DECIMALS:
        if not re.fullmatch(r"\d+(?:[.,]\d+)?%?", text):
            refuse(NAME, line, f"{text!r} is not a number of the column {column}")
        return float(text.rstrip("%").replace(",", "."))
    whole = bool(_INTEGER.match(text))
    if column in _ID_COLUMNS and not whole:
        refuse(NAME, line, f"{text!r} is not a number of the column {column}")
    if whole and (column in _ID_COLUMNS or is_cache):
        return int(text)
    return _SWITCH.get(text.lower(), text) if column in ("ONLINE", "CONFIGURED") else text


def _cache_ids(line: Line, column: str, text: str) -> Record:
    names = column.split(":")
    if text in ("-", ""):
        return dict.fromkeys(names)
    cells = text.split(":")
    if len(cells) != len(names) or not all(re.fullmatch(r"\d+|-?", cell) for cell in cells):
        refuse(NAME, line, f"{text!r} does not number the caches {column}")
    pairs = zip(names, cells, strict=True)
    return {name: int(cell) if cell.isdigit() else None for name, cell in pairs}


# --- JSON -------------------------------------------------------------------------------------


def _json(rows: list[Line]) -> list[Record]:
    line = rows[0]
    try:
        data = json.loads("\n".join(row.text for row in rows), object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as error:
        refuse(NAME, line, f"this is not JSON: {error}")
    key, items = next(iter(data.items())) if isinstance(data, dict) and data else ("", None)
    known = len(data) == 1 and key in ("lscpu", "cpus", "caches")
    if not known or not isinstance(items, list) or not items:
        refuse(NAME, line, "lscpu's JSON holds one list: lscpu, cpus or caches")
    if key == "lscpu":
        return _records(list(_json_fields(line, items, 0)))
    out: list[Record] = []
    for item in items:
        if not isinstance(item, dict) or any(isinstance(v, (dict, list)) for v in item.values()):
            refuse(NAME, line, "a row of lscpu's JSON holds only texts and numbers")
        # The columns' names are in lower case here, those of the caches too: "l1d:l1i:l2".
        pairs = [(re.sub(r"\bl(?=\d)", "L", column), cell) for column, cell in item.items()]
        out.append(_row(line, pairs))
    return _unique(line, out)


def _distinct(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return an object; ValueError where a key is there twice, as where lines were lost."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice in an object")
    return found


def _json_fields(line: Line, items: object, indent: int) -> Iterator[_Field]:
    if indent > 8:
        refuse(NAME, line, "the fields are nested too deep")
    if not isinstance(items, list):
        refuse(NAME, line, "the children of a field are a list")
    for item in items:
        if not isinstance(item, dict) or not isinstance(item.get("field"), str):
            refuse(NAME, line, "an item of lscpu's JSON has a field and its data")
        data = item.get("data")
        if isinstance(data, (dict, list)):
            refuse(NAME, line, "the data of a field is a text")
        label = item["field"].strip().rstrip(":：").strip()
        value = "" if data is None else str(data).strip()
        yield _Field(line, indent, label, value, _NAMES.get(label))
        if item.get("children") is not None:
            yield from _json_fields(line, item["children"], indent + 1)
