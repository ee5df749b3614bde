"""An answer is whole at its last event, whatever its body's end and its clients do after that."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from headstart.attempts import AttemptOutcome
from headstart.decisions import Outcome
from headstart.observe import Served
from support.endings import ON_TIME, TEXT, TOKENS, Ending, EndingProvider, ending, frame
from support.proxied import CHAT, Proxied, proxied
from support.simulated import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio

PRICE = {"input_per_million": 1.0, "output_per_million": 4.0}
ENDINGS = {
    "on time": ON_TIME,
    "at once": Ending(0.0),
    "2 ms": Ending(0.002),
    "50 ms": Ending(0.05),
    "1 s": Ending(1.0),
    "never": Ending(None),
    "reset": Ending(0.0, reset=True),
    "reset later": Ending(0.05, reset=True),
    "chatty": Ending(0.02, chatter=b": bye\n\n"),
    "never silent": Ending(None, chatter=b": bye\n\n", endless=True),
    "another frame": Ending(None, chatter=frame({"error": {"message": "too late"}})),
}
PATHS = {
    "openai": (CHAT, {}),
    "anthropic": ("/v1/messages", {"max_tokens": 100}),
    "gemini": ("/v1beta/models/m:streamGenerateContent?alt=sse", {}),
}
LAST = {"openai": b"[DONE]", "anthropic": b"message_stop", "gemini": b'"STOP"'}
DIALECTS = (*PATHS, "cohere")


def body(client: str, prompt: str) -> dict[str, Any]:
    if client == "gemini":
        return {"contents": [{"role": "user", "parts": [{"text": prompt}]}]}
    said = {"messages": [{"role": "user", "content": prompt}]}
    return {"model": "m", "stream": True, **said, **PATHS[client][1]}


async def leave_at(
    proxy: Proxied, last: bytes, client: str = "openai", prompt: str = "Why?", **headers: str
) -> bytes:
    """Read up to ``last`` and close the connection at once; return what was read."""
    async with proxy.session.post(
        proxy.url + PATHS[client][0],
        json=body(client, prompt),
        headers={"authorization": "Bearer k", "x-goog-api-key": "k", **headers},
    ) as response:
        assert response.status == 200
        read = b""
        while last not in read:
            data = await response.content.readany()
            assert data, read
            read += data
        response.close()
    return read


async def leave_at_last_event(
    proxy: Proxied, client: str = "openai", prompt: str = "Why?"
) -> bytes:
    """Leave as openai-python does, which closes its connection at ``[DONE]``."""
    return await leave_at(proxy, LAST[client], client, prompt)


@contextlib.asynccontextmanager
async def behind(
    provider: EndingProvider, dialect: str = "openai", **more: Any
) -> AsyncIterator[Proxied]:
    async with ending(provider):
        upstream = {"base_url": provider.url, "dialect": dialect, "price": {"default": PRICE}}
        async with proxied(provider=upstream, **more) as proxy:
            yield proxy


def paid(row: Served) -> tuple[Any, ...]:
    return (row.error, row.status, row.stored, row.prompt_tokens, row.completion_tokens)


BOOKED = (None, 200, True, *TOKENS)


def cases(endings: dict[str, Ending]) -> pytest.MarkDecorator:
    """Every ending of every provider for one client, and some for the other clients."""
    some = {name: endings[name] for name in ("2 ms", "never")}
    rows = [
        pytest.param(how, client, dialect, id=f"{name}-{client}-{dialect}")
        for client in PATHS
        for name, how in (endings if client == "openai" else some).items()
        for dialect in DIALECTS
    ]
    return pytest.mark.parametrize(("how", "client", "dialect"), rows)


def booked(proxy: Proxied) -> Served:
    """Return the row of the request that was answered by a provider: it must be complete."""
    [row] = [row for row in proxy.served if row.attempts]
    assert (row.error, row.status, row.stored) == (None, 200, True)
    assert (row.prompt_tokens, row.completion_tokens) == TOKENS
    assert row.cost_usd == pytest.approx((30 * 1 + 20 * 4) / 1e6)
    won = [each for each in row.attempts if each.outcome is AttemptOutcome.WON]
    assert [(each.prompt_tokens, each.completion_tokens) for each in won] == [TOKENS]
    return row


@cases(ENDINGS)
async def test_a_client_that_leaves_at_the_last_event_leaves_a_stored_answer(
    how: Ending, client: str, dialect: str
) -> None:
    provider = EndingProvider(how)
    async with behind(provider, dialect) as proxy:
        for _ in range(2):
            await leave_at_last_event(proxy, client)
        await proxy.until(Served, 2)
        assert provider.calls == 1
        booked(proxy)
        again = [row.outcome for row in proxy.served if not row.attempts]
        assert again in ([Outcome.EXACT], [Outcome.JOINED])
        await proxy.stored(1)


# What is said after a JSON document is no comment: that is no answer.
@cases({name: how for name, how in ENDINGS.items() if not how.chatter})
async def test_a_whole_answer_needs_no_end_of_its_body(
    how: Ending, client: str, dialect: str
) -> None:
    provider = EndingProvider(how)
    async with behind(provider, dialect) as proxy:
        path, sent = PATHS[client][0], {**body(client, "Why?"), "stream": False}
        if client == "gemini":
            path, sent = "/v1beta/models/m:generateContent", body(client, "Why?")
        headers = {"authorization": "Bearer k", "x-goog-api-key": "k"}
        for _ in range(2):
            async with proxy.session.post(proxy.url + path, json=sent, headers=headers) as response:
                assert TEXT in await response.text()
        await proxy.until(Served, 2)
        assert provider.calls == 1
        booked(proxy)
        assert "stored" not in response.headers["cache-status"]
        assert "hit" in response.headers["cache-status"]


@pytest.mark.parametrize("how", [Ending(0.002), Ending(None), Ending(0.0, reset=True)])
async def test_all_joined_clients_may_leave_at_the_last_event(how: Ending) -> None:
    provider = EndingProvider(how, hold=asyncio.Event())
    async with behind(provider) as proxy, asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(leave_at_last_event(proxy))
        await proxy.in_flight(3)
        assert provider.hold is not None
        provider.hold.set()
        await proxy.until(Served, 3)
        assert provider.calls == 1
        booked(proxy)
        assert sorted(row.outcome for row in proxy.served) == sorted(
            [Outcome.MISS, Outcome.JOINED, Outcome.JOINED]
        )
        assert {row.error for row in proxy.served} == {None}
        assert {row.stored for row in proxy.served} == {True}
        await leave_at_last_event(proxy)
        assert provider.calls == 1


@pytest.mark.parametrize(
    ("how", "reused"),
    [(ON_TIME, True), (Ending(0.002), True), (Ending(0.05), True), (Ending(None), False),
     (Ending(0.0, reset=True), False), (Ending(None, chatter=b"x", endless=True), False)],
)  # fmt: skip
async def test_a_body_that_ends_in_time_leaves_its_connection(how: Ending, reused: bool) -> None:
    provider = EndingProvider(how)
    async with behind(provider) as proxy:
        await leave_at_last_event(proxy)
        if reused:
            await until(lambda: provider.ended == 1)
        else:
            await until(lambda: provider.open == 0)
        await leave_at_last_event(proxy, prompt="And why is that?")
        assert (provider.calls, provider.connections) == (2, 1 if reused else 2)


async def test_a_server_that_stops_closes_bodies_that_have_not_ended() -> None:
    provider = EndingProvider(Ending(None))
    async with ending(provider):
        async with proxied(provider={"base_url": provider.url, "dialect": "openai"}) as proxy:
            await leave_at_last_event(proxy)
            assert provider.open == 1
        await until(lambda: provider.open == 0)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("how", [Ending(0.0), Ending(0.0, reset=True)])
async def test_an_answer_that_breaks_off_before_its_last_event_is_not_stored(
    how: Ending, dialect: str
) -> None:
    cut = 3 if dialect == "openai" else 2 if dialect == "anthropic" else 1  # no finish reason
    provider = EndingProvider(how, cut=cut)
    async with behind(provider, dialect) as proxy:
        reply = await proxy.ask(stream=True)
        assert b"[DONE]" not in reply.body
        await proxy.until(Served, 1)
        [row] = proxy.served
        assert (row.stored, row.error is None) == (False, False)
        calls, provider.cut = provider.calls, 0
        await proxy.ask(stream=True)
        assert provider.calls > calls


@pytest.mark.parametrize("dialect", ["openai", "anthropic", "cohere"])
async def test_a_reset_between_finish_reason_and_last_event_is_an_answer_cut_off(
    dialect: str,
) -> None:
    provider = EndingProvider(Ending(0.05, reset=True), cut=1)
    if dialect == "cohere":
        provider.cut = 2
    async with behind(provider, dialect) as proxy:
        reply = await proxy.ask(stream=True)
        assert b"[DONE]" not in reply.body
        await proxy.until(Served, 1)
        assert not proxy.served[0].stored


@pytest.mark.parametrize(
    ("client", "last"),
    [("openai", b"most."), ("openai", b'"stop"'), ("anthropic", b"end_turn"), ("gemini", b"Blue")],
)
async def test_a_client_that_leaves_before_the_last_event_ends_the_call(
    client: str, last: bytes
) -> None:
    provider = EndingProvider(Ending(None), hold=asyncio.Event())
    async with behind(provider, client) as proxy:
        await leave_at(proxy, last, client)
        await provider.left.wait()
        await proxy.until(Served, 1)
        [row] = proxy.served
        assert (row.error, row.stored) == ("client-gone", False)
        assert [each.outcome for each in row.attempts] == [AttemptOutcome.ABANDONED]


async def test_an_error_in_place_of_the_last_event_stays_an_error() -> None:
    provider = EndingProvider(ON_TIME)
    ended = {"type": "message-end", "delta": {"finish_reason": "ERROR", "error": "overloaded"}}
    provider.last = frame(ended, "message-end")
    async with behind(provider, "cohere") as proxy:
        reply = await proxy.ask(stream=True)
        assert b"[DONE]" not in reply.body
        await proxy.until(Served, 1)
        assert not proxy.served[0].stored
        assert proxy.served[0].attempts[0].outcome is AttemptOutcome.BROKEN


async def test_a_terminal_event_without_a_finish_reason_passes_and_is_not_stored() -> None:
    provider = EndingProvider(Ending(0.02), skip=2)
    async with behind(provider) as proxy:
        reply = await proxy.ask(stream=True)
        assert reply.body.endswith(b"data: [DONE]\n\n")
        assert b'"stop"' not in reply.body
        await proxy.until(Served, 1)
        assert not proxy.served[0].stored


async def test_usage_after_gemini_s_finish_reason_is_not_lost() -> None:
    late = {"usageMetadata": {"promptTokenCount": 30, "candidatesTokenCount": 20}}
    provider = EndingProvider(Ending(0.05), usage=False, more=[frame(late)])
    async with behind(provider, "gemini") as proxy:
        read = await leave_at(proxy, b"candidatesTokenCount", "gemini")
        assert b"STOP" in read
        await proxy.until(Served, 1)
        booked(proxy)


async def test_each_of_several_candidates_needs_its_finish_reason() -> None:
    def chunk(index: int, text: str, finish: str | None = None) -> bytes:
        said: dict[str, Any] = {"content": {"parts": [{"text": text}]}, "index": index}
        return frame({"candidates": [{**said, **({"finishReason": finish} if finish else {})}]})

    provider = EndingProvider(Ending(None), hold=asyncio.Event())
    provider.frames = [chunk(0, "a", "STOP"), chunk(1, "b"), chunk(1, "c", "STOP")]
    asked = {"generationConfig": {"candidateCount": 2}}
    async with behind(provider, "gemini") as proxy:
        url, sent = proxy.url + PATHS["gemini"][0], {**body("gemini", "Why?"), **asked}
        headers = {"x-goog-api-key": "k"}
        async with proxy.session.post(url, json=sent, headers=headers) as response:
            while b"STOP" not in await response.content.readany():
                pass
            response.close()
        await provider.left.wait()
        await proxy.until(Served, 1)
        assert not proxy.served[0].stored
