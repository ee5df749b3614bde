from __future__ import annotations

import json
from typing import Any

import pytest

from headstart.lab.simulator import ProviderProfile, Simulator
from headstart.lab.simulator.profiles import RateAllowance, RateLimit, RateWindow, limit_headers
from support.simulated import chat, exchange, simulated

SOME = RateAllowance(
    requests=RateWindow(limit=60, remaining=0, reset_s=90.0),
    tokens=RateWindow(limit=1000, remaining=10, reset_s=0.5),
    retry_after_s=1.5,
)
NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("openai", {"x-ratelimit-reset-requests": "1m30s", "x-ratelimit-reset-tokens": "500ms",
                    "retry-after": "2", "retry-after-ms": "1500"}),
        ("azure", {"x-ratelimit-reset-requests": "90", "x-ratelimit-reset-tokens": "1"}),
        ("anthropic", {"anthropic-ratelimit-requests-reset": "2027-01-15T08:01:30Z",
                       "anthropic-ratelimit-input-tokens-remaining": "10", "retry-after": "2"}),
        ("cerebras", {"x-ratelimit-reset-requests-day": "90.000",
                      "x-ratelimit-remaining-tokens-minute": "10"}),
        ("mistral", {"x-ratelimit-remaining-req-minute": "0"}),
        ("together", {"x-ratelimit-remaining": "0", "x-tokenlimit-limit": "1000"}),
    ],
)  # fmt: skip
def test_each_provider_has_its_own_form(form: Any, expected: dict[str, str]) -> None:
    told = {name.decode(): value.decode() for name, value in limit_headers(form, SOME, NOW)}
    assert expected.items() <= told.items()


def test_the_form_none_has_no_limit_headers() -> None:
    assert limit_headers("none", SOME, NOW) == ()


def test_tokens_are_limited_beside_requests() -> None:
    now = 0.0
    limit = RateLimit(60, 600, lambda: now)
    assert limit.take(b"k", 500).retry_after_s is None
    refused = limit.take(b"k", 200)
    assert refused.retry_after_s == pytest.approx(10.0)
    assert refused.requests is not None
    assert refused.requests.remaining == 59, "a refused request takes nothing"
    assert limit.take(b"other", 200).retry_after_s is None
    now = 10.0
    assert limit.take(b"k", 200).retry_after_s is None


def test_more_than_a_minute_allows_passes_when_the_bucket_is_full() -> None:
    now = 0.0
    limit = RateLimit(None, 600, lambda: now)
    assert limit.take(b"k", 5000).retry_after_s is None
    assert limit.take(b"k", 5000).retry_after_s == pytest.approx(60.0)


@pytest.mark.anyio
async def test_gemini_says_in_the_body_when_to_come_back() -> None:
    simulator = Simulator(ProviderProfile(model="m", requests_per_minute=1), clock=lambda: NOW)
    body = {"contents": [{"parts": [{"text": "hello"}]}]}
    async with simulated(simulator) as url:
        path = "/v1beta/models/m:generateContent"
        await exchange(url, body, path=path)
        wire = await exchange(url, body, path=path)
    assert wire.status == 429
    assert b"retry-after" not in wire.head
    details = json.loads(wire.body)["error"]["details"]
    assert {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "60s"} in details


@pytest.mark.anyio
async def test_a_profile_names_its_form_and_anthropic_has_its_own() -> None:
    async with simulated(Simulator("cerebras", speed=1000)) as url:
        wire = await exchange(url, chat(max_tokens=1))
        assert b"x-ratelimit-limit-requests-day" in wire.head
    async with simulated(Simulator()) as url:
        headers = {"anthropic-version": "2023-06-01"}
        wire = await exchange(url, chat(max_tokens=1), headers, "/v1/messages")
    assert b"anthropic-ratelimit-tokens-remaining" in wire.head
    assert b"request-id: req_" in wire.head
