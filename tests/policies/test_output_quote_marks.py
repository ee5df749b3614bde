"""Sentences that are named, not copied: numbered, expanded in any chunks, and marked again."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.middleware.shaping.quotes import MOST_SENTENCES, QuoteExpander, Sources

FIRST = "The tower was built in 1889. It is 330 metres tall! Is it made of iron, perhaps?"
SECOND = "Another document begins here.\nIts second line is a sentence."
QUOTES = {
    1: "The tower was built in 1889.",
    2: "It is 330 metres tall!",
    3: "Is it made of iron, perhaps?",
    4: "Another document begins here.",
    5: "Its second line is a sentence.",
}


def split(text: str) -> list[tuple[int, int]]:
    ends = [match.end() for match in re.finditer(r"[.!?]\s+|\n|\Z", text)]
    return [(start, end) for start, end in zip([0, *ends], ends, strict=False) if start < end]


def number(text: str, *documents: str) -> tuple[Sources, str]:
    sources = Sources()
    places = [(text.index(each), text.index(each) + len(each)) for each in documents]
    return sources, sources.number(text, places, split)


def known() -> Sources:
    return number(f"{FIRST}\n--\n{SECOND}", FIRST, SECOND)[0]


def expand(*chunks: str) -> str:
    expander = QuoteExpander(known().quote)
    return "".join([*map(expander.feed, chunks), expander.flush()])


def test_ids_stand_before_sentences_and_nothing_else_changes() -> None:
    text = f"<doc>\n{FIRST}\n</doc>\nWhat is it?"
    sources, numbered = number(text, FIRST)
    assert numbered.startswith("<doc>\n[q1] The tower was built in 1889. [q2] It is 330")
    assert numbered.endswith("\n</doc>\nWhat is it?")
    assert re.sub(r"\[q\d+\] ", "", numbered) == text
    assert len(sources) == 3


def test_ids_go_on_from_document_to_document() -> None:
    sources, numbered = number(f"{FIRST}\n--\n{SECOND}", FIRST, SECOND)
    assert "--\n[q4] Another" in numbered
    assert sources.number(f"x {FIRST}", [(2, 2 + len(FIRST))], split).startswith("x [q6] The")
    assert [sources.quote(each, each) for each in QUOTES] == list(QUOTES.values())


def test_text_that_is_not_a_sentence_gets_no_id() -> None:
    text = (
        "Document [1](Title: Towers) The first sentence is numbered.\n# A heading of some length\n"
        "| a | table | of some length |\nToo short.\n```python\ncode = 1\n```\n"
        '{"a": "JSON of some length"}\n12345 67890 12345 67890'
    )
    _, numbered = number(text, text)
    assert numbered == text.replace("The first", "[q1] The first")


def test_a_document_that_bears_ids_is_left_alone() -> None:
    text = "See [q1] for more. This is a sentence of some length."
    assert number(text, text)[1] == text


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("It says ⟦q:1⟧ there.", f"It says {QUOTES[1]} there."),
        ("⟦q:1-2⟧", f"{QUOTES[1]} {QUOTES[2]}"),
        ("⟦q:1⟧⟦q:5⟧", QUOTES[1] + QUOTES[5]),
        ("⟦q:4-5⟧", SECOND),
        ("⟦q:9⟧ ⟦q:0⟧ ⟦q:3-4⟧ ⟦q:2-1⟧ ⟦q:9999999⟧", "⟦q:9⟧ ⟦q:0⟧ ⟦q:3-4⟧ ⟦q:2-1⟧ ⟦q:9999999⟧"),
        ("⟦q:1", "⟦q:1"),
        ("⟦⟦q:1⟧⟧ ⟦x⟧", f"⟦{QUOTES[1]}⟧ ⟦x⟧"),
        ('{"a": "⟦q:1⟧"}', '{"a": "⟦q:1⟧"}'),
        (' ["⟦q:1⟧"]', ' ["⟦q:1⟧"]'),
        ("So:\n```json\n⟦q:1⟧\n```\n⟦q:2⟧", f"So:\n```json\n⟦q:1⟧\n```\n{QUOTES[2]}"),
        ("```\n~~~\n⟦q:1⟧\n```\n⟦q:2⟧", f"```\n~~~\n⟦q:1⟧\n```\n{QUOTES[2]}"),
        ("````\n```\n⟦q:1⟧\n````\n⟦q:2⟧", f"````\n```\n⟦q:1⟧\n````\n{QUOTES[2]}"),
        ("> ```\n> ⟦q:1⟧\n> ```\n⟦q:2⟧", f"> ```\n> ⟦q:1⟧\n> ```\n{QUOTES[2]}"),
        ("- ```\n  ⟦q:1⟧\n  ```\n⟦q:2⟧", f"- ```\n  ⟦q:1⟧\n  ```\n{QUOTES[2]}"),
        ("```x```\n⟦q:1⟧", f"```x```\n{QUOTES[1]}"),
        ("Write `⟦q:1⟧` or ⟦q:2⟧", f"Write `⟦q:1⟧` or {QUOTES[2]}"),
        ('The JSON:\n{"quote": "⟦q:2⟧"}', 'The JSON:\n{"quote": "⟦q:2⟧"}'),
        ('Here: {"a": ["⟦q:2⟧"]}', 'Here: {"a": ["⟦q:2⟧"]}'),
        (
            'So:\n{\n "a": [\n  "⟦q:2⟧"\n ]\n}\n⟦q:1⟧',
            f'So:\n{{\n "a": [\n  "⟦q:2⟧"\n ]\n}}\n{QUOTES[1]}',
        ),
        ('\ufeff{"a": "⟦q:1⟧"}', '\ufeff{"a": "⟦q:1⟧"}'),
        ('It says: "⟦q:1⟧"', f'It says: "{QUOTES[1]}"'),
        ("[a](b) says ⟦q:1⟧", f"[a](b) says {QUOTES[1]}"),
    ],
)
def test_marks_are_expanded_where_they_may_be(said: str, shown: str) -> None:
    assert expand(said) == shown
    assert expand(*said) == shown


def test_a_range_is_bounded() -> None:
    text = " ".join(f"This is sentence number {each}." for each in range(MOST_SENTENCES + 5))
    sources = number(text, text)[0]
    assert sources.quote(1, MOST_SENTENCES) is not None
    assert sources.quote(1, MOST_SENTENCES + 1) is None


PIECES = st.sampled_from(
    ["⟦", "⟧", "⟦q:", "⟦q:1⟧", "⟦q:2-3⟧", "⟦q:7⟧", "1", "-", "\n", "```", "`", " ", "{", "a b", "é"]
)


@given(st.lists(PIECES, max_size=30).map("".join), st.data())
def test_every_split_shows_the_same_bytes(said: str, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(said)), max_size=8).map(sorted))
    chunks = [said[a:b] for a, b in zip([0, *cuts], [*cuts, len(said)], strict=True)]
    assert expand(*chunks).encode() == expand(said).encode()


def test_every_cut_in_three_shows_the_same_bytes() -> None:
    said = "A ⟦q:1-2⟧ b ⟦q:7⟧ ⟦q:\n```\n⟦q:1⟧\n```\n⟦q:3⟧"
    cuts = range(len(said) + 1)
    shown = {expand(said[:a], said[a:b], said[b:]) for a in cuts for b in cuts if a <= b}
    assert shown == {f"A {QUOTES[1]} {QUOTES[2]} b ⟦q:7⟧ ⟦q:\n```\n⟦q:1⟧\n```\n{QUOTES[3]}"}


def test_only_what_may_become_a_mark_is_held_back() -> None:
    expander = QuoteExpander(known().quote)
    assert expander.feed("text ⟦q:1") == "text "
    assert expander.feed("x") == "⟦q:1x"
    assert expander.feed("⟦q") == ""
    assert expander.flush() == "⟦q"


def test_expanded_quotes_become_marks_again() -> None:
    sources = known()
    for said in ("⟦q:1⟧", "So ⟦q:1-2⟧, and ⟦q:4-5⟧.", "⟦q:3⟧ ⟦q:2⟧"):
        assert sources.unquote(expand(said)) == said


def test_text_that_is_not_quoted_word_for_word_stays() -> None:
    sources = known()
    for text in (
        "The tower was built in 1890.",
        f'{{"a": "{QUOTES[1]}"}}',
        f"```\n{QUOTES[1]}\n```",
        "The tower was built",
        "",
    ):
        assert sources.unquote(text) == text
    assert sources.unquote(f"```\nx\n```\n{QUOTES[1]}") == "```\nx\n```\n⟦q:1⟧"


@given(st.lists(st.sampled_from(["⟦q:1⟧", "⟦q:2-3⟧", "⟦q:5⟧", " and ", "so: ", "\n"]), max_size=12))
def test_a_marked_answer_expands_to_what_was_shown(pieces: list[str]) -> None:
    shown = expand("".join(pieces))
    assert expand(known().unquote(shown)) == shown


def test_a_quote_means_the_latest_of_equal_sentences() -> None:
    text = f"{QUOTES[1]} Something else entirely. {QUOTES[1]}"
    sources = number(text, text)[0]
    assert sources.unquote(f"It says: {QUOTES[1]}") == "It says: ⟦q:3⟧"
