"""What a flood of labels, a lax target or a hostile text may not do (``docs/abuse.md``)."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from headstart.compression.transforms import _step
from headstart.decisions import (
    Encoding,
    Label,
    LabelSource,
    MatchContext,
    Neighbor,
    RankedNeighbor,
    Rule,
)
from headstart.policies.admission import holds_identity
from headstart.policies.drafts import _HAS_CODE
from headstart.policies.guards.table import GUARDS
from headstart.policies.learned_rule.domain import Domain
from headstart.policies.learned_rule.error_limit import EXACT_JUDGE, SOFT_GUARDS, ErrorLimit
from headstart.policies.learned_rule.features import NAMES, VERSION, pack_features
from headstart.policies.match import VerifiedMatch, compare_histories
from headstart.policies.output.document_edits import _OTHER_FORM
from headstart.policies.output.sentences import SentenceCutter
from headstart.policies.routing.rate_limits import duration_s
from headstart.types import Turn
from support.labels import label

if TYPE_CHECKING:
    from collections.abc import Callable

ERROR_LIMIT = ErrorLimit(max_error=0.05, judge=EXACT_JUDGE)


def label_of(number: int, features: bytes, principal: str, *, same: bool, **fields: Any) -> Label:
    known = {"version": VERSION, "features": features, "principal": principal, "at": 1.0}
    return label(f"q{number}", entry=f"e{number}", domain="", same=same, **{**known, **fields})


def pair(closeness: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    features = np.zeros(len(NAMES))
    features[:2] = 1.0, closeness
    return features


@pytest.mark.parametrize(("accounts", "opened"), [(1, False), (1000, True)])
def test_one_callers_flood_of_labels_does_not_open_the_gate_and_many_callers_do(
    accounts: int, opened: bool
) -> None:
    """24 callers know that far pairs differ; for each such label come 60 that say the opposite."""
    domain = Domain(ERROR_LIMIT)
    far, near = pack_features(pair(0.2)), pack_features(pair(2.0))
    for number in range(240):
        honest, told = f"caller {number % 24}", 100 * number
        domain.apply(label_of(told, near, honest, same=True))
        domain.apply(label_of(told + 1, far, honest, same=False))
        for lie in range(told + 2, told + 62):
            domain.apply(label_of(lie, far, f"mallory {lie % accounts}", same=True))
    assert domain.rule is Rule.LEARNED
    threshold = domain.threshold()
    assert opened == (threshold is not None and domain.score(pair(0.2), "unseen") >= threshold)


def parsed(match: VerifiedMatch, text: str) -> Any:
    words = text.split()
    starts = [sum(len(word) + 1 for word in words[:place]) for place in range(len(words))]
    spans = tuple((start, start + len(word)) for start, word in zip(starts, words, strict=True))
    rows = np.ones((len(words), 16), np.float32)
    return match.prepare(text, Encoding(rows[0] / 4, rows, spans, complete=True))


@pytest.mark.parametrize(
    ("one", "other", "guard"),
    [
        ("book a table for 4", "book a table for 6", "number"),
        ("send the report to Anna", "do not send the report to Anna", "negation"),
        ("what is the capital of Niger", "what is the capital of Nigeria", "name"),
        ("all accounts are free", "some accounts are free", "quantifier"),
    ],
)
def test_no_label_teaches_a_guard_away(one: str, other: str, guard: str) -> None:
    domain = Domain(ERROR_LIMIT)
    match = VerifiedMatch(ERROR_LIMIT, lambda _: domain)
    query, candidate = parsed(match, one), parsed(match, other)
    nearby = RankedNeighbor(MatchContext(), [Neighbor(id="x", similarity=0.999)], 0)
    for number in range(900):
        verdict = match.judge(query, candidate, nearby, match.veto(query, candidate))
        caller = f"caller {number % 30}"
        feedback = {"source": LabelSource.FEEDBACK, "veto": verdict.veto}
        domain.apply(label_of(number, verdict.features, caller, same=True, **feedback))
    verdict = match.judge(query, candidate, nearby, match.veto(query, candidate))
    assert (verdict.serves, verdict.veto) == (False, guard)


def test_the_guards_that_labels_may_overrule_are_few_and_named() -> None:
    assert sorted(SOFT_GUARDS) == ["substitution"]
    assert SOFT_GUARDS.issubset(GUARDS)


def test_no_request_and_no_route_is_laxer_than_the_promise() -> None:
    domain = Domain(ErrorLimit(max_error=0.01, cold_start="optimistic"))
    assert domain.threshold(0.5) == domain.threshold(0.01) == domain.threshold() == 0.94
    assert domain.threshold(0.005) == 0.97
    assert domain.threshold(1e-320) is None
    assert domain.threshold(0.0) is None


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (holds_identity, "Where is order" + " " * 1500 + "x 7"),
        (holds_identity, "order-" * 20_000 + "7"),
        (_step, "50%|####|" + "1" * 60_000 + "/"),
        (_HAS_CODE.search, "(" * 60_000),
        (_HAS_CODE.search, "\n" * 60_000),
        (_OTHER_FORM.match, " " * 60_000),
        (SentenceCutter().feed, "." * 60_000 + "x"),
        (SentenceCutter().feed, "\u3002" * 60_000),
        (partial(duration_s, unix=0.0), "1" * 60_000 + "s"),
    ],
)  # fmt: skip
def test_a_long_run_is_read_in_linear_time(read: Callable[[Any], object], text: Any) -> None:
    began = time.process_time()
    read(text)
    assert time.process_time() - began < 1.0


def test_a_run_of_signs_is_read_in_one_pass() -> None:
    """By the square of its length, as it once was, this would take minutes."""
    one, other = (
        (Turn(user=True, text="!" * 200_000 + end), Turn(user=False, text=end)) for end in "ab"
    )
    found = compare_histories(one, other, lambda _query, _candidate: None, additions=True)
    assert found.conflict is None or found.conflict
