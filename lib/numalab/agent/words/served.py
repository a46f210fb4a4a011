"""Sentences of the codes of the served room."""

from __future__ import annotations

from typing import Dict

from . import Template

SENTENCES: Dict[str, Template] = {}
