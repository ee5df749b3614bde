"""The use of the limits of client keys: reserved before a call, settled after it."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.embeddings.stores.memory import MemoryStore
from headstart.errors import (
    Forbidden,
    LimitsUnavailable,
    ModelForbidden,
    OverLimit,
    RequestError,
    StoreError,
)
from headstart.middleware.client_ledger import ClientLedger, Reservation
from headstart.middleware.concurrency import Supervisor
from headstart.policies.cost import Price
from headstart.settings import ClientLimits
from support import booked
from support.candidates import make_call
from support.fakes import Recorder
from support.patience import until
from support.stores import Clock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from headstart.attempts import Attempt
    from headstart.types import Call, Charge, Charged, ChatRequest

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_clock]

MIDNIGHT = 1_795_392_000.0  # 2026-11-23 00:00 UTC
NOON = MIDNIGHT + 43_200.0
DEAR = Price(input_per_million=0.0, output_per_million=1_000_000.0)
"""A dollar for each token of an answer."""


class GatedStore(MemoryStore):
    """A store whose counters can be slow, or away."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock)
        self.gate = asyncio.Event()
        self.gate.set()
        self.away = False

    async def charge(self, charges: Sequence[Charge]) -> Charged:
        await asyncio.sleep(0)
        await self.gate.wait()
        if self.away:
            raise StoreError("away")
        return await super().charge(charges)


class BrokenStore(GatedStore):
    """A store of another distribution, with a bug."""

    async def charge(self, charges: Sequence[Charge]) -> Charged:
        raise ValueError("a bug")


@dataclass
class Running:
    ledger: ClientLedger
    store: GatedStore
    clock: Clock
    recorder: Recorder

    async def reserve(self, tokens: int = 1, caller: str = "a", **more: Any) -> Reservation | None:
        options = {"price": DEAR, "is_free": False, "prompt": 0, "completion": tokens, **more}
        return await self.ledger.reserve(call(caller), "m", **options)

    async def used(self) -> dict[str, float]:
        await self.settled()
        return {each.limit: each.used for each in await self.ledger.uses()}

    async def settled(self) -> None:
        await until(lambda: self.ledger._settling is None)


@asynccontextmanager
async def running(
    clock: Clock | None = None, store: GatedStore | None = None, **limits: Any
) -> AsyncIterator[Running]:
    clock = clock or Clock(NOON)
    supervisor, recorder = Supervisor(), Recorder()
    store = store or GatedStore(clock)
    ledger = ClientLedger(
        {"a": ClientLimits(**limits)},
        store=store,
        clock=clock,
        spawn=supervisor.spawn,
        observer=recorder,
    )
    try:
        yield Running(ledger, store, clock, recorder)
    finally:
        await ledger.aclose()
        await supervisor.aclose()


def call(caller: str = "a", **fields: Any) -> Call:
    return make_call(caller=caller, **fields)


def attempt(usd: float | None, tokens: int = 0) -> Attempt:
    return booked.attempt(completion_tokens=tokens, cost_usd=usd)


async def test_the_highest_cost_of_a_call_is_reserved_until_it_is_settled() -> None:
    async with running(usd_per_day=10.0) as case:
        first = await case.reserve(6)
        with pytest.raises(OverLimit, match="calls in flight have reserved the rest") as soon:
            await case.reserve(6)
        assert (soon.value.code, soon.value.retry_after_s) == ("rate_limit_exceeded", 5.0)
        assert first is not None
        first.settle(attempt(1.5, tokens=2))
        assert await case.used() == {"usd_per_day": 1.5}
        second = await case.reserve(6)
        assert second is not None
        second.settle(attempt(6.0))
        with pytest.raises(OverLimit, match=r"\$7.5 are used, and this call may use \$6") as used:
            await case.reserve(6)
        assert (used.value.code, used.value.retry_after_s) == ("insufficient_quota", 43_200.0)


async def test_calls_at_the_same_time_do_not_overrun() -> None:
    async with running(usd_per_day=10.0) as case:
        made: list[Reservation] = []

        async def one() -> None:
            try:
                reservation = await case.reserve(1)
            except OverLimit:
                return
            assert reservation is not None
            made.append(reservation)

        async with anyio.create_task_group() as tasks:
            for _ in range(100):
                tasks.start_soon(one)
        assert len(made) == 10


async def test_a_refused_call_waits_for_what_has_just_been_given_back() -> None:
    async with running(usd_per_day=10.0) as case:
        first = await case.reserve(10)
        assert first is not None
        case.store.gate.clear()
        first.settle(attempt(0.0))  # it waits for the store
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(case.reserve, 10)
            await asyncio.sleep(0.1)
            case.store.gate.set()
        assert await case.used() == {"usd_per_day": 10.0}


