"""Seams: which text counts as the same and which as new, however it is cut up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.policies.output.continuation import OVERLAP, PrefillSplice, RestartSplice


def feed(shown: str, pieces: list[str]) -> str | None:
    """Return what is new in all pieces together, or None where they diverge."""
    seam, new = RestartSplice(shown), []
    for piece in pieces:
        news = seam.feed(piece)
        if news is None:
            return None
        new.append(news)
    return "".join(new)


@st.composite
def cut(draw: st.DrawFn) -> tuple[str, list[str]]:
    """Draw a text and its pieces."""
    pieces = draw(st.lists(st.text("ab ñ", max_size=4), max_size=8))
    return "".join(pieces), pieces


@given(cut(), st.integers(0, 40))
def test_a_repeated_text_goes_on_where_it_broke_off(cut: tuple[str, list[str]], at: int) -> None:
    text, pieces = cut
    assert feed(text[:at], pieces) == text[at:]


@given(st.text("ab", min_size=1), cut())
def test_another_text_diverges_exactly_when_it_is_not_a_continuation(
    shown: str, cut: tuple[str, list[str]]
) -> None:
    text, pieces = cut
    same = text.startswith(shown) or shown.startswith(text)
    assert feed(shown, pieces) == (text[len(shown) :] if same else None)


def test_the_seam_is_reached_when_all_was_repeated() -> None:
    seam = RestartSplice("abc")
    reached = [seam.reached]
    for piece in ("ab", "cd"):
        seam.feed(piece)
        reached.append(seam.reached)
    assert reached == [False, False, True]
    assert RestartSplice("").reached


SHOWN = "The quick brown fox jumps over the lazy"


def go_on(shown: str, text: str, sizes: int = 3) -> str | None:
    """Return shown and continuation as one text, or None where they do not join."""
    seam, new = PrefillSplice(shown), [shown]
    for at in range(0, len(text), sizes):
        news = seam.feed(text[at : at + sizes])
        if news is None:
            return None
        new.append(news)
    news = seam.end()
    return None if news is None else "".join([*new, news])


@pytest.mark.parametrize("sizes", [1, 3, 100])
@pytest.mark.parametrize(
    "rest",
    [
        " dog.",
        " fox jumps over the lazy dog.",
        "\n\n fox jumps over the lazy dog.",
        f"{SHOWN} dog.",
    ],
    ids=["goes on", "repeats words", "repeats them on a new line", "repeats all"],
)
def test_a_repeated_end_is_left_out_of_a_continuation(rest: str, sizes: int) -> None:
    assert go_on(SHOWN, rest, sizes) == f"{SHOWN} dog."


@pytest.mark.parametrize(
    ("shown", "rest", "whole"),
    [
        (SHOWN + " ", " dog.", SHOWN + " dog."),
        (SHOWN + " ", "dog.", SHOWN + " dog."),
        (SHOWN + ":\n\n", "\n- a", SHOWN + ":\n\n- a"),
        (SHOWN + ":\n", "\n\n- a", SHOWN + ":\n\n- a"),
        (SHOWN + " ", "\nA", SHOWN + " \nA"),
        (SHOWN + " ", "", SHOWN + " "),
        (SHOWN, "lazy", SHOWN + "lazy"),
    ],
)
def test_space_that_the_caller_has_is_said_once(shown: str, rest: str, whole: str) -> None:
    for sizes in (1, 2, 50):
        assert go_on(shown, rest, sizes) == whole


def test_a_continuation_that_begins_anew_must_say_the_same() -> None:
    assert go_on(SHOWN, "The quick brown fox jumps under the bridge") is None
    assert go_on(SHOWN, "The quick brown fox jumps") is None


@given(st.text("ab \n", max_size=60), cut())
def test_no_text_is_invented_and_only_repetitions_and_space_are_left_out(
    shown: str, cut: tuple[str, list[str]]
) -> None:
    text, pieces = cut
    seam, said = PrefillSplice(shown), ""
    for piece in pieces:
        news = seam.feed(piece)
        if news is None:
            return
        said += news
    news = seam.end()
    if news is None:
        return
    said += news
    assert text.endswith(said)
    left_out = text[: len(text) - len(said)]
    assert len(left_out.strip()) == 0 or len(left_out) >= OVERLAP
