from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.policies.output.continuation import INSTRUCTION, Join, anchor, continuing

SAID = "Tides follow the moon. Twice a day the sea rises along the shore, and the quick bro"


def joined(said: str, *pieces: str, prefilled: bool = False) -> str:
    join = Join(said, prefilled=prefilled)
    return "".join(map(join.feed, pieces)) + join.end()


@pytest.mark.parametrize(
    ("said", "more", "new"),
    [
        (SAID, anchor(SAID) + "wn fox.", "wn fox."),
        (SAID, "  \n" + anchor(SAID) + "wn fox.", "wn fox."),
        (SAID, "wn fox.", "wn fox."),
        (SAID, "brown fox.", "wn fox."),
        (SAID, "and the quick brown fox.", "wn fox."),
        (SAID, "", ""),
        ("many clas", "s of", "s of"),
        ("a list:\n", "\n- one", "\n- one"),
        ("it is 1", "1 o'clock", "1 o'clock"),
        ("| --- | --- |", " --- |\n", " --- |\n"),
        ("the end ", "the end of it", "of it"),
        ("the end ", "the end, then", ", then"),
        ("one two", " three", " three"),
        ("x" * 300, "y", "y"),
    ],
)
def test_what_the_second_part_repeats_is_left_out(said: str, more: str, new: str) -> None:
    assert joined(said, more) == new


@pytest.mark.parametrize(
    ("said", "more", "new"),
    [("foo", "foo bar", "foo bar"), ("foo \n", " \nbar", "bar"), ("foo\n\n", "\n- a", "- a"),
     ("foo ", "bar", "bar"), ("foo ", "", "")],
)  # fmt: skip
def test_a_prefilled_answer_goes_on_to_the_letter(said: str, more: str, new: str) -> None:
    assert joined(said, more, prefilled=True) == new


@given(
    st.text(alphabet="ab .\n1", max_size=30),
    st.text(alphabet="ab .\n1", max_size=40),
    st.lists(st.integers(0, 40), max_size=6),
    st.booleans(),
)
def test_the_chunks_make_no_difference(
    said: str, more: str, cuts: list[int], prefilled: bool
) -> None:
    ends = sorted({0, len(more), *(min(cut, len(more)) for cut in cuts)})
    pieces = [more[start:end] for start, end in pairwise(ends)]
    assert joined(said, *pieces, prefilled=prefilled) == joined(said, more, prefilled=prefilled)


@given(st.text(min_size=1, max_size=200).filter(str.strip), st.text(max_size=200))
def test_what_follows_the_last_words_is_all_new(said: str, more: str) -> None:
    space = said[len(said.rstrip()) :]
    assert joined(said, anchor(said) + space + "|" + more) == "|" + more


def test_text_that_repeats_nothing_is_not_held_back() -> None:
    join = Join(SAID, prefilled=False)
    assert join.feed("Zebras") == "Zebras"
    assert join.feed(" and") == " and"


def test_the_last_words_are_words() -> None:
    assert anchor(SAID) == SAID[-80:].partition(" ")[2]
    assert anchor("short text \n") == "short text"
    assert anchor("x" * 100) == "x" * 80


def test_the_rest_is_asked_for_in_the_callers_dialect() -> None:
    chat = {"model": "m", "messages": [{"role": "user", "content": "Tides?"}]}
    asked = continuing(chat, "The moon ", "no")["messages"]
    assert asked[0] is chat["messages"][0]
    assert asked[1:] == [
        {"role": "assistant", "content": "The moon "},
        {"role": "user", "content": INSTRUCTION + "The moon"},
    ]
    gemini = {"contents": [{"role": "user", "parts": [{"text": "Tides?"}]}]}
    assert [turn["role"] for turn in continuing(gemini, "The", "no")["contents"]] == [
        "user",
        "model",
        "user",
    ]


def test_a_prefilled_answer_ends_without_space_since_providers_refuse_it() -> None:
    chat = {"messages": [{"role": "user", "content": "Tides?"}]}
    assert continuing(chat, "The ", "plain")["messages"][1:] == [
        {"role": "assistant", "content": "The"}
    ]
    assert continuing(chat, "The ", "prefix")["messages"][-1]["prefix"] is True
