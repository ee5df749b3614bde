"""Restart and match: what counts as the same text, however it is cut up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headstart.policies.routing.seam import Seam


def feed(shown: str, pieces: list[str]) -> str | None:
    """Return what is new in all pieces together, or None where they diverge."""
    seam, new = Seam(shown), []
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
    seam = Seam("abc")
    reached = [seam.reached]
    for piece in ("ab", "cd"):
        seam.feed(piece)
        reached.append(seam.reached)
    assert reached == [False, False, True]
    assert Seam("").reached
