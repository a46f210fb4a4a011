"""How long processes have done nothing: what hangs is ended for that, and not for being slow."""

from __future__ import annotations

import os
import time
from typing import Optional

from . import kernel

LEAST_CPU_S = 0.5  # that is work: what only waits wakes up now and then
_LOOK_S = 1.0


def cpu_s(session: int) -> float:
    """Return the CPU time that the processes of a session have used, ended children's too."""
    its = (one for one in kernel.processes().values() if one.session == session)
    return sum(one.ticks + one.children_ticks for one in its) / os.sysconf("SC_CLK_TCK")


class Idle:
    """Watches the processes of a session, and a file that they write, from now on."""

    def __init__(self, session: int, log: Optional[str] = None) -> None:
        self.session, self.log = session, log
        self._cpu_s, self._size = cpu_s(session), self._log_size()
        self._since = self._looked = time.monotonic()

    def for_s(self) -> float:
        """Return for how long they have used no CPU time to speak of and written nothing."""
        now = time.monotonic()
        if now - self._looked >= _LOOK_S:
            self._looked = now
            used, size = cpu_s(self.session), self._log_size()
            if abs(used - self._cpu_s) >= LEAST_CPU_S or size != self._size:
                self._cpu_s, self._size, self._since = used, size, now
        return now - self._since

    def _log_size(self) -> int:
        try:
            return os.stat(self.log).st_size if self.log else 0
        except OSError:
            return 0
