"""The live page's numbers: sums by minute, filters, and the stream of events."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

from headstart.attempts import AttemptOutcome, AttemptRole
from headstart.decisions import Outcome
from headstart.embeddings.stores.memory import MemoryStore
from headstart.middleware import admin
from headstart.middleware.admin import MOST_PAGES
from headstart.middleware.admin_front import LivePages
from headstart.middleware.live import DAY_S, MOST_KEYS, STEP_S, LiveFilter, LiveTotals
from headstart.report.accounts import Accounts
from headstart.usual_calls import Machine
from support import booked
from support.administered import CHATGPT, administered
from support.booked import attempt
from support.raw_upstream import RawUpstream, ask_raw, sidecar_before

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headstart.observe import Served

NOW = 1_700_000_000.0


def served(outcome: Outcome = Outcome.MISS, **changes: Any) -> Served:
    usual = {
        "endpoint": "chat",
        "at": NOW - 30.0,
        "caller": "a",
        "route": "r",
        "cost_usd": 0.05,
        "overhead_s": 0.01,
    }
    return booked.served(outcome, **{**usual, **changes})


def hit(**changes: Any) -> Served:
    values = {"ttft_s": 0.001, "cost_usd": 0.0, "saved_total_s": 1.9, "saved_tokens": 100}
    return served(Outcome.EXACT, **{"saved_usd": 0.02, **values, **changes})


def totals_of(*rows: Served) -> LiveTotals:
    totals = LiveTotals(lambda: NOW)
    for row in rows:
        totals.notify(row)
    return totals


def test_the_sums_are_those_of_the_report() -> None:
    lost = attempt(AttemptOutcome.LOST, upstream="b", role=AttemptRole.HEDGE, cost_usd=0.01)
    rows = (
        served(attempts=(lost,)),
        hit(),
        served(status=502, error="broken", cost_usd=None),
        served(Outcome.AUDIT, cost_usd=0.003, completion_tokens=3),
        served(Outcome.RELAY),
    )
    found = totals_of(*rows).view(3600.0).totals
    assert (found.requests, found.failed) == (3, 1)
    assert found.hit_rate == pytest.approx(1 / 3)
    assert found.outcomes == {"miss": 2, "exact": 1}
    assert found.paid_usd == pytest.approx(0.053)
    assert found.would_have_usd == pytest.approx(0.05 - 0.01 + 0.02)
    assert found.saved_tokens == 100 - 3
    assert found.hit_ttft.p50_s == pytest.approx(0.001, rel=0.16)
    assert found.miss_ttft.p50_s == pytest.approx(0.5, rel=0.16)


def test_hits_of_calls_without_a_price_save_no_known_money() -> None:
    unknown = {"saved_usd": None, "cost_usd": 0.0}
    rows = (served(cost_usd=None), hit(**unknown), served(Outcome.JOINED, **unknown))
    found = totals_of(*rows).view(3600.0).totals
    assert (found.paid_usd, found.would_have_usd, found.saved_usd) == (None, None, None)
    free = totals_of(*rows, served(cost_usd=0.0)).view(3600.0).totals
    assert (free.paid_usd, free.would_have_usd) == (0.0, 0.0)


def test_hits_are_compared_with_recent_calls_and_not_with_their_own_one() -> None:
    calls = [served(total_s=2.0 + n / 100, overhead_s=0.0) for n in range(20)]
    slow = hit(total_s=0.1, saved_total_s=20.0, entry="slow")
    rows = (*calls, slow, slow, served(Outcome.JOINED, total_s=1.0, overhead_s=0.5))
    totals = totals_of(*rows)
    found = totals.view(3600.0).totals
    accounts = Accounts()
    for row in rows:
        accounts.add(row)
    assert found.saved_s == pytest.approx(2 * (2.095 - 0.1) + 2.095 - 1.0)
    assert found.saved_s == pytest.approx(accounts.report().overall.savings.total_s)
    assert 0 < found.saved_s_margin < 0.2


def test_a_prompt_asked_a_moment_ago_would_have_been_cheaper() -> None:
    prompt = {"entry": "e", "prompt_tokens": 2000, "saved_usd": 0.02, "saved_prefix_usd": 0.015}
    totals = totals_of(
        hit(at=NOW - 900.0, **prompt), hit(at=NOW - 60.0, **prompt), hit(at=NOW - 30.0, **prompt)
    )
    found = totals.view(3600.0).totals
    assert found.saved_usd == pytest.approx(0.02 + 0.02 + 0.005)


def test_the_margin_is_that_of_a_sum() -> None:
    values = [0.01, 0.02, 0.06]
    found = totals_of(*(hit(saved_usd=each) for each in values)).view(3600.0).totals
    mean = sum(values) / 3
    spread = sum((each - mean) ** 2 for each in values)
    assert found.saved_usd_margin == pytest.approx(1.96 * spread**0.5)


@pytest.mark.parametrize(
    ("wanted", "requests"),
    [({}, 3), ({"caller": "a"}, 2), ({"caller": "a", "model": "n"}, 1), ({"route": "(none)"}, 1),
     ({"tag": "x"}, 1), ({"tag": "y", "endpoint": "chat"}, 1), ({"endpoint": "other"}, 0)],
)  # fmt: skip
def test_a_filter_counts_only_the_requests_that_fit(wanted: dict[str, str], requests: int) -> None:
    totals = totals_of(served(), served(model="n", tags=("x", "y")), served(caller="b", route=""))
    assert totals.view(3600.0, LiveFilter(**wanted)).totals.requests == requests


def test_a_window_forgets_what_is_older() -> None:
    totals = totals_of(served(at=NOW - 2 * DAY_S), served(at=NOW - 7200.0), served())
    assert totals.view(900.0).totals.requests == 1
    day = totals.view(DAY_S)
    assert day.totals.requests == 2
    assert [sum(bar.outcomes.values()) for bar in day.bars] == [1, 1]
    assert day.bars[1].start - day.bars[0].start == pytest.approx(7200.0, abs=2 * day.bar_s)


def test_many_models_share_a_row_and_many_minutes_stay_bounded() -> None:
    rows = [served(model=f"m{n}", at=NOW - n * STEP_S) for n in range(2 * MOST_KEYS)]
    view = totals_of(*rows).view(DAY_S)
    assert len(view.keys) <= MOST_KEYS + 1
    assert view.totals.requests == 2 * MOST_KEYS


@pytest.mark.anyio
async def test_the_books_are_read_once_and_no_row_counts_twice() -> None:
    store = MemoryStore()
    await store.open()
    await store.add_to_books([served(id="1"), served(id="2"), served(id="3", at=NOW - 2 * DAY_S)])
    totals = LiveTotals(lambda: NOW)
    await totals.load(store, [served(id="2"), served(id="not yet in the books")])
    totals.notify(served(id="4"))
    assert totals.view(DAY_S).totals.requests == 4


async def events(reply: asyncio.StreamReader, number: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < number:
        line = await reply.readline()
        assert line, "the stream ended"
        if line.startswith(b"data:"):
            found.append(json.loads(line.removeprefix(b"data:")))
    return found


async def opened(url: str, more: str = "") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    path = f"/_headstart/live/events{more}"
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
    await writer.drain()
    return reader, writer


@pytest.mark.anyio
async def test_a_page_hears_of_each_request() -> None:
    async with administered() as running:
        await running.ask(CHATGPT)
        reader, writer = await opened(running.gateway.url, "?window_s=900")
        (first,) = await events(reader, 1)
        await running.ask(CHATGPT)
        (second,) = await events(reader, 1)
        writer.close()
        await writer.wait_closed()
        assert (await running.get("live?caller=nobody"))["requests"] == []
    assert [each["view"]["totals"]["requests"] for each in (first, second)] == [1, 2]
    assert [row["outcome"] for row in second["requests"]] == ["exact", "miss"]
    assert sum(each["calls"] for each in second["calls"]) == 1
    assert CHATGPT not in json.dumps(second)


@pytest.mark.anyio
async def test_a_stream_ends_so_that_an_old_configuration_can_end() -> None:
    async with administered(pages=LivePages(stream_s=0.5)) as running:
        reader, writer = await opened(running.gateway.url)
        async with asyncio.timeout(20):
            await reader.readuntil(b"\r\n0\r\n\r\n")
        await _close([(reader, writer)])


@pytest.mark.anyio
async def test_too_many_pages_are_refused_and_a_closed_page_makes_room() -> None:
    async with administered() as running:
        pages = [await opened(running.gateway.url) for _ in range(MOST_PAGES)]
        for reader, _ in pages:
            await events(reader, 1)
        reader, writer = await opened(running.gateway.url)
        assert (await reader.readline()).startswith(b"HTTP/1.1 429")
        await _close([*pages, (reader, writer)])
        async with asyncio.timeout(20):
            while True:
                reader, writer = await opened(running.gateway.url)
                taken = (await reader.readline()).startswith(b"HTTP/1.1 200")
                await _close([(reader, writer)])
                if taken:
                    return


@pytest.mark.anyio
async def test_a_page_that_reads_nothing_fills_no_memory_and_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admin, "EVERY_S", 0.0)
    monkeypatch.setattr(admin, "ALIVE_S", 0.0)  # an event as soon as the last one was taken
    views = 0
    view = LiveTotals.view

    def counted(self: LiveTotals, *args: Any) -> Any:
        nonlocal views
        views += 1
        return view(self, *args)

    monkeypatch.setattr(LiveTotals, "view", counted)
    async with administered() as running:
        with stalled(running.gateway.url) as silent:
            await asyncio.to_thread(silent.recv, 1)  # the answer has begun
            async with asyncio.timeout(60):
                before = -1
                while before != views:  # until the buffers of both sides are full
                    before = views
                    await asyncio.sleep(0.5)
            for asked in range(3):
                await running.ask(f"{CHATGPT} {asked}")
            assert views == before
            reader, writer = await opened(running.gateway.url)
            assert (await events(reader, 1))[0]["view"]["totals"]["requests"] == 3
            await _close([(reader, writer)])


@contextlib.contextmanager
def stalled(url: str) -> Iterator[socket.socket]:
    """Open a page whose reader takes nothing more than its caller reads."""
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((host, int(port)))
        client.sendall(
            f"GET /_headstart/live/events HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode()
        )
        yield client


async def _close(pages: Sequence[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> None:
    for _, writer in pages:
        writer.close()
        await writer.wait_closed()


@pytest.mark.anyio
async def test_the_root_leads_to_the_page_for_a_browser_alone() -> None:
    async with sidecar_before(RawUpstream()) as url:
        get = await ask_raw(url, b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        head = await ask_raw(
            url, b"HEAD / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
    assert get.startswith(b"HTTP/1.1 307")
    assert b"location: /_headstart/\r\n" in get
    assert head.startswith(b"HTTP/1.1 404")


def test_machines_by_the_hour_have_their_load_and_break_even() -> None:
    machine = Machine(3.6, lambda attempt: attempt.completion_tokens * 1e-5)
    totals = LiveTotals(lambda: NOW, {"gpu": machine})

    def called(upstream: str, at: float, **changes: Any) -> Served:
        call = attempt(upstream=upstream, at=at, total_s=30.0, completion_tokens=1000)
        return served(at=at, attempts=(call,), **changes)

    first = NOW // 60 * 60 - 600
    for row in (called("gpu", first), called("gpu#2", NOW - 30.0), called("api", NOW - 20.0)):
        totals.notify(row)
    (found,) = totals.view(3600.0).machines
    seconds = NOW - first
    assert (found.name, found.calls, found.completion_tokens) == ("gpu", 2, 2000)
    assert found.calls_at_a_time == pytest.approx(60 / seconds)
    assert found.usd == pytest.approx(0.001 * seconds)
    assert found.metered_usd == pytest.approx(0.02)
    assert found.break_even_load == pytest.approx(0.001 * seconds / 0.02)
    (last,) = totals.view(60.0).machines
    assert last.calls == 1
    assert LiveTotals(lambda: NOW).view(60.0).machines == []
