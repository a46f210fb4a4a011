"""A captured text of /proc/PID/numa_maps.

The format is told in ``agent/numa_maps.py``. The records:

- ``mapping``: the fields of ``Mapping``, every one of COUNTERS (null when the line has none) and
  ``pages``, the sum over the nodes; ``reason`` where pages are there and their size is not
- ``node_pages``, one per mapping and node: ``address``, ``node``, ``pages``, ``page_bytes``,
  ``value`` (bytes; null with ``reason`` when the page size is not known), ``unit`` B
"""

from __future__ import annotations

from collections.abc import Sequence

from numalab.agent.contract import Record
from numalab.agent.drivers.reading import lines as captured_lines
from numalab.agent.errors import ParseError
from numalab.agent.numa_maps import COUNTERS, Mapping, mappings

_NO_SIZE = "the kernel does not print kernelpagesize_kB for this mapping"


def parse(text: str) -> list[Record]:
    """Return the records of a captured text; ParseError for a line that is no mapping."""
    records: list[Record] = []
    rows = [line.text for line in captured_lines(text, ("cat", "numa_maps"))]
    found = list(mappings(rows))
    _refuse_cut_paths(found, rows, whole=text.endswith("\n"))
    for one in found:
        size, pages = one.page_bytes, one.pages
        unsized = {"reason": _NO_SIZE} if pages and size is None else {}
        plain = {name: value for name, value in vars(one).items() if name != "counters"}
        counters = {name: one.counters.get(name) for name in COUNTERS}
        total = sum(pages.values())
        records.append({"kind": "mapping", **plain, **counters, "pages": total, **unsized})
        for node, count in pages.items():
            value = None if size is None else count * size
            records.append(
                {"kind": "node_pages", "address": one.address, "node": node, "pages": count,
                 "page_bytes": size, "value": value, "unit": "B", **unsized}
            )  # fmt: skip
    if not records:
        raise ParseError("numa_maps", 0, "", "it holds no mapping")
    return records


def _refuse_cut_paths(found: Sequence[Mapping], rows: Sequence[str], whole: bool) -> None:
    """Refuse a path that was cut: nothing follows it, as in a line of a file without pages.

    It is cut where the text ends with it, without an end of line, and where the same file's next
    or previous mapping has more of it.
    """
    for at, one in enumerate(found):
        if not one.file or one.pages or one.counters:
            continue
        near = [other.file for other in (*found[max(0, at - 1) : at], *found[at + 1 : at + 2])]
        if (at == len(found) - 1 and not whole) or any(
            path and path.startswith(one.file) and path[len(one.file) :] not in ("", " (deleted)")
            for path in near
        ):
            number, row = next((n, r) for n, r in enumerate(rows, 1) if one.address in r[:17])
            raise ParseError("numa_maps", number, row, "the line is cut within its path")
