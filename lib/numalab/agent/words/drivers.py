"""Sentences of the codes of the drivers room."""

from __future__ import annotations

from typing import Dict

from . import Template

SENTENCES: Dict[str, Template] = {}
