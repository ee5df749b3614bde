"""Code outside ``headstart/dialects`` asks the record of a dialect, and never compares its name."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

from headstart.dialects.registry import UPSTREAM_DIALECTS
from support.repository import PACKAGE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAMES = frozenset(UPSTREAM_DIALECTS)
SETTINGS = frozenset(each.setting for each in UPSTREAM_DIALECTS.values())
ASKED = frozenset({"dialect", "name", "setting", "speaks"})
"""Attributes that hold the name of a dialect."""
ELSEWHERE = [
    path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.relative_to(PACKAGE).parts[0] not in ("dialects", "lab")
]


@pytest.mark.parametrize("path", ELSEWHERE, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_module_knows_a_dialect_by_its_name(path: Path) -> None:
    assert list(names_in(ast.parse(path.read_text()))) == []


def test_a_name_and_a_comparison_are_found() -> None:
    told = 'if call.dialect == "x" and upstream.speaks != "openai": name = "openai-chat"'
    assert set(names_in(ast.parse(told))) == {"openai-chat", "upstream.speaks != 'openai'"}
    chosen = "if own.name in (GEMINI.name, OPENAI.name): pass"
    assert list(names_in(ast.parse(chosen))) == ["own.name in (GEMINI.name, OPENAI.name)"]


def names_in(tree: ast.Module) -> Iterator[str]:
    """Yield each dialect's name in a literal, and each comparison with the name of a dialect."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in NAMES:
            yield str(node.value)
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(isinstance(side, ast.Attribute) and side.attr in ASKED for side in sides) and (
                any(map(is_fixed, sides))
            ):
                yield ast.unparse(node)


def is_fixed(side: ast.expr) -> bool:
    """Is this a setting's name of a dialect, a constant's attribute, or a collection of these?"""
    if isinstance(side, ast.Tuple | ast.List | ast.Set):
        return any(map(is_fixed, side.elts))
    if isinstance(side, ast.Attribute):
        return isinstance(side.value, ast.Name) and side.value.id.isupper()
    return isinstance(side, ast.Constant) and side.value in SETTINGS