async def test_the_last_word_on_a_cost_counts() -> None:
    async with running(usd_per_day=10.0, tokens_per_day=100) as case:
        reservation = await case.reserve(5)
        assert reservation is not None
        reservation.settle(attempt(2.0, tokens=20))
        reservation.settle(attempt(3.0, tokens=30))
        reservation.settle(attempt(3.0, tokens=30))
        assert await case.used() == {"usd_per_day": 3.0, "tokens_per_day": 30.0}


async def test_a_call_that_cost_more_than_it_reserved_counts_in_full() -> None:
    async with running(usd_per_day=10.0) as case:
        reservation = await case.reserve(5)
        assert reservation is not None
        reservation.settle(attempt(12.0))
        assert await case.used() == {"usd_per_day": 12.0}
        with pytest.raises(OverLimit):
            await case.reserve(1)


@pytest.mark.parametrize("late", [False, True], ids=["before the store answers", "after it"])
async def test_a_caller_that_leaves_while_it_reserves_gets_it_back(*, late: bool) -> None:
    async with running(usd_per_day=10.0) as case:
        case.store.gate.clear()
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(case.reserve, 10)
                await asyncio.sleep(0.1)
                if late:
                    case.store.gate.set()
                scope.cancel()
        case.store.gate.set()
        await asyncio.sleep(0.1)
        assert await case.used() == {"usd_per_day": 0.0}


async def test_a_new_day_and_a_new_month_begin_at_midnight_in_utc() -> None:
    last = MIDNIGHT + 8 * 86_400.0 - 1.0  # 2026-11-30 23:59:59
    async with running(Clock(last), usd_per_day=10.0, usd_per_month=15.0) as case:
        over_midnight = await case.reserve(10)
        with pytest.raises(OverLimit) as refused:
            await case.reserve(1)
        assert refused.value.retry_after_s == 1.0
        case.clock.now += 1.0
        second = await case.reserve(10)
        assert over_midnight is not None
        assert second is not None
        over_midnight.settle(attempt(9.0))  # it belongs to the day on which it began
        second.settle(attempt(8.0))
        assert await case.used() == {"usd_per_day": 8.0, "usd_per_month": 8.0}
        case.clock.now += 86_400.0
        with pytest.raises(OverLimit, match="usd_per_month"):
            await case.reserve(8)
        assert await case.reserve(7) is not None


async def test_a_clock_that_is_set_back_and_forth_keeps_the_limits_of_each_day() -> None:
    after_midnight = MIDNIGHT + 1800.0
    async with running(Clock(after_midnight), usd_per_day=10.0) as case:
        first = await case.reserve(6)
        case.clock.now -= 3600.0  # the day before: it has a budget of its own
        second = await case.reserve(10)
        assert first is not None
        assert second is not None
        first.settle(attempt(5.0))
        with pytest.raises(OverLimit):
            await case.reserve(1)
        case.clock.now = after_midnight
        second.settle(attempt(9.0))
        assert await case.used() == {"usd_per_day": 5.0}
        with pytest.raises(OverLimit):
            await case.reserve(6)
        case.clock.now -= 3600.0
        assert await case.used() == {"usd_per_day": 9.0}


async def test_a_clock_that_was_days_ahead_for_a_moment_gives_nobody_credit() -> None:
    async with running(usd_per_day=10.0) as case:
        first = await case.reserve(6)
        assert first is not None
        case.clock.now += 3 * 86_400.0  # the counters of today stay: the clock leaps
        first.settle(attempt(1.0))
        await case.settled()
        case.clock.now = NOON
        assert await case.used() == {"usd_per_day": 1.0}
        assert await case.reserve(9) is not None
        with pytest.raises(OverLimit):
            await case.reserve(1)


