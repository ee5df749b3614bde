from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.dialects.registry import DIALECTS
from headstart.policies.output.continuation import INSTRUCTION, TextJoin, anchor, continuing

CHAT = DIALECTS["openai-chat"].form
GEMINI = DIALECTS["gemini-generate"].form
SAID = "Tides follow the moon. Twice a day the sea rises along the shore, and the quick bro"


def joined(said: str, *pieces: str, prefilled: bool = False) -> str:
    join = TextJoin(said, prefilled=prefilled)
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
def test_a_repetition_in_the_second_part_is_left_out(said: str, more: str, new: str) -> None:
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
def test_the_text_after_the_last_words_is_new(said: str, more: str) -> None:
    space = said[len(said.rstrip()) :]
    assert joined(said, anchor(said) + space + "|" + more) == "|" + more


LEADS = ["```python\n", "...", "\u2026 ", '"', "**", "Continuing from where I left off:\n\n",
         "Sure! Here is the rest:\n\n```\n", "ok, going on: ", "**Continued**\n",
         "## Continued\n\n",
         "(continuing)\n", "<think>It was cut after *bro*.</think>\n",
         "<think>Go on.</think>Sure. ", "I am sorry that it was cut. " * 10 + "It goes on:\n",
         ]  # fmt: skip


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("space", ["", " ", "\n\n"])
def test_words_before_the_last_words_are_left_out_too(lead: str, space: str) -> None:
    said, more = SAID + space, lead + anchor(SAID) + space + "wn fox."
    assert joined(said, more) == "wn fox."
    assert joined(said, *more) == "wn fox."
    assert joined(said, lead + " ".join(anchor(SAID).split()) + space + "wn fox.") == "wn fox."


@pytest.mark.parametrize("lead", ["```\n", "...", '"'])
def test_a_mark_may_stand_before_less_than_all_of_them(lead: str) -> None:
    assert joined(SAID, lead + "and the quick brown fox.") == "wn fox."


STUB = "    def lowest(self, most: float, margin: float) -> float | None:\n        "


@pytest.mark.parametrize(
    ("said", "more"),
    [
        ("I think the", " cat is asleep, but I think the dog is not."),
        ("stars and moons, stars and " * 9, "suns, then stars and moons, stars and " * 2),
        ("They graze. They sleep all day. " * 9, "Zebras run. They graze. They sleep all day. "),
        (f"class Cut:\n{STUB}", f"pass\n\n{STUB}pass\n"),
        (SAID, '"Zebras," he said. ' + "They graze. " * 40 + SAID),
    ],
)
def test_words_that_come_again_by_themselves_are_kept(said: str, more: str) -> None:
    assert joined(said, *more) == more


@given(
    st.sampled_from([SAID, SAID + "\n\n", "over and over again, " * 9, SAID + " " + SAID]),
    st.sampled_from(["", "wn", *LEADS]),
    st.integers(0, 120),
    st.integers(1, 60),
)
def test_the_chunks_of_a_late_repetition_make_no_difference(
    said: str, lead: str, repeated: int, size: int
) -> None:
    more = lead + said[len(said) - repeated :] + "wn fox. " * 40
    pieces = [more[at : at + size] for at in range(0, len(more), size)]
    assert joined(said, *pieces) == joined(said, more)


def test_text_that_repeats_nothing_is_held_back_no_longer_than_a_lead_may_be() -> None:
    join, more = TextJoin(SAID, prefilled=False), "Zebras graze. " * 40
    held = next(at for at in range(len(more)) if join.feed(more[at]))
    assert held < 400 + len(anchor(SAID))
    assert join.feed(" and") == " and"
    assert TextJoin(SAID, prefilled=False).feed("wn fox") == "wn fox", "nobody begins to speak so"
    assert TextJoin(SAID, prefilled=True).feed("Zebras") == "Zebras"
    assert TextJoin("too short to tell", prefilled=False).feed("Zebras") == "Zebras"


def test_a_thought_that_does_not_end_is_no_answer() -> None:
    assert joined(SAID, "<think>It was", " cut") == ""
    assert joined("<think>We " + SAID, "wn</think>Yes.") == "wn</think>Yes."
    assert joined(SAID, "<th>wn") == "<th>wn"


def test_the_last_words_are_words() -> None:
    assert anchor(SAID) == SAID[-80:].partition(" ")[2]
    assert anchor("short text \n") == "short text"
    assert anchor("x" * 100) == "x" * 80
    assert anchor("x" * 100 + " is") == "x" * 77 + " is", "two letters say nothing"


def test_the_rest_is_asked_for_in_the_callers_dialect() -> None:
    chat = {"model": "m", "messages": [{"role": "user", "content": "Tides?"}]}
    asked = continuing(chat, CHAT, "The moon ", "no")["messages"]
    assert asked[0] is chat["messages"][0]
    assert asked[1:] == [
        {"role": "assistant", "content": "The moon "},
        {"role": "user", "content": INSTRUCTION + "The moon"},
    ]
    gemini = {"contents": [{"role": "user", "parts": [{"text": "Tides?"}]}]}
    assert [turn["role"] for turn in continuing(gemini, GEMINI, "The", "no")["contents"]] == [
        "user",
        "model",
        "user",
    ]


def test_a_prefilled_answer_ends_without_space_since_providers_refuse_it() -> None:
    chat = {"messages": [{"role": "user", "content": "Tides?"}]}
    assert continuing(chat, CHAT, "The ", "plain")["messages"][1:] == [
        {"role": "assistant", "content": "The"}
    ]
    assert continuing(chat, CHAT, "The ", "prefix")["messages"][-1]["prefix"] is True
