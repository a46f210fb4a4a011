"""A reason: a code with its fields, which reads as a sentence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping

from . import words


@dataclass(frozen=True)
class Reason:
    """Why something is not there, was left out, or should be doubted: a code with its fields.

    `str(reason)` is the sentence for a reader, made from the templates in `words`. Code compares
    `code`, never the sentence. Field values are plain JSON values.
    """

    code: str
    fields: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return words.sentence(self.code, self.fields)
