"""Which stored answers a route may serve, and how long a lookup waits for the encoder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import msgspec
import pytest

from headstart.decisions import Outcome
from headstart.middleware.lookup import Finder, RecentAnswers
from headstart.middleware.observers import FirstBytes
from headstart.middleware.prepare import Prepared, Repeat
from headstart.policies.admission import Admission
from headstart.policies.freshness import Directives, Lifetime
from headstart.policies.gate import SHORTEST_S, UNKNOWN_S, EncoderWaitLimit
from headstart.types import ChatRequest
from support.booked import served
from support.caches import CacheRig, running
from support.entries import entry
from support.fakes import FaultyStore

if TYPE_CHECKING:
    from headstart.observe import Served


def test_answers_are_remembered_for_their_window() -> None:
    now = 0.0
    answered = RecentAnswers(lambda: now)
    short, long = Repeat(b"a", 10.0), Repeat(b"a", 100.0)
    assert short not in answered
    answered.note(short)
    now = 9.9
    assert short in answered
    assert Repeat(b"b", 10.0) not in answered
    now = 10.0
    assert short not in answered
    assert long in answered


def test_the_oldest_answers_are_forgotten_first() -> None:
    answered = RecentAnswers(lambda: 0.0, capacity=2)
    for name in (b"a", b"b", b"a", b"c"):
        answered.note(Repeat(name, 1.0))
    assert [name for name in (b"a", b"b", b"c") if Repeat(name, 1.0) in answered] == [b"a", b"c"]


def finder_of(rig: CacheRig, **options: Any) -> Finder:
    answered = RecentAnswers(lambda: rig.now)
    return Finder(rig.cache, Admission(), None, clock=lambda: rig.now, answered=answered, **options)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("transforms", "rule", "served"),
    [
        (("concise:2", "guard"), "support", True),
        (("concise:2",), "", False),
        (("concise:2",), "chat", False),
        (("concise:2",), "unnamed", False),
        (("guard",), "support", True),
        ((), "chat", True),
    ],
)
async def test_a_short_answer_serves_the_routes_that_ask_for_one(
    transforms: tuple[str, ...], rule: str, *, served: bool
) -> None:
    rig = CacheRig(FaultyStore())
    finder = finder_of(rig, concise={"": 0, "support": 2, "chat": 1})
    stored = entry("a", transforms=transforms, created=rig.now)
    async with running(rig.cache) as cache:
        await cache.put(stored)
        prepared = Prepared(request=None, key=stored.key, directives=Directives(), route=rule)
        lookup = finder.peek(prepared, stored.key) or await finder.find(prepared, stored.key)
    assert (lookup.outcome, lookup.reason) == (
        (Outcome.EXACT, None) if served else (Outcome.MISS, "concise")
    )


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("life_s", "back_s", "served"),
    [
        (300.0, 299.0, True),  # the clocks of two nodes may differ
        (300.0, 301.0, False),
        (604_800.0, 3599.0, True),
        (604_800.0, 3601.0, False),
        (None, 3601.0, False),
    ],
)
async def test_an_answer_from_the_future_is_stale(
    life_s: float | None, back_s: float, *, served: bool
) -> None:
    rig = CacheRig(FaultyStore())
    finder = finder_of(rig)
    rig.now = 1_000_000.0
    expires = None if life_s is None else rig.now + life_s
    stored = entry("a", created=rig.now, expires=expires)
    lifetime = Lifetime(seconds=604_800.0)
    prepared = Prepared(
        request=None, key=stored.key, directives=Directives(), route="", lifetime=lifetime
    )
    async with running(rig.cache) as cache:
        await cache.put(stored)
        rig.now -= back_s
        lookup = finder.peek(prepared, stored.key) or await finder.find(prepared, stored.key)
    assert lookup.reason == (None if served else "stale")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("ttl_s", "max_age_s", "age_s", "served"),
    [
        (60.0, None, 60.0, True),
        (60.0, None, 61.0, False),
        (60.0, 600, 61.0, False),
        (600.0, 60, 61.0, False),
        (600.0, 60, 59.0, True),
        (None, 60, 61.0, False),
        (None, 60, 59.0, True),
        (None, None, 1e6, True),
    ],
)
async def test_a_route_serves_no_answer_older_than_its_lifetime_and_the_callers_limit(
    ttl_s: float | None, max_age_s: int | None, age_s: float, *, served: bool
) -> None:
    rig = CacheRig(FaultyStore())
    finder = finder_of(rig)
    rig.now = 1_000_000.0
    stored = entry("a", created=rig.now, expires=None)
    prepared = Prepared(
        request=None,
        key=stored.key,
        directives=Directives(max_age_s=max_age_s),
        route="",
        lifetime=Lifetime(seconds=ttl_s),
    )
    async with running(rig.cache) as cache:
        await cache.put(stored)
        rig.now += age_s
        lookup = finder.peek(prepared, stored.key) or await finder.find(prepared, stored.key)
    assert lookup.reason == (None if served else "stale")


@pytest.mark.anyio
async def test_a_repeat_that_was_stored_during_the_lookup_is_no_rewording() -> None:
    """Another worker may store it; equal texts are no evidence about rewordings."""
    rig = CacheRig(FaultyStore())
    finder, stored = finder_of(rig), entry("a", created=rig.now)

    async def find_none(exact: str) -> None:
        await rig.cache.put(stored, "one@0")

    request = ChatRequest(model="m", stream=False, document={}, query="one@0")
    asked = msgspec.structs.replace(stored.key, query="one@0")
    prepared = Prepared(request=request, key=asked, directives=Directives())
    async with running(rig.cache):
        lookup = await finder.find(prepared, asked, find_none)
        other = msgspec.structs.replace(asked, exact="b")
        reworded = await finder.find(prepared, other)
    assert (lookup.outcome, lookup.pair) == (Outcome.EXACT, None)
    assert (reworded.outcome, reworded.entry) == (Outcome.SEMANTIC, lookup.entry)


@pytest.mark.anyio
async def test_a_question_waits_for_the_encoder_as_long_as_fresh_answers_take() -> None:
    rig, wait_limit = CacheRig(FaultyStore(), max_wait_s=60.0), EncoderWaitLimit()
    finder = Finder(
        rig.cache,
        Admission(),
        None,
        clock=lambda: rig.now,
        answered=RecentAnswers(lambda: rig.now),
        wait_limit=wait_limit,
    )
    request = ChatRequest(model="m", stream=False, document={}, query="one@0")
    asked = entry("b").key
    prepared = Prepared(request=request, key=asked, directives=Directives(), route="fast")
    wait_limit.learn("fast", "m", 0.001)
    async with running(rig.cache):
        await rig.cache.put(entry("a"), "one@0")
        rig.encoder.turn = anyio.Event()
        with anyio.fail_after(5):
            lookup = await finder.find(prepared, asked)
    assert lookup.reason == "encoder-busy"


def answered(outcome: Outcome, ttft_s: float, **changes: Any) -> Served:
    return served(outcome, ttft_s=ttft_s, encode_s=0.2, lookup_s=0.1, route="r", **changes)


def test_only_fresh_answers_teach_how_long_a_hit_is_worth_waiting_for() -> None:
    wait_limit = EncoderWaitLimit()
    observer = FirstBytes(wait_limit)
    observer.notify(answered(Outcome.EXACT, 0.8))
    observer.notify(answered(Outcome.MISS, 0.8, status=503))
    assert wait_limit.wait_s("r", "m") == UNKNOWN_S
    observer.notify(answered(Outcome.MISS, 0.301))  # of which our own lookup took 0.3
    assert wait_limit.wait_s("r", "m") == SHORTEST_S
