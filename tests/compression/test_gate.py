from __future__ import annotations

import pytest

from headstart.compression.compress import Profile, is_worth

FAST = Profile(prefill_tokens_per_s=33_000, cache_minimum=0)


@pytest.mark.parametrize(
    ("before", "after", "cost_ms", "worth"),
    [
        (4000, 3900, 0.0, False),  # nearly as long: not worth a change
        (4000, 3000, 1.0, True),  # 250 tokens take 7.6 ms
        (4000, 3000, 8.0, False),
        (4000, 5000, 0.0, False),
    ],
)
def test_seconds_saved_must_exceed_our_own(
    before: int, after: int, cost_ms: float, worth: bool
) -> None:
    assert is_worth(before=before, after=after, sent=0, cost_ms=cost_ms, profile=FAST) is worth


@pytest.mark.parametrize(
    ("sent", "price", "worth"),
    [
        (0, 1.0, True),  # far below what is cached either way
        (3200, 1.0, False),  # falls below it: the next request would pay 900 tokens in full
        (3200, 0.0, True),  # where tokens are free, time decides
        (4096, 1.0, True),  # stays above it
    ],
)
def test_a_prompt_is_not_pushed_below_what_the_provider_caches(
    sent: int, price: float, worth: bool
) -> None:
    profile = Profile(cache_minimum=1024, usd_per_million=price)
    assert is_worth(before=1200, after=600, sent=sent, cost_ms=0.1, profile=profile) is worth


def test_a_saving_beyond_the_lost_discount_is_taken() -> None:
    assert is_worth(before=40_000, after=2_000, sent=0, cost_ms=1.0, profile=Profile())
