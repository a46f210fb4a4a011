"""Sentences of the codes of the trial room."""

from __future__ import annotations

from typing import Dict

from . import Template

SENTENCES: Dict[str, Template] = {
    "fault": lambda said: f"{said['what']}. {said['hint']}" if said.get("hint") else said["what"],
}
