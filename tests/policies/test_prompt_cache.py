from __future__ import annotations

import pytest

from headstart.attempts import PREFIX_TTL_S
from headstart.policies.cost import Price
from headstart.policies.routing.prompt_cache import (
    LATER,
    OPENING,
    OPENING_WITH_TOOLS,
    SHARED,
    PrefixPrices,
    PrefixReuse,
    PrefixUse,
    SeenPrefix,
    choose_marks,
    prefix_prices,
)
from headstart.types import CacheMarks

PRICES = PrefixPrices(read=0.1, write=1.25)
NONE = PrefixUse()


def _use(reuse: PrefixReuse, prefix: str, kind: str, at: float, *, cached: bool = False) -> None:
    reuse.used(SeenPrefix(prefix, kind, f"{prefix} at {at}", at, cached))


@pytest.mark.parametrize(
    ("reads", "prices", "pays"),
    [
        (0.27, PRICES, False),
        (0.28, PRICES, True),
        (1.1, PrefixPrices(0.1, 2.0), False),
        (1.12, PrefixPrices(0.1, 2.0), True),
        (100.0, PrefixPrices(1.0, 1.25), False),
        (0.01, PrefixPrices(0.1, 1.0), True),
    ],
)
def test_a_write_pays_if_the_expected_reads_save_more_than_it_costs(
    reads: float, prices: PrefixPrices, pays: bool
) -> None:
    assert prices.pays(reads) is pays


def test_prices_are_shares_of_the_price_of_input() -> None:
    listed = Price(
        input_per_million=5.0,
        output_per_million=25.0,
        cached_per_million=0.5,
        cache_write_per_million=10.0,
    )
    assert prefix_prices(listed, 0.3) == (0.1, 2.0)
    unlisted = Price(input_per_million=5.0, output_per_million=25.0)
    assert prefix_prices(unlisted, 0.3) == (0.3, 1.25)
    assert prefix_prices(None, 0.3) == (0.3, 1.25)


@pytest.mark.parametrize(
    ("conversation", "shared", "marks"),
    [
        (PrefixUse(expected_reads=2.0), NONE, CacheMarks(shared=True, last=True)),
        (PrefixUse(True, 2.0), NONE, CacheMarks(shared=True, previous=True, last=True)),
        (PrefixUse(True, 0.0), NONE, CacheMarks(previous=True)),
        (NONE, PrefixUse(expected_reads=2.0), CacheMarks(shared=True)),
        (NONE, PrefixUse(cached=True), CacheMarks(shared=True)),
        (NONE, NONE, None),
    ],
)
def test_cached_prefixes_are_read_and_paying_ones_are_written(
    conversation: PrefixUse, shared: PrefixUse, marks: CacheMarks | None
) -> None:
    assert choose_marks(conversation, shared, PRICES) == marks


def test_without_experience_only_agents_are_expected_to_go_on() -> None:
    reuse = PrefixReuse()
    expected = {
        kind: PRICES.pays(reuse.of("p", f"{kind} route", 0.0).expected_reads)
        for kind in (SHARED, OPENING, OPENING_WITH_TOOLS, LATER)
    }
    assert expected == {SHARED: False, OPENING: False, OPENING_WITH_TOOLS: True, LATER: True}


def _marked(reuse: PrefixReuse, kind: str, *, count: int, every_s: float) -> int:
    """Use new prefixes one after the other; return how many a write would have paid for."""
    marked = 0
    for number in range(count):
        marked += PRICES.pays(reuse.of(f"p{number}", kind, number * every_s).expected_reads)
        _use(reuse, f"p{number}", kind, number * every_s)
    return marked


@pytest.mark.parametrize("every_s", [0.01, 1.0, 10.0, 100.0])
def test_few_prefixes_without_a_following_call_are_written(every_s: float) -> None:
    reuse = PrefixReuse()
    kind = f"{OPENING_WITH_TOOLS} route"
    assert 1 <= _marked(reuse, kind, count=5000, every_s=every_s) <= 10
    other = f"{OPENING_WITH_TOOLS} other"
    assert PRICES.pays(reuse.of("new", other, 0.0).expected_reads), "each route learns its own"


@pytest.mark.parametrize("agents", [1, 30, 1000])
def test_agents_at_work_stay_marked_however_many_they_are(agents: int) -> None:
    reuse = PrefixReuse()
    kind, last = f"{LATER} route", 0
    for turn in range(60):
        for agent in range(agents):
            at = 10.0 * turn + 9.0 * agent / agents
            # Each agent goes on for twenty turns; then another one begins.
            name = f"{agent} {turn // 20}"
            last = turn if PRICES.pays(reuse.of(name, kind, at).expected_reads) else last
            _use(reuse, name, kind, at)
    assert last == 59


def test_questions_that_are_followed_up_in_time_are_written() -> None:
    reuse = PrefixReuse()
    kind = f"{OPENING} route"
    for number in range(40):
        _use(reuse, f"p{number}", kind, 100.0 * number)
        _use(reuse, f"p{number}", kind, 100.0 * number + 50.0)
    assert PRICES.pays(reuse.of("new", kind, 4000.0).expected_reads)


def test_a_slow_follow_up_counts_as_none() -> None:
    reuse = PrefixReuse()
    kind = f"{LATER} route"
    for turn in range(60):
        _use(reuse, "p", kind, 2 * PREFIX_TTL_S * turn)
    assert not PRICES.pays(reuse.of("p", kind, 120 * PREFIX_TTL_S).expected_reads)


def test_a_request_that_is_sent_again_is_no_follow_up() -> None:
    reuse = PrefixReuse()
    kind = f"{OPENING} route"
    for number in range(60):
        for _ in range(3):
            reuse.used(SeenPrefix(f"p{number}", kind, f"r{number}", 10.0 * number, False))
    assert not PRICES.pays(reuse.of("new", kind, 600.0).expected_reads)


def test_a_marked_prefix_is_cached_for_five_minutes_after_its_last_use() -> None:
    reuse = PrefixReuse()
    _use(reuse, "p", LATER, 0.0, cached=True)
    assert reuse.of("p", LATER, PREFIX_TTL_S - 1).cached
    assert not reuse.of("p", LATER, PREFIX_TTL_S).cached
    _use(reuse, "q", LATER, 0.0, cached=False)
    assert not reuse.of("q", LATER, 1.0).cached


@pytest.mark.parametrize("asked_at", [[], [40.0]])
def test_a_prefix_that_comes_back_after_half_a_minute_is_counted_once(
    asked_at: list[float],
) -> None:
    reuse = PrefixReuse()
    for number in range(20):
        _use(reuse, f"p{number}", LATER, 0.0)
    for now in asked_at:
        reuse.of("p0", LATER, now)
    for number in range(20):
        _use(reuse, f"p{number}", LATER, 50.0)
    assert reuse.of("p0", LATER, 60.0).expected_reads == pytest.approx(1.06, abs=0.01)
