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
import re
from typing import Dict, List, Optional, Tuple

from ..agent import cpulist
from ..agent.drivers.reading import Line, Record, lines, refuse
from ..agent.errors import Fault, ParseError

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
_MEGAHERTZ = {"mhz", "max_mhz", "min_mhz", "dynamic_mhz", "static_mhz"}
_BY_TYPE = {  # what a machine with several types of cores says once for each
    "vendor", "bios_vendor", "model_name", "bios_model_name", "bios_cpu_family", "machine_type",
    "cpu_family", "model", "threads_per_core", "cores_per_socket", "cores_per_cluster", "sockets",
    "clusters", "stepping", "microcode", "boost", "scaling_percent", "max_mhz", "min_mhz",
    "bogomips", "flags", "isa", "mmu",
}  # fmt: skip
_SECTIONS = ("Virtualization features", "Caches (sum of all)", "NUMA", "Vulnerabilities")
_LABEL = re.compile(r"(?P<indent>\s*)(?P<label>[^:：]*?\S)\s*[:：](?P<value>\s.*|\Z)")
_UNMARKED = re.compile(r"(?P<indent>\s*)(?P<label>\S+(?: \S+)*)\s{2,}(?P<value>\S.*)\Z")
_LIST = re.compile(r"\d+(?:-\d+(?::\d+/\d+)?)?(?:,\d+(?:-\d+(?::\d+/\d+)?)?)*\Z")
_SIZE = re.compile(
    r"(?P<size>\d+(?:[.,]\d+)?)\s*(?P<unit>[KMGT]?)(?:iB|B)?"
    r"(?: \((?P<count>\d+) [^\d()]+\))?\Z"
)
_CACHE = re.compile(r"\b(L\d[dip]?|Extra L\d\w*)\b")
_INTEGER = re.compile(r"\d+\Z")
_FLAGS = re.compile(r"[a-z0-9_.]+(?: +[a-z0-9_.]+)*\Z")


def parse(text: str) -> List[Record]:
    """Return the records of one output in any of the forms; ParseError for anything else."""
    rows = [line for line in lines(text, ("lscpu",)) if line.text.strip()]
    if not rows:
        refuse(NAME, None, "it is empty")
    first = rows[0].text.strip()
    if first.startswith("{"):
        return _json(text, rows)
    if first.startswith("#"):
        return _parsable(rows)
    if re.match(r"(?:CPU|NAME|NODE|SOCKET|CORE|ONLINE|BOGOMIPS)(?:\s+[A-Z][\w:%-]*)*\Z", first):
        return _table(rows)
    return _summary(rows)


# Summary


class _Field:
    """One "label: value" of a summary."""

    def __init__(self, line: Line, indent: int, label: str, value: str) -> None:
        self.line, self.indent, self.label, self.value = line, indent, label, value
        self.name = _NAMES.get(label)
        self.section: Optional[str] = None


def _summary(rows: List[Line]) -> List[Record]:
    fields: List[_Field] = []
    for line in rows:
        match = _LABEL.match(line.text)
        before = fields[-1] if fields else None
        if before and _continues(before, line.text.strip(), bool(match)):
            before.value = _continued(before, line.text.strip())
            continue
        match = match or (_UNMARKED.match(line.text) if not _english(rows) else None)
        if not match:
            refuse(NAME, line, "this is not a field of lscpu: a label, a colon and a value")
        label, value = match["label"].strip(), match["value"].strip()
        fields.append(_Field(line, len(match["indent"]), label, value))
    return _records(fields)


def _english(rows: List[Line]) -> bool:
    return all(row.text.split(":", 1)[0].isascii() for row in rows)


def _continues(before: _Field, row: str, labelled: bool) -> bool:
    """Whether a line goes on with a value that a mailer or a page wrapped."""
    if labelled:
        return False
    if before.name == "flags" or (len(before.value) > 200 and _FLAGS.match(before.value)):
        return bool(_FLAGS.match(row))
    if before.value.endswith(",") and re.match(r"[\d,-]+\Z", row):
        return True
    return before.label.startswith("Vulnerability ") or before.section == "Vulnerabilities"


