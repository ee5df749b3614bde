"""The static match policy: threshold, guards and the stored parse."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

from headstart.decisions import Encoding, MatchContext, Neighbor, RankedNeighbor, Verdict
from headstart.embeddings.encoder import OnnxEncoder
from headstart.errors import ConfigError
from headstart.policies.guards.table import GUARDS
from headstart.policies.match import StaticMatch

if TYPE_CHECKING:
    from headstart.interfaces import MatchPolicy
    from headstart.policies.guards.words import Parse

EMPTY = Encoding(
    sentence=np.ones(4, np.float32), tokens=np.empty((0, 4), np.float32), spans=(), complete=True
)


def bare(text: str) -> Parse:
    return StaticMatch().prepare(text, EMPTY)


def test_threshold_falls_only_when_all_guards_are_on() -> None:
    assert StaticMatch().minimum == 0.90
    assert StaticMatch(guards=()).minimum == 0.95
    assert StaticMatch(guards=["number"]).minimum == 0.95
    assert StaticMatch(0.8, guards=()).minimum == 0.8


@pytest.mark.parametrize(
    "build",
    [
        partial(StaticMatch, guards=["numbers"]),
        partial(StaticMatch, 0.0),
        partial(StaticMatch, 1.2),
        partial(StaticMatch, float("nan")),
    ],
)
def test_impossible_settings_are_refused(build: partial[StaticMatch]) -> None:
    with pytest.raises(ConfigError, match=r"cache\.(guards|threshold)"):
        build()


def test_verdict_names_the_threshold_or_the_guard() -> None:
    policy: MatchPolicy[Parse] = StaticMatch()
    one, other = bare("Wait 5 minutes"), bare("Wait 9 minutes")
    assert judged(policy, one, one, 0.89).veto == "threshold"
    assert judged(policy, one, other, 0.99).veto == "number"
    assert judged(policy, one, one, 0.90) == Verdict(serves=True, similarity=0.90, threshold=0.90)


@pytest.mark.parametrize("switched_off", GUARDS)
def test_each_guard_can_be_switched_off(switched_off: str) -> None:
    policy = StaticMatch(0.90, guards=GUARDS.keys() - {switched_off})
    pairs = {
        "number": ("Wait 5 minutes", "Wait 9 minutes"),
        "unit": ("Wait 5 hours", "Wait 5 minutes"),
        "negation": ("Do stop", "Do not stop"),
        "date": ("Open on Monday", "Open on Friday"),
        "quantifier": ("Do you only sell it", "Do you sell it"),
        "comparative": ("Exactly 5 kilos", "Up to 5 kilos"),
        "name": ("Read it in C", "Read it in C++"),
        "sign": ("5 + 3", "5 - 3"),
        "question": ("When is it", "Where is it"),
        "spelling": ("Tell me about the US", "Tell me about us"),
        "language": ("Wo ist der Bahnhof?", "Where is the station?"),
        "connective": ("Find red and blue", "Find red or blue"),
        "antonym": ("Look up", "Look down"),
        "role-swap": ("A parcel from Rome", "A parcel to Rome"),
        "crossing": ("Did Ann call Bob", "Did Bob call Ann"),
        "scope": ("My insurance", "Our insurance"),
        "substitution": ("in rome", "in paris"),
    }
    one, other = map(bare, pairs[switched_off])
    assert judged(StaticMatch(), one, other, 1.0).veto is not None
    verdict = judged(policy, one, other, 1.0)
    assert verdict.veto != switched_off
    # hours and minutes, Monday and Friday, up and down are exchanged words as well
    assert verdict.serves or verdict.veto == "substitution"


def test_parse_survives_storage() -> None:
    policy = StaticMatch()
    text = "When can I send $5 + 4 from Rome or Bari to Paris on 3 May, not Monday"
    parse = policy.prepare(text, EMPTY)
    assert parse.asks
    assert parse.joins
    assert parse.signs
    assert policy.unpack(policy.pack(parse)) == parse


def test_foreign_evidence_is_an_error() -> None:
    with pytest.raises(msgspec.DecodeError):
        StaticMatch().unpack(b"\x00")


def judged(policy: MatchPolicy[Parse], one: Parse, other: Parse, similarity: float) -> Verdict:
    nearby = RankedNeighbor(MatchContext(), [Neighbor(id="n", similarity=similarity)], 0)
    return policy.judge(one, other, nearby, policy.veto(one, other))


@pytest.fixture(scope="module")
def encoder() -> OnnxEncoder:
    return OnnxEncoder()


def judge(encoder: OnnxEncoder, one: str, other: str) -> Verdict:
    policy = StaticMatch()
    a, b = encoder.encode(one), encoder.encode(other)
    similarity = float(a.sentence @ b.sentence)
    return judged(policy, policy.prepare(one, a), policy.prepare(other, b), similarity)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("How can I sign up for ChatGPT?", "I want to sign up for ChatGPT"),
        ("What is the difference between TCP and UDP?", "difference between TCP and UDP"),
        ("What is the difference between TCP and UDP?", "How do TCP and UDP differ?"),
        (
            "What is the difference between TCP and UDP?",
            "Explain the difference between UDP and TCP",
        ),
    ],
)
def test_rewordings_are_served(encoder: OnnxEncoder, one: str, other: str) -> None:
    assert judge(encoder, one, other).serves
    assert judge(encoder, other, one).serves


@pytest.mark.parametrize(
    ("one", "other", "veto"),
    [
        ("Cancel my subscription", "Don't cancel my subscription", "negation"),
        ("What is 30% of 25?", "What is 25% of 30?", "unit"),
        ("Convert 10 USD to EUR", "Convert 10 EUR to USD", "unit"),
        ("Should I stretch before running?", "Should I stretch after running?", "antonym"),
    ],
)
def test_traps_are_refused_by_name(encoder: OnnxEncoder, one: str, other: str, veto: str) -> None:
    verdict = judge(encoder, one, other)
    assert verdict.similarity >= 0.90
    assert verdict.veto == veto
