"""The time for a long input grows with its length; the longest inputs are left unchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headstart.compression import compress as module
from headstart.compression.compress import LONGEST_PROMPT, LONGEST_TEXT, compress
from headstart.compression.selection import (
    LONGEST_CALL,
    LONGEST_WORDS,
    find_documents,
    shows_file,
    understand,
)

if TYPE_CHECKING:
    from headstart.compression.selection import TextPurpose

PADDED = "\n".join(f"{number:>6}\u2192line {number}" for number in range(100_000))


def _tool(text: str) -> dict[str, object]:
    return {"role": "tool", "tool_call_id": "1", "content": text}


def test_each_word_of_the_user_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def noting(words: str) -> TextPurpose:
        read.append(words)
        return understand(words)

    monkeypatch.setattr(module, "understand", noting)
    asked = [
        f"Context:\n{'Words. ' * 40}{number}\nQuestion: who is {number}?" for number in range(200)
    ]
    compress([{"role": "user", "content": text} for text in asked], mode="aggressive")
    assert 0 < sum(map(len, read)) < sum(map(len, asked))


def test_what_an_earlier_message_of_the_turn_asked_still_counts() -> None:
    asked = understand("Translate this word for word.").then(understand("Who is meant?"))
    assert asked.verbatim
    assert not asked.markup
    assert asked.question.endswith("word for word.\nWho is meant?")


def test_a_text_and_a_prompt_that_are_too_long_stay_whole() -> None:
    assert compress([_tool(PADDED[:LONGEST_TEXT])]).spans
    assert not compress([_tool(PADDED[: LONGEST_TEXT + 1])]).spans
    several = [_tool(PADDED[:LONGEST_TEXT])] * (LONGEST_PROMPT // LONGEST_TEXT)
    assert compress(several).spans
    assert not compress([*several, _tool("x")]).spans


def test_long_words_and_long_calls_are_not_read() -> None:
    asked = understand("who? " * (LONGEST_WORDS // 5 + 1))
    assert asked.verbatim
    assert asked.whole
    assert asked.counts
    assert asked.markup
    assert not shows_file("run_sql", "x" * (LONGEST_CALL - 7))
    assert shows_file("run_sql", "x" * (LONGEST_CALL - 6))


@pytest.mark.parametrize("line", ["#" * 50_000, "\n" * 50_000, "#" * 200 + "\n" + "## " * 100])
def test_marks_of_headings_hide_no_heading(line: str) -> None:
    text = f"{line}\n## Context:\nwords\nQuestion: who?"
    ((start, end),) = [(each.start, each.end) for each in find_documents(text)]
    assert text[start:end] == "words"
