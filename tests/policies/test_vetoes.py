"""People's vetoes: the last one on a request counts, and only their order decides."""

from __future__ import annotations

import random

import msgspec
import pytest

from headstart.decisions import Label, LabelSource
from headstart.policies import match
from headstart.policies.match import Vetoes, question_of
from headstart.types import CacheKey, new_ulid, ulid_time
from support.labels import label

WRONG = label(
    "asked", entry="stored", domain="d", source=LabelSource.FEEDBACK, same=False, at=1.0,
    similarity=0.95, served=True, question="q",
)  # fmt: skip
RIGHT = msgspec.structs.replace(WRONG, same=True)


def said(*labels: Label) -> Vetoes:
    vetoes = Vetoes()
    for each in labels:
        vetoes.apply(each)
    return vetoes


def change(label: Label, **fields: object) -> Label:
    return msgspec.structs.replace(label, **fields)


def test_a_wrong_hit_stops_its_entry_and_its_question() -> None:
    vetoes = said(WRONG)
    assert vetoes.refuses("stored", "q")
    assert vetoes.refuses("stored", "another rewording")
    assert vetoes.refuses("another entry", "q")
    assert not vetoes.refuses("another entry", "another rewording")


def test_a_veto_of_a_pair_alone_stops_nothing_else() -> None:
    vetoes = said(change(WRONG, pair_only=True))
    assert vetoes.refuses("stored", "q")
    assert not vetoes.refuses("stored", "another rewording")
    assert not vetoes.refuses("another entry", "q")


@pytest.mark.parametrize("pair_only", [False, True])
@pytest.mark.parametrize("id", ["asked", "asked again"])
def test_calling_it_right_lifts_the_veto(id: str, pair_only: bool) -> None:
    assert not said(change(WRONG, pair_only=pair_only), change(RIGHT, id=id)).refuses("stored", "q")
    assert len(said(WRONG, change(RIGHT, id=id))) == 0


def test_a_word_on_another_question_lifts_nothing() -> None:
    vetoes = said(WRONG, change(RIGHT, id="other", question="another rewording"))
    assert vetoes.refuses("stored", "another rewording")


def test_two_who_call_an_entry_wrong_are_both_to_take_it_back() -> None:
    second = change(WRONG, id="other", question="r")
    vetoes = said(WRONG, second, RIGHT)
    assert vetoes.refuses("stored", "anything")
    assert not said(WRONG, second, RIGHT, change(second, same=True)).refuses("stored", "r")


def test_the_last_feedback_on_a_request_counts() -> None:
    assert said(WRONG, RIGHT, WRONG).refuses("stored", "x")
    assert not said(WRONG, change(WRONG, pair_only=True)).refuses("stored", "x")
    assert said(change(WRONG, pair_only=True), WRONG).refuses("stored", "x")


@pytest.mark.parametrize("source", [LabelSource.MISS, LabelSource.AUDIT, LabelSource.NULL])
def test_a_judges_word_vetoes_nothing(source: LabelSource) -> None:
    assert len(said(change(WRONG, source=source))) == 0


def test_feedback_on_an_answer_that_was_not_the_entrys_has_no_effect() -> None:
    assert len(said(change(WRONG, served=False))) == 0


def test_a_review_is_about_the_pair() -> None:
    review = change(WRONG, source=LabelSource.REVIEW, served=False)
    assert said(review).refuses("stored", "q")
    assert not said(review).refuses("stored", "another rewording")
    assert not said(review, change(review, same=True)).refuses("stored", "q")


def test_where_only_the_entry_is_known_it_is_stopped() -> None:
    late = change(WRONG, question="")
    assert said(late).refuses("stored", "q")
    assert not said(late).refuses("another entry", "")
    assert len(said(change(late, pair_only=True))) == 0
    assert len(said(WRONG, change(late, same=True))) == 0


@pytest.mark.parametrize("seed", range(20))
def test_counts_and_rows_never_part(seed: int) -> None:
    """Whatever is said, the rows alone tell what is refused, and all of it can be lifted."""
    rng = random.Random(seed)
    vetoes = Vetoes()
    names = ("a", "b", "c")
    for _ in range(300):
        vetoes.apply(
            change(
                WRONG,
                id=rng.choice("1234"),
                entry=rng.choice(names),
                question=rng.choice(("", "x", "y")),
                same=rng.random() < 0.4,
                pair_only=rng.random() < 0.3,
                source=rng.choice((LabelSource.FEEDBACK, LabelSource.REVIEW)),
            )
        )
        restored = Vetoes(vetoes.rows())
        for entry in names:
            for question in ("", "x", "y", "z"):
                assert vetoes.refuses(entry, question) == restored.refuses(entry, question)
    for id in "1234":
        vetoes.apply(change(RIGHT, id=id, entry="", question=""))
    assert len(vetoes) == 0
    assert not any(vetoes.refuses(entry, "x") for entry in names)


def test_the_oldest_leave_beyond_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(match, "MOST_VETOES", 3)
    vetoes = said(*(change(WRONG, id=f"{n}", entry=f"e{n}", question=f"q{n}") for n in range(5)))
    assert len(vetoes) == 3
    assert [vetoes.refuses(f"e{n}", "x") for n in range(5)] == [False, False, True, True, True]
    assert not vetoes.refuses("x", "q0")


def test_a_question_is_its_text_among_its_neighbours() -> None:
    key = CacheKey(scope="s", partition="p", exact="e", query="How?")
    assert question_of(key) == question_of(change_key(key, exact="f"))
    assert question_of(key) != question_of(change_key(key, query="Why?"))
    assert question_of(key) != question_of(change_key(key, partition="q"))


def change_key(key: CacheKey, **fields: object) -> CacheKey:
    return msgspec.structs.replace(key, **fields)


def test_an_id_tells_when_it_was_made() -> None:
    assert ulid_time(new_ulid(lambda: 1_700_000_000.125)) == 1_700_000_000.125
    for nonsense in ("", "x", "I" * 26, "0" * 25, "ü" * 26):
        assert ulid_time(nonsense) is None
