"""Comments stripped from Python: the same code, on the same lines."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

import headstart
from headstart.compression.compress import compress
from headstart.compression.transforms import strip_comments

SOURCES = sorted(Path(headstart.__file__).parent.glob("compression/*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_the_syntax_tree_and_its_lines_stay_the_same(path: Path) -> None:
    text = path.read_text("utf-8")
    stripped = strip_comments(text)
    trees = [ast.dump(ast.parse(each, type_comments=True)) for each in (text, stripped)]
    assert trees[0] == trees[1]
    assert stripped.count("\n") == text.count("\n")
    assert strip_comments(stripped) == stripped


def test_comments_go_and_what_looks_like_one_stays() -> None:
    text = 'x = "# no"  # yes\n# yes\ny = f"""\n# no\n"""\n\n\nz = 1  # yes\n'
    assert strip_comments(text) == 'x = "# no"\n\ny = f"""\n# no\n"""\n\n\nz = 1\n'
    assert strip_comments('a = f"{b!r}"  # yes\n') == 'a = f"{b!r}"\n'
    assert strip_comments("a = 1  # one\r\nb = 2  # two") == "a = 1\r\nb = 2"


@pytest.mark.parametrize(
    "text",
    [
        "#!/bin/sh\n# -*- coding: latin-1 -*-\nx = 1  # type: int\n",
        "if (x) { // say # so\n  run(); }\n?",
        "cost = $5  # dollars\n",
        "if (!x) { run() }  # not Python\n",
        "def f(:  # what\n    '''open\n",
        "x = 1\f\n\x0b# one\x1c\ny = 2  # two\n" + "(" * 300,
        "",
    ],
)
def test_meaningful_comments_and_other_texts_are_left_alone(text: str) -> None:
    assert strip_comments(text) == text


def conversation(tool: str) -> list[dict[str, Any]]:
    code = "\n".join(f"value_{n} = {n}  # the value of number {n}, in metres" for n in range(400))
    function = {"name": tool, "arguments": "{}"}
    return [
        {"role": "user", "content": "What does it print?"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": function}]},
        {"role": "tool", "tool_call_id": "1", "content": code},
    ]


def test_comments_are_stripped_only_where_that_was_asked_for() -> None:
    messages = conversation("search_code")
    assert compress(messages, mode="balanced").spans == ()
    assert compress(messages, mode="safe", strip_comments=True).spans == ()
    (span,) = compress(messages, mode="balanced", strip_comments=True).spans
    assert span.transforms == ("comments",)
    assert compress(conversation("read_file"), mode="balanced", strip_comments=True).spans == ()


def test_stripped_code_is_not_shortened_again() -> None:
    once = compress(conversation("search_code"), mode="balanced", strip_comments=True).messages
    assert compress(once, mode="balanced", strip_comments=True).messages == once