def _continued(before: _Field, row: str) -> str:
    glue = "" if before.value.endswith(",") and re.match(r"[\d,-]+\Z", row) else " "
    return f"{before.value}{glue}{row}"


def _records(fields: List[_Field]) -> List[Record]:
    known = {field.name for field in fields}
    if not known & {"cpus", "online", "nodes", "model_name"}:
        _translated(fields)
    elif "cpus" in known and not {"online", "threads_per_core"} <= known:
        # Some translations leave "CPU(s)" as it is; and some summaries have no more than this.
        with contextlib.suppress(ParseError):
            _translated(fields)
    out: List[Record] = []
    section: Optional[str] = None
    seen: Dict[str, Line] = {}
    cpu_type = 0
    nodes: Dict[int, str] = {}
    for field in fields:
        if not field.value and (field.label in _SECTIONS or _opens(fields, field)):
            section = field.label
            continue
        if field.indent == 0:
            section = None
        if field.name == "model_name" and "model_name" in seen:
            cpu_type += 1
        key = field.name or field.label
        if key in seen and field.name not in _BY_TYPE:
            refuse(NAME, field.line, f"{field.label} a second time")
        seen.setdefault(key, field.line)
        node = _node_list(field)
        if node is not None:
            if node in nodes:
                refuse(NAME, field.line, f"node {node} a second time")
            nodes[node] = field.value
            out.append({"kind": "node", "node": node, "cpus": _cpus(field.line, field.value)})
            continue
        cache = _cache(field)
        if cache:
            out.append(cache)
            continue
        record = _field(field, section)
        if field.name in _BY_TYPE:
            record["cpu_type"] = cpu_type
        out.append(record)
    if not any(r.get("name") for r in out if r["kind"] == "field") and not nodes:
        refuse(NAME, None, "it holds no field that lscpu prints")
    _check(out)
    return out


def _opens(fields: List[_Field], field: _Field) -> bool:
    """Whether an empty field is a section's title: the next field is indented below it."""
    at = fields.index(field)
    return at + 1 < len(fields) and fields[at + 1].indent > field.indent


def _check(out: List[Record]) -> None:
    """Refuse a summary whose own numbers contradict each other, as a cut or altered one's do."""
    by_name = {r["name"]: r["value"] for r in out if r["kind"] == "field" and r["name"]}
    lists = [r for r in out if r["kind"] == "node"]
    declared = by_name.get("nodes")
    if isinstance(declared, int) and lists and declared != len(lists):
        refuse(NAME, None, f"it says {declared} NUMA nodes and lists {len(lists)}: cut short?")
    cpus, online = by_name.get("cpus"), by_name.get("online")
    if isinstance(cpus, int) and isinstance(online, str):
        count = len(cpulist.parse(online)) + len(cpulist.parse(str(by_name.get("offline") or "")))
        # Before 2.37 "CPU(s)" leaves the offline CPUs out on some machines.
        if count != cpus and len(cpulist.parse(online)) != cpus:
            refuse(NAME, None, f"it says {cpus} CPUs and lists {count}: cut short?")
    listed: List[int] = []
    for record in lists:
        listed.extend(cpulist.parse(str(record["cpus"])))
    if len(listed) != len(set(listed)):
        refuse(NAME, None, "a CPU belongs to two NUMA nodes")


def _cpus(line: Line, value: str) -> str:
    if value in ("", "-"):
        return ""
    if not _LIST.match(value):
        refuse(NAME, line, f"{value!r} is not a list of CPUs")
    try:
        return cpulist.format(cpulist.parse(value))
    except Fault as fault:
        refuse(NAME, line, fault.what)


def _node_list(field: _Field) -> Optional[int]:
    """Return the node whose CPUs a field lists, in any language; None for another field."""
    if "NUMA" not in field.label:
        return None
    number = re.search(r"(\d+)", field.label)
    if not number:
        return None
    if field.value and not _LIST.match(field.value):
        refuse(NAME, field.line, f"{field.value!r} is not a list of CPUs")
    return int(number[1])


