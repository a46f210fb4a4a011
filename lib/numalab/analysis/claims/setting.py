"""What the host was set to before the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, field_validator

from ...agent.host import settings
from .base import REFUTED, SUPPORTED, Form, Judged, Untestable

if TYPE_CHECKING:
    from ...runs import Run

# names of the kernel's files where host.json has another for the same
_ALIASES = {"lru_gen.enabled": "vm.lru_gen"}


class Setting(Form):
    """What the host was set to before the run: ``is`` as the kernel shows it."""

    keys: ClassVar = ("setting",)
    needs_blocks: ClassVar = False

    setting: str
    value: str = Field(alias="is")

    @field_validator("value", mode="before")
    @classmethod
    def _as_text(cls, given: Any) -> Any:
        return str(given) if type(given) is int else given

    def judged(self, run: Run, others: Sequence[Run]) -> Judged:
        """Return what a run says; or Untestable."""
        name, before = self.setting, run.host.before
        found = before.get(name) or before.get(_ALIASES.get(name, name))
        if found is None:
            raise Untestable("setting-not-recorded", setting=name)
        if found.value is None:
            raise Untestable("setting-unknown-before", setting=name, why=found.reason)
        same = settings.same(name, self.value, str(found.value))
        because = f"{name} was {found.value} before the run; the claim asks for {self.value}"
        return Judged(SUPPORTED if same else REFUTED, because)