async def test_a_clock_that_is_set_back_and_forth_lets_in_no_more_requests_of_a_minute() -> None:
    clock = Clock(NOON)
    store = GatedStore(clock)
    async with (
        running(clock, store, requests_per_minute=100) as one,
        running(clock, store, requests_per_minute=100) as other,
    ):
        admitted = {NOON: 0, NOON - 60.0: 0}
        for turn in range(900):
            clock.now = NOON - 60.0 * (turn // 7 % 2)
            try:
                await (one, other)[turn % 2].ledger.admit("a", "m")
            except OverLimit:
                continue
            admitted[clock.now] += 1
        # What a process had leased is lost with each step.
        assert all(20 <= each <= 100 for each in admitted.values())


async def test_tokens_of_a_minute_are_free_again_in_the_next() -> None:
    async with running(tokens_per_minute=100) as case:
        first = await case.reserve(1, prompt=99)
        assert first is not None
        first.settle(attempt(0.0, tokens=100))
        with pytest.raises(OverLimit) as refused:
            await case.reserve(1)
        assert (refused.value.code, refused.value.retry_after_s) == ("rate_limit_exceeded", 60.0)
        case.clock.now += 60.0
        assert await case.reserve(5000) is not None  # larger than a minute, but alone


async def test_an_answer_without_a_limit_reserves_what_the_setting_says() -> None:
    async with running(tokens_per_day=1000, output_reserve=400) as case:
        await case.reserve(completion=None, answers=2)
        assert await case.used() == {"tokens_per_day": 800.0}


async def test_keys_without_limits_and_relayed_calls_reserve_nothing() -> None:
    async with running(usd_per_day=0.0) as case:
        assert await case.reserve(caller="b") is None
        await case.ledger.admit("b", "m")
        relayed = call(relayed=True)
        options: dict[str, Any] = {"price": None, "is_free": False, "prompt": 1, "completion": 1}
        assert await case.ledger.reserve(relayed, "m", **options) is None


async def test_a_model_without_a_price_is_refused_for_a_limit_of_dollars() -> None:
    async with running(usd_per_day=10.0) as case:
        with pytest.raises(Forbidden, match=r"client_limits\.a\.unknown_cost"):
            await case.reserve(price=None)
        assert await case.reserve(price=None, is_free=True) is not None
    async with running(usd_per_day=10.0, unknown_cost="allow") as case:
        reservation = await case.reserve(price=None)
        assert reservation is not None
        reservation.settle(attempt(None, tokens=5))
        assert await case.used() == {"usd_per_day": 0.0}
    async with running(tokens_per_day=10) as case:
        assert await case.reserve(price=None) is not None


@pytest.mark.parametrize(
    ("limits", "fields", "is_free", "error"),
    [
        ({"usd_per_day": 1.0}, {}, False, Forbidden),
        ({"usd_per_day": 1.0}, {}, True, None),
        ({"usd_per_day": 1.0, "unknown_cost": "allow"}, {}, False, None),
        ({"models": ("m",)}, {}, False, Forbidden),
        ({"models": ("m",)}, {"model": "m"}, False, None),
        ({"models": ("m",)}, {"model": "n"}, True, ModelForbidden),
        ({"models": ("m",)}, {}, True, None),
        ({"requests_per_minute": 1}, {}, False, None),
    ],
)
async def test_relayed_calls_pass_if_their_cost_and_model_are_known(
    limits: dict[str, Any],
    fields: dict[str, Any],
    error: type[RequestError] | None,
    *,
    is_free: bool,
) -> None:
    async with running(**limits) as case:
        relayed = call(relayed=True, **fields)
        if error is None:
            await case.ledger.admit_relayed(relayed, is_free=is_free)
        else:
            with pytest.raises(error):
                await case.ledger.admit_relayed(relayed, is_free=is_free)


async def test_relayed_calls_count_as_requests_of_a_minute() -> None:
    async with running(requests_per_minute=2) as case:
        await case.ledger.admit("a", "m")
        await case.ledger.admit_relayed(call(relayed=True), is_free=False)
        with pytest.raises(OverLimit):
            await case.ledger.admit_relayed(call(relayed=True), is_free=False)
        await case.ledger.admit_relayed(call("b", relayed=True), is_free=False)


async def test_requests_that_repeat_a_key_are_refused_for_limits_alone() -> None:
    twice = OPENAI_CHAT.parse_request(b'{"model": "m", "model": "n", "messages": []}')
    async with running(models=("m", "n")) as case:
        with pytest.raises(Forbidden, match="repeat a JSON key"):
            await case.ledger.admit_request("a", twice)
        await case.ledger.admit_request("b", twice)


@pytest.mark.parametrize(
    "more",
    [
        {"models": ["small-2", "large"]},
        {"fallbacks": ["large"]},
        {"fallbacks": "large"},
        {"fallbacks": [{"model": "large", "temperature": 0}]},
        {"fallbacks": [{"small-1": ["small-2", "large"]}]},
        {"context_window_fallbacks": [{"small-1": ["large"]}]},
    ],
)
async def test_no_other_model_comes_in_beside_a_named_one(more: dict[str, Any]) -> None:
    asked = {"model": "small-1", "messages": [{"role": "user", "content": "hi"}]}
    async with running(models=("small-*",)) as case:
        with pytest.raises(ModelForbidden, match="'large'"):
            await case.ledger.admit_request("a", parsed({**asked, **more}))
        allowed = json.loads(json.dumps({**asked, **more}).replace("large", "small-3"))
        await case.ledger.admit_request("a", parsed(allowed))


def parsed(document: dict[str, Any]) -> ChatRequest:
    return OPENAI_CHAT.parse_request(json.dumps(document).encode())


async def test_only_named_models_are_let_in() -> None:
    async with running(models=("small-*",)) as case:
        await case.ledger.admit("a", "small-1")
        with pytest.raises(ModelForbidden, match="'large'") as refused:
            await case.ledger.admit("a", "large")
        assert (refused.value.status, refused.value.code) == (403, "model_not_found")


@pytest.mark.parametrize("most", [7, 100])
async def test_as_many_requests_as_a_minute_allows_are_let_in(most: int) -> None:
    async with running(requests_per_minute=most) as case:
        for _ in range(most):
            await case.ledger.admit("a", "m")
        with pytest.raises(OverLimit) as refused:
            await case.ledger.admit("a", "m")
        assert refused.value.retry_after_s == 60.0
        case.clock.now += 60.0
        await case.ledger.admit("a", "m")


@pytest.mark.parametrize("most", [7, 100])
async def test_a_burst_gets_all_requests_of_a_minute_and_no_more(most: int) -> None:
    async with running(requests_per_minute=most) as case:
        found: list[bool] = []

        async def one() -> None:
            try:
                await case.ledger.admit("a", "m")
            except OverLimit:
                found.append(False)
            else:
                found.append(True)

        async with anyio.create_task_group() as tasks:
            for _ in range(150):
                tasks.start_soon(one)
        assert (found.count(True), found.count(False)) == (most, 150 - most)


async def test_an_error_of_a_store_reaches_the_caller() -> None:
    async with running(store=BrokenStore(Clock(NOON)), usd_per_day=10.0) as case:
        with anyio.fail_after(60), pytest.raises(ValueError, match="a bug"):
            await case.reserve(1)


async def test_two_processes_share_the_requests_of_a_minute() -> None:
    clock = Clock(NOON)
    store = GatedStore(clock)
    async with (
        running(clock, store, requests_per_minute=100) as one,
        running(clock, store, requests_per_minute=100) as other,
    ):
        admitted = 0
        for turn in range(400):
            try:
                await (one, other)[turn % 2].ledger.admit("a", "m")
            except OverLimit:
                continue
            admitted += 1
        assert admitted == 100


async def test_without_the_store_no_call_is_charged_and_requests_are_counted_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running(usd_per_day=10.0, requests_per_minute=3) as case:
        case.store.away = True
        for _ in range(2):
            with pytest.raises(LimitsUnavailable):
                await case.reserve(1)
        (told,) = [each.getMessage() for each in caplog.records if "503" in each.getMessage()]
        assert told.endswith("503: away")
        with pytest.raises(LimitsUnavailable, match=r"cache\.store") as refused:
            await case.reserve(1)
        assert refused.value.status == 503
        for _ in range(3):
            await case.ledger.admit("a", "m")
        with pytest.raises(OverLimit):
            await case.ledger.admit("a", "m")


async def test_a_failed_settlement_is_tried_again() -> None:
    async with running(usd_per_day=10.0) as case:
        first, second = await case.reserve(5), await case.reserve(5)
        assert first is not None
        assert second is not None
        case.store.away = True
        first.settle(attempt(1.0))
        await asyncio.sleep(2.5)
        second.settle(attempt(2.0))
        await asyncio.sleep(2.5)
        case.store.away = False
        assert await case.used() == {"usd_per_day": 3.0}


async def test_a_restart_goes_on_with_what_was_used() -> None:
    clock = Clock(NOON)
    store = GatedStore(clock)
    async with running(clock, store, usd_per_day=10.0) as case:
        reservation = await case.reserve(5)
        assert reservation is not None
        reservation.settle(attempt(4.0))  # the end writes what waits
    async with running(clock, store, usd_per_day=5.0) as case:
        assert await case.used() == {"usd_per_day": 4.0}
        with pytest.raises(OverLimit):
            await case.reserve(2)


async def test_a_limit_that_is_added_later_holds_for_what_was_spent_before() -> None:
    clock = Clock(NOON)
    store = GatedStore(clock)
    async with running(clock, store, tokens_per_day=100) as case:
        await case.reserve(8)
    async with running(clock, store, usd_per_month=10.0) as case:
        assert await case.used() == {"usd_per_month": 8.0}


async def test_the_log_warns_once_at_four_fifths_and_once_at_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "headstart")
    async with running(usd_per_day=10.0) as case:
        for cost in (7.9, 0.2, 0.2):
            reservation = await case.reserve(1)
            assert reservation is not None
            reservation.settle(attempt(cost))
            await case.settled()
        for _ in range(2):
            with pytest.raises(OverLimit):
                await case.reserve(5)
        warned, refused = [each.getMessage() for each in caplog.records]
        assert warned.startswith("client key a has used 81% of its usd_per_day ($8.1 of $10")
        assert "2026-11-24 00:00 UTC" in warned
        assert refused.startswith("a call of client key a gets 429")
        case.clock.now += 86_400.0
        again = await case.reserve(9)
        assert again is not None
        again.settle(attempt(8.5))
        await case.settled()
        assert len(caplog.records) == 3