def _cache(field: _Field) -> Optional[Record]:
    name = _CACHE.search(field.label)
    if not name or field.name:
        return None
    match = _SIZE.match(field.value)
    if not match:
        refuse(NAME, field.line, f"{field.value!r} is not the size of a cache")
    size = _bytes(match["size"], match["unit"])
    count = int(match["count"]) if match["count"] else None
    # Since util-linux 2.34 sizes are sums over all instances, written "32 KiB"; before, "32K".
    summed = "iB" in field.value
    return {
        "kind": "cache", "name": name[1], "value": size, "unit": "B", "instances": count,
        "scope": "all" if summed else "one",
    }  # fmt: skip


def _bytes(size: str, unit: str) -> int:
    scale = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}[unit]
    return int(round(float(size.replace(",", ".")) * (1 << scale)))


def _field(field: _Field, section: Optional[str]) -> Record:
    record: Record = {
        "kind": "field", "name": field.name, "label": field.label, "section": section,
        "value": field.value, "unit": "",
    }  # fmt: skip
    name, value = field.name, field.value
    if name in ("online", "offline"):
        record["value"] = _cpus(field.line, value)
    elif name in _COUNTS:
        if value == "-":
            record.update(value=None, reason="lscpu prints no number here")
        elif not _INTEGER.match(value):
            refuse(NAME, field.line, f"{value!r} is not a count")
        else:
            record["value"] = int(value)
    elif name in _MEGAHERTZ or name in ("bogomips", "scaling_percent"):
        unit = "%" if name == "scaling_percent" else ("MHz" if name in _MEGAHERTZ else "")
        number = re.fullmatch(r"(\d+(?:[.,]\d+)?)\s*%?", value)
        if number:
            record.update(value=float(number[1].replace(",", ".")), unit=unit)
        elif value in ("-", ""):
            record.update(value=None, reason="lscpu prints no number here", unit=unit)
        else:
            refuse(NAME, field.line, f"{value!r} is not a number")
    elif name is None and section is None and field.label.startswith("Vulnerability "):
        record["section"] = "Vulnerabilities"
    return record


def _translated(fields: List[_Field]) -> None:
    """Name the fields of a summary in another language by their order and the form of values."""
    at = next((i for i, field in enumerate(fields) if _INTEGER.match(field.value)), len(fields))
    if at + 1 >= len(fields) or fields[at].name not in (None, "cpus"):
        refuse(NAME, None, "it holds no field that lscpu prints")
    cpus, online = int(fields[at].value), fields[at + 1]
    if not _LIST.match(online.value) or cpus < len(_numbers(online)):
        refuse(NAME, online.line, "after the number of CPUs there is no list of those online")
    fields[at].name, online.name = "cpus", "online"
    after = at + 2
    if len(_numbers(online)) < cpus:
        if after >= len(fields) or not _LIST.match(fields[after].value):
            refuse(NAME, online.line, "the list of the CPUs that are offline is missing")
        fields[after].name = "offline"
        after += 1
    if at and not fields[0].name and re.fullmatch(r"[a-z]\w+", fields[0].value):
        fields[0].name = "architecture"
    for field in fields[after:]:
        if field.name:
            continue
        if "NUMA" in field.label and not re.search(r"\d", field.label) and (
            _INTEGER.match(field.value)
        ):  # fmt: skip
            field.name = "nodes"
        elif re.fullmatch(r"GenuineIntel|AuthenticAMD|HygonGenuine|ARM|HiSilicon|IBM.*|APM|Cavium"
                          r"|Ampere|Phytium|Apple|Loongson", field.value):  # fmt: skip
            field.name = "vendor"
        elif _FLAGS.match(field.value) and len(field.value) > 100:
            field.name = "flags"
    window = [
        i
        for i in range(after, len(fields) - 2)
        if all(_INTEGER.match(fields[i + k].value) and not fields[i + k].name for k in range(3))
        and _product(fields[i : i + 3]) in (cpus, len(_numbers(online)))
    ]
    if window and (len(window) == 1 or window[0] == after):
        for k, name in enumerate(("threads_per_core", "cores_per_socket", "sockets")):
            fields[window[0] + k].name = name


