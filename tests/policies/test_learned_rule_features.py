"""The features of a pair, worked out by hand."""

from __future__ import annotations

from math import exp, log

import numpy as np
import pytest

from headstart.decisions import MatchContext, Neighbor, RankedNeighbor
from headstart.policies.guards.words import Parse
from headstart.policies.learned_rule.features import (
    NAMES,
    EntryStats,
    measure_pair,
    pack_features,
    unpack_features,
)

WHO, RENTED, BIKE, OSLO = (7, 0, 0, 0), (0, 7, 0, 0), (0, 0, 7, 0), (0, 0, 0, 7)
ROME = (4, 0, 0, 3)
"""A vector with a cosine of 0.6 to Oslo, and of 0.8 to "who"."""


def parse(
    *vectors: tuple[int, ...],
    stems: str,
    content: str,
    quantities: tuple[tuple[str, str], ...] = (),
    dates: tuple[str, ...] = (),
    negated: bool = False,
) -> Parse:
    return Parse(
        stems=tuple(stems.split()),
        content=frozenset(content.split()),
        vectors=np.array(vectors, np.int8).tobytes(),
        quantities=quantities,
        dates=dates,
        negated=negated,
    )


QUERY = parse(WHO, RENTED, BIKE, OSLO, stems="who rent bike oslo", content="rent bike oslo")
OTHER = parse(WHO, RENTED, BIKE, ROME, stems="who rent bike rome", content="rent bike rome")


def nearby(*similarities: float, rank: int = 0) -> RankedNeighbor:
    """Return neighbours that are named a, b, c, …; the one at ``rank`` is in question."""
    names = zip("abcdef", similarities, strict=False)
    found = [Neighbor(name, similarity) for name, similarity in names]
    return RankedNeighbor(context=MatchContext(), neighbors=found, rank=rank)


def measured(
    query: Parse,
    candidate: Parse,
    neighbors: RankedNeighbor | None = None,
    *,
    friends: str = "",
    veto: str | None = None,
) -> dict[str, float]:
    """Return the features by name. The entries of ``friends`` have one answer."""

    def stats_of(entry: str) -> EntryStats:
        if entry in friends:
            return EntryStats(group="friends", size=len(friends))
        return EntryStats(group=entry)

    row = measure_pair(query, candidate, neighbors or nearby(0.9), stats_of, veto)
    return dict(zip(NAMES, row.tolist(), strict=True))


def test_the_features_of_a_pair_with_one_other_word() -> None:
    found = measured(QUERY, OTHER, nearby(0.9, 0.85, 0.8), friends="ab")
    spread = -log(0.105) - 1.6
    ours, all_votes = 1 + exp(-1), 1 + exp(-1) + exp(-2)
    assert found == pytest.approx(
        {
            "bias": 1.0,
            "similarity": spread,
            "margin": 5 * (0.9 - 0.8),
            "vote": ours / all_votes - 0.5,
            "group-size": 0.4 * log(3),
            "shared-words": 2 * 3 / 5 - 1,
            "content-mismatch": 2 * 2 / 6 - 1,
            "same-content": 0.0,
            "exchanged": 1.0,
            "question-word": 0.0,
            "length-ratio": 0.0,
            "length": log(5) - 2.3,
            "crowd": 5 * (0.85 - 0.9),
            "similarity-margin": spread * 0.5,
            "maxsim-content": 5 * ((1 + 1 + 0.6 + 1 + 1 + 0.8) / 6 - 0.75),
            "maxsim-worst": 3 * (0.6 - 0.5),
            "maxsim-exchanged": 3 * ((0.6 + 0.8) / 2 - 0.5),
            "number": 0.0,
            "negation": 0.0,
            "date": 0.0,
            "vetoed": 0.0,
        },
        abs=0.001,
    )


def test_the_order_of_a_pair_does_not_matter() -> None:
    assert measured(QUERY, OTHER) == measured(OTHER, QUERY)


def test_prompts_of_the_same_words_exchange_none() -> None:
    found = measured(QUERY, QUERY)
    assert (found["shared-words"], found["same-content"], found["exchanged"]) == (1.0, 1.0, 0.0)
    assert found["maxsim-exchanged"] == 1.5
    assert found["maxsim-worst"] == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("other", "feature"),
    [
        ({"quantities": (("4", ""),)}, "number"),
        ({"negated": True}, "negation"),
        ({"dates": ("friday",)}, "date"),
    ],
)
def test_a_fact_that_one_prompt_lacks_is_a_feature(other: dict[str, object], feature: str) -> None:
    changed = parse(
        WHO,
        RENTED,
        BIKE,
        OSLO,
        stems="who rent bike oslo",
        content="rent bike oslo",
        **other,  # type: ignore[arg-type]
    )
    facts = {"number": 0.0, "negation": 0.0, "date": 0.0, "vetoed": 0.0}
    assert facts.items() <= measured(changed, changed).items()
    assert {**facts, feature: 1.0}.items() <= measured(QUERY, changed).items()


def test_a_veto_is_a_feature() -> None:
    assert measured(QUERY, OTHER, veto="name")["vetoed"] == 1.0


def test_without_vectors_the_interaction_is_undecided() -> None:
    bare = parse(stems="who rent bike rome", content="rent bike rome")
    found = measured(QUERY, bare)
    assert [found[name] for name in NAMES if name.startswith("maxsim")] == [0.0, 0.0, 0.0]


def test_without_content_words_the_interaction_is_undecided() -> None:
    empty = parse(WHO, stems="who", content="")
    found = measured(empty, empty)
    assert [found[name] for name in NAMES if name.startswith("maxsim")] == [0.0, 0.0, 0.0]


def test_the_margin_to_a_rival_is_limited_in_both_directions() -> None:
    assert measured(QUERY, OTHER, nearby(0.9, 0.3))["margin"] == pytest.approx(2.0)
    assert measured(QUERY, OTHER, nearby(0.95, 0.3, rank=1))["margin"] == pytest.approx(-2.0)
    assert measured(QUERY, OTHER, nearby(0.9, 0.8, rank=1))["margin"] == pytest.approx(
        -0.5, abs=1e-3
    )


def test_the_crowd_is_the_five_nearest() -> None:
    five = measured(QUERY, OTHER, nearby(0.9, 0.8, 0.8, 0.8, 0.7))
    six = measured(QUERY, OTHER, nearby(0.9, 0.8, 0.8, 0.8, 0.7, 0.1))
    assert five["crowd"] == six["crowd"] == pytest.approx(-0.5)


@pytest.mark.parametrize("count", [len(NAMES) - 1, len(NAMES) + 1])
def test_another_number_of_features_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match=f"found {count} features, expected {len(NAMES)}"):
        unpack_features(pack_features(np.zeros(count)))
