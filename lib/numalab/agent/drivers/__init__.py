"""The tools that measure: one module each, which holds a subclass of ``contract.Driver``.

A new tool is one file here and one line in ``_DRIVERS``. A module is imported when its tool is
first asked for.
"""

from __future__ import annotations

import functools
import importlib

from ..contract import Driver
from ..errors import Fault

_DRIVERS = {  # the tool's name: where its class is
    "allocation": ".allocation:Allocation",
    "command": ".command:Command",
    "host": ".host:HostWitness",
    "mlc": ".mlc:Mlc",
    "mysql_server": "..served.mysql.driver:MySQL",
    "probe": ".probe:Probe",
    "service": "..served.service.driver:ServiceDriver",
    "stream": ".stream:Stream",
    "sysbench": ".sysbench:Sysbench",
}
MEASURING = tuple(_DRIVERS)


@functools.cache
def driver(name: str) -> Driver:
    """Return the driver of a tool by its name; Fault with the known names."""
    if name not in _DRIVERS:
        raise Fault(f"there is no measuring tool named {name!r}", f"known: {', '.join(MEASURING)}")
    module, _, kind = _DRIVERS[name].partition(":")
    return getattr(importlib.import_module(module, __name__), kind)()  # type: ignore[no-any-return]