def _numbers(field: _Field) -> List[int]:
    try:
        return cpulist.parse(field.value)
    except Fault as fault:
        refuse(NAME, field.line, fault.what)


def _product(fields: List[_Field]) -> int:
    product = 1
    for field in fields:
        product *= int(field.value)
    return product


# Tables

_COLUMNS = {
    "MAXMHZ": "max_mhz", "MINMHZ": "min_mhz", "MHZ": "mhz", "SCALMHZ%": "scaling_percent",
    "BOGOMIPS": "bogomips", "MODELNAME": "model_name",
}  # fmt: skip
_ID_COLUMNS = {"CPU", "CORE", "SOCKET", "CLUSTER", "NODE", "BOOK", "DRAWER", "ADDRESS"}
_SIZE_COLUMNS = {"ONE-SIZE": "one_bytes", "ALL-SIZE": "all_bytes"}


def _table(rows: List[Line]) -> List[Record]:
    """Read --extended and --caches: a head, then one row of cells without blanks per CPU."""
    head = rows[0].text.split()
    if len(set(head)) != len(head):
        refuse(NAME, rows[0], "a column appears twice")
    out: List[Record] = []
    for line in rows[1:]:
        cells = line.text.split()
        if "MODELNAME" in head and len(cells) > len(head):
            # A model's name holds blanks; the other cells do not.
            at, extra = head.index("MODELNAME"), len(cells) - len(head)
            cells[at : at + extra + 1] = [" ".join(cells[at : at + extra + 1])]
        if len(cells) != len(head):
            refuse(NAME, line, f"{len(cells)} cells in a table of {len(head)} columns")
        out.append(_row(line, list(zip(head, cells))))
    if not out:
        refuse(NAME, rows[0], "a head without rows: cut short?")
    return _unique(rows, out)


def _unique(rows: List[Line], out: List[Record]) -> List[Record]:
    cpus = [record["cpu"] for record in out if record.get("cpu") is not None]
    if len(cpus) != len(set(cpus)):
        refuse(NAME, rows[0], "a CPU has two rows")
    return out


def _row(line: Line, pairs: List[Tuple[str, object]]) -> Record:
    is_cache = any(column.upper() == "NAME" for column, _ in pairs)
    record: Record = {"kind": "cache" if is_cache else "cpu"}
    for column, cell in pairs:
        text = "" if cell is None else str(cell).strip()
        if isinstance(cell, bool):
            text = "yes" if cell else "no"
        upper = column.upper()
        if re.match(r"L\d[dip]?(?::L\d[dip]?)*\Z", column) or (upper == "CACHE" and not is_cache):
            _cache_cells(line, column, text, record)
            continue
        name = _COLUMNS.get(upper) or _SIZE_COLUMNS.get(upper) or upper.lower().replace("-", "_")
        if text in ("-", ""):
            record[name] = None
        elif upper in _ID_COLUMNS:
            if not _INTEGER.match(text):
                refuse(NAME, line, f"{text!r} is not a number of the column {column}")
            record[name] = int(text)
        elif upper in _SIZE_COLUMNS:
            match = _SIZE.match(text)
            if not match:
                refuse(NAME, line, f"{text!r} is not the size of a cache")
            record[name] = _bytes(match["size"], match["unit"])
        elif name in ("max_mhz", "min_mhz", "mhz", "scaling_percent", "bogomips"):
            if not re.fullmatch(r"\d+(?:[.,]\d+)?%?", text):
                refuse(NAME, line, f"{text!r} is not a number of the column {column}")
            record[name] = float(text.rstrip("%").replace(",", "."))
        elif upper in ("ONLINE", "CONFIGURED"):
            known = {"yes": True, "y": True, "true": True, "no": False, "n": False, "false": False}
            record[name] = known.get(text.lower(), text)
        elif is_cache and _INTEGER.match(text):
            record[name] = int(text)
        else:
            record[name] = text
    if "max_mhz" in record or "min_mhz" in record or "mhz" in record:
        record["unit"] = "MHz"
    if is_cache:
        record["unit"] = "B"
    if not is_cache and "cpu" in record and record["cpu"] is None:
        refuse(NAME, line, "a row without its CPU's number")
    return record


