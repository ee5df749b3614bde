"""Sentences of a text that arrives in pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.policies.output.sentences import LONGEST, SentenceCutter


def cut(text: str, size: int = 1) -> list[str]:
    cutter = SentenceCutter()
    found = [each for at in range(0, len(text), size) for each in cutter.feed(text[at : at + size])]
    return [*found, cutter.rest()]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Hello. How are you? Fine!", ["Hello.", " How are you?", " Fine!"]),
        ("Dr. Smith met Mr. Jones. They spoke.", ["Dr. Smith met Mr. Jones.", " They spoke."]),
        ("J. R. Smith is here. Yes.", ["J. R. Smith is here.", " Yes."]),
        ("See example.com now. Then go.", ["See example.com now.", " Then go."]),
        ("It costs 3.50 dollars. Fine.", ["It costs 3.50 dollars.", " Fine."]),
        ("The U.S. economy grew. It did.", ["The U.S. economy grew.", " It did."]),
        ('He said "Go." Then he left.', ['He said "Go."', " Then he left."]),
        ("Really?! Yes... maybe. No.", ["Really?!", " Yes...", " maybe.", " No."]),
        ("1. First point. 2. Second.", ["1. First point.", " 2. Second."]),
        ("Title\n\nThe text. End", ["Title\n", "\nThe text.", " End"]),
        ("Two things:\n- one\n- two\nDone.", ["Two things:\n", "- one\n", "- two\nDone."]),
        ("\u4f60\u3002\u5417\uff1f\u597d", ["\u4f60\u3002", "\u5417\uff1f", "\u597d"]),
        ("\u300c\u884c\u3002\u300d\u3068\u3002", ["\u300c\u884c\u3002\u300d", "\u3068\u3002"]),
        ("Das ist z.B. gut. Ja.", ["Das ist z.B. gut.", " Ja."]),
        ("No end", ["No end"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_sentences_are_whole(text: str, sentences: list[str], size: int) -> None:
    found = cut(text, size)
    assert "".join(found) == text
    assert [each for each in found if each] == sentences


@given(st.text("ab .!?\n\"')1-\u3002\u300d", max_size=300), st.integers(1, 40))
def test_nothing_is_lost_and_pieces_do_not_matter(text: str, size: int) -> None:
    assert "".join(cut(text, size)) == text
    assert cut(text, size) == cut(text, 1)


def test_a_text_without_ends_is_cut_between_words() -> None:
    found = cut("word " * 1000, 7)
    assert max(map(len, found)) <= LONGEST
    assert all(each.endswith(" ") for each in found if each)
    assert [len(each) for each in cut("x" * (3 * LONGEST), 50)] == [LONGEST] * 3


def test_a_sentence_is_known_with_the_next_character() -> None:
    cutter = SentenceCutter()
    assert cutter.feed("Well, yes.") == []
    assert cutter.feed(" I") == ["Well, yes."]
