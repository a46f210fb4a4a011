"""Every code has one sentence, and every sentence finds its fields."""

import ast
import string
from pathlib import Path

import pytest

import numalab.analysis  # noqa: F401  (its sentences)
from numalab.agent import words
from numalab.agent.contract import Reason, reason
from numalab.agent.words import units

LIB = Path(words.__file__).resolve().parents[2]


def _reasons():
    """Return (file:line, code, names of its fields or None) of every reason with a plain code."""
    found = []
    for path in sorted(LIB.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            first = node.args[0]
            if name != "reason" or not isinstance(first, ast.Constant):
                continue
            names = [word.arg for word in node.keywords]
            fields = None if None in names else set(names)
            found.append((f"{path.relative_to(LIB)}:{node.lineno}", first.value, fields))
    return found


REASONS = _reasons()


def test_no_code_stands_in_two_rooms():
    assert len(words.templates()) > 100  # raises where one does


@pytest.mark.parametrize("where, code, fields", REASONS, ids=[where for where, _, _ in REASONS])
def test_a_reason_has_a_sentence_that_finds_its_fields(where, code, fields):
    template = words.templates().get(code)
    assert template is not None, f"{where}: no sentence for {code}"
    if callable(template) or fields is None:
        return
    used = {name for _, name, _, _ in string.Formatter().parse(template) if name}
    assert used <= fields, f"{where}: {code} needs {sorted(used - fields)}"


def test_codes_are_in_one_style():
    odd = [code for code in words.templates() if code != code.lower() or " " in code or "_" in code]
    assert odd == []


def test_an_unknown_code_and_damaged_fields_stay_readable():
    assert str(Reason("from-the-future", {"a": 1})) == "from the future (a 1)"
    for code in words.templates():
        assert str(Reason(code, {})), code
        assert str(Reason(code, dict.fromkeys("abc", [None])))


def test_a_reason_within_a_reason_is_a_sentence_too():
    inner = reason("fault", what="the disk is full", hint=None)
    outer = reason("fault", what="x", hint=None)
    assert str(inner) == "the disk is full"
    assert words._Formatter().vformat("{why}", (), {"why": inner}) == "the disk is full"
    assert str(outer) == "x"


@pytest.mark.parametrize(
    "number, said",
    [(512, "512 bytes"), (1024, "1.0 KiB"), (1536 * 1024, "1.5 MiB"), (300 << 30, "300 GiB"),
     (5 << 40, "5.0 TiB")],
)  # fmt: skip
def test_sizes(number, said):
    assert units.size(number) == said


@pytest.mark.parametrize(
    "number, said",
    [(45, "45 s"), (660, "11 min"), (4800, "80 min"), (7200, "2 h"), (183600, "2 d 3 h")],
)
def test_lengths_of_time(number, said):
    assert units.seconds(number) == said