def _cache_cells(line: Line, column: str, text: str, record: Record) -> None:
    names = column.split(":")
    if text in ("-", ""):
        record.update(dict.fromkeys(names))
        return
    cells = text.split(":")
    if len(cells) != len(names) or not all(re.fullmatch(r"\d+|-?", cell) for cell in cells):
        refuse(NAME, line, f"{text!r} does not number the caches {column}")
    record.update({n: int(c) if c.isdigit() else None for n, c in zip(names, cells)})


def _parsable(rows: List[Line]) -> List[Record]:
    """Read --parse: the last comment line names the columns; an empty one precedes the caches."""
    comments = [line for line in rows if line.text.lstrip().startswith("#")]
    head_line = comments[-1]
    head = [column.strip() for column in head_line.text.lstrip("# ").split(",")]
    if not re.match(r"#\s*\w+(?:,[\w:%-]*)*\Z", head_line.text.strip()):
        refuse(NAME, head_line, "the comment above the rows does not name the columns")
    named = [column for column in head if column]
    if len(set(named)) != len(named):
        refuse(NAME, head_line, "a column appears twice")
    out: List[Record] = []
    for line in rows:
        if line.text.lstrip().startswith("#"):
            if out:
                refuse(NAME, line, "a comment between the rows")
            continue
        cells = line.text.strip().split(",")
        if len(cells) != len(head):
            refuse(NAME, line, f"{len(cells)} cells in a table of {len(head)} columns")
        pairs: List[Tuple[str, object]] = []
        for column, cell in zip(head, cells):
            if column:
                pairs.append((column, cell))
            elif cell:
                refuse(NAME, line, "a value in the column without a name")
        out.append(_row(line, pairs))
    if not out:
        refuse(NAME, head_line, "a head without rows: cut short?")
    return _unique(rows, out)


# JSON


def _json(text: str, rows: List[Line]) -> List[Record]:
    body = "\n".join(line.text for line in rows)
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        refuse(NAME, rows[0], f"this is not JSON: {error}")
    if not isinstance(data, dict) or len(data) != 1:
        refuse(NAME, rows[0], "lscpu's JSON holds one list: lscpu, cpus or caches")
    key, items = next(iter(data.items()))
    if key not in ("lscpu", "cpus", "caches") or not isinstance(items, list) or not items:
        refuse(NAME, rows[0], "lscpu's JSON holds one list: lscpu, cpus or caches")
    if key == "lscpu":
        fields: List[_Field] = []
        _json_fields(rows[0], items, 0, fields)
        return _records(fields)
    out: List[Record] = []
    for item in items:
        if not isinstance(item, dict) or any(isinstance(v, (dict, list)) for v in item.values()):
            refuse(NAME, rows[0], "a row of lscpu's JSON holds only texts and numbers")
        # The columns' names are in lower case here, those of the caches too: "l1d:l1i:l2".
        pairs = [(re.sub(r"\bl(?=\d)", "L", column), cell) for column, cell in item.items()]
        out.append(_row(rows[0], pairs))
    return _unique(rows, out)


def _json_fields(line: Line, items: List[object], indent: int, out: List[_Field]) -> None:
    if indent > 8:
        refuse(NAME, line, "the fields are nested too deep")
    for item in items:
        if not isinstance(item, dict) or not isinstance(item.get("field"), str):
            refuse(NAME, line, "an item of lscpu's JSON has a field and its data")
        data = item.get("data")
        if isinstance(data, (dict, list)):
            refuse(NAME, line, "the data of a field is a text")
        value = "" if data is None else str(data).strip()
        label = str(item["field"]).strip().rstrip(":：").strip()
        out.append(_Field(line, indent, label, value))
        children = item.get("children")
        if children is not None:
            if not isinstance(children, list):
                refuse(NAME, line, "the children of a field are a list")
            _json_fields(line, children, indent + 1, out)
