"""An answer is complete at its last event, however its body ends and its clients behave."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from headstart import HeadstartMiddleware
from headstart.attempts import AttemptOutcome
from headstart.decisions import Outcome
from headstart.observe import Served
from support.endings import (
    ON_TIME,
    TEXT,
    TOKENS,
    WORDS,
    Ending,
    EndingProvider,
    answer,
    ending,
    frame,
)
from support.patience import until
from support.proxied import CHAT, Proxied, Reply, proxied
from support.scripted import ScriptedUpstream, lifespan
from support.serving import serving
from support.sidecar import PROMPT, REWORDED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

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
    "responses": ("/v1/responses", {}),
    "anthropic": ("/v1/messages", {"max_tokens": 100}),
    "gemini": ("/v1beta/models/m:streamGenerateContent?alt=sse", {}),
}
LAST = {
    "openai": b"[DONE]",
    "responses": b"response.completed",
    "anthropic": b"message_stop",
    "gemini": b'"STOP"',
}
DIALECTS = (*PATHS, "cohere")


def body(client: str, prompt: str) -> dict[str, Any]:
    if client == "gemini":
        return {"contents": [{"role": "user", "parts": [{"text": prompt}]}]}
    if client == "responses":
        return {"model": "m", "stream": True, "input": prompt}
    said = {"messages": [{"role": "user", "content": prompt}]}
    return {"model": "m", "stream": True, **said, **PATHS[client][1]}


async def leave_at(
    proxy: Proxied, last: bytes, client: str = "openai", prompt: str = "Why?"
) -> bytes:
    """Read up to ``last`` and close the connection at once; return what was read."""
    async with proxy.session.post(
        proxy.url + PATHS[client][0],
        json=body(client, prompt),
        headers={"x-goog-api-key" if client == "gemini" else "authorization": "Bearer k"},
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


@pytest.mark.parametrize("usage", [True, False])
@pytest.mark.parametrize("how", ["at once", "50 ms", "never"])
async def test_a_rewording_right_after_the_last_event_is_a_hit(how: str, *, usage: bool) -> None:
    provider = EndingProvider(ENDINGS[how])
    meaning: dict[str, Any] = {
        "cache": {"mode": "serve", "match": "static", "audit.mode": "off"},
        "encoder": {"max_wait_ms": 20_000.0},
    }
    async with ending(provider):
        upstream = {"base_url": provider.url, "include_usage": usage}
        async with proxied(provider=upstream, **meaning) as proxy:
            await leave_at_last_event(proxy, prompt=PROMPT)
            reworded = await proxy.ask(REWORDED, stream=True)
            assert reworded.verdict.endswith("detail=semantic")


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


async def test_the_causing_client_books_the_call_while_others_wait_for_the_bodys_end() -> None:
    provider = EndingProvider(Ending(None))
    async with behind(provider, "gemini") as proxy:
        await leave_at_last_event(proxy, "gemini")
        headers, url = {"x-goog-api-key": "Bearer k"}, proxy.url + PATHS["gemini"][0]
        async with proxy.session.post(url, json=body("gemini", "Why?"), headers=headers) as joined:
            assert b"STOP" in await joined.read()
        await proxy.until(Served, 2)
        assert booked(proxy).outcome is Outcome.MISS
        assert {row.prompt_tokens for row in proxy.served} == {TOKENS[0]}
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


@pytest.mark.parametrize("chatter", [b"", b": ping\n\n"])
async def test_a_missing_last_event_is_made_up_though_the_body_never_ends(chatter: bytes) -> None:
    how = Ending(None, chatter=chatter, endless=bool(chatter))
    provider = EndingProvider(how, cut=1)
    async with behind(provider) as proxy:
        for _ in range(2):
            read = await leave_at_last_event(proxy, "anthropic")
            assert b'"end_turn"' in read
        await proxy.until(Served, 2)
        booked(proxy)
        assert provider.calls == 1


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


# --- above providers ---------------------------------------------------------------------------

LINES = [f"line {number} of a document that is long enough" for number in range(80)]
DOCUMENT = "\n".join(LINES)
EDIT = f"Rename line 7.\n\n```text\n{DOCUMENT}\n```"
BLOCK = f"<<<<<<< SEARCH\n{LINES[7]}\n=======\nline seven\n>>>>>>> REPLACE\n"
RETRIEVED = (
    "<document>\nThe tower was built in 1889. It is made of iron and rivets.\n</document>\nWhen?"
)
REFUSAL = ("I'm sorry, but", " I can't help", " with that.")


@dataclass(frozen=True)
class Way:
    """A route, and what two providers say to it; None: the first is the only one."""

    strategy: str | None = None
    more: dict[str, Any] = field(default_factory=dict)
    words: tuple[str, ...] = WORDS
    prompt: str = "Why?"
    settings: dict[str, Any] = field(default_factory=dict)
    transform: str = ""


WAYS = {
    "race": Way("race", {"race_billed": True}),
    "first complete": Way("race", {"race_billed": True, "first_complete": True}),
    "hedge": Way("hedge", {"race_billed": True}),
    "fallback": Way("fallback"),
    "draft": Way("cascade", transform="cascade:fast"),
    "escalated": Way("cascade", words=REFUSAL, transform="cascade:slow"),
    "edits": Way(None, {}, (BLOCK[:30], BLOCK[30:]), EDIT, {"edits": "blocks"}, "edits"),
    "quotes": Way(None, {}, ("It says: ⟦q", ":1⟧ So."), RETRIEVED, {"quotes": True}, "quotes"),
    "guard": Way(None, {}, WORDS, "Why?", {"max_tokens": 100}, "guard"),
}


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("how", [Ending(0.002), Ending(None)], ids=["2 ms", "never"])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
async def test_candidates_above_a_provider_keep_to_the_rule(
    way: Way, how: Ending, stream: bool
) -> None:
    async with ending(EndingProvider(how)) as spare:
        provider = EndingProvider(how, words=way.words)
        more: dict[str, Any] = {}
        if way.strategy is not None:
            route = {"name": "all", "strategy": way.strategy, "upstreams": ["sim", "spare"],
                     "equal_models": "assume", **way.more}  # fmt: skip
            other = {"name": "spare", "base_url": spare.url, "dialect": "openai",
                     "price": {"default": PRICE}}  # fmt: skip
            more = {"routes": (route,), "others": (other,)}
        async with behind(provider, output=way.settings, **more) as proxy:
            for asked in (1, 2):
                if stream:
                    await leave_at_last_event(proxy, prompt=way.prompt)
                else:
                    reply = await proxy.ask(way.prompt)
                    assert reply.status == 200
                    assert ("hit" in reply.verdict) is (asked == 2)
                if asked == 1:
                    calls = provider.calls + spare.calls
                    if not stream:
                        assert way.transform in reply.headers.get("x-headstart-transforms", "")
            await proxy.until(Served, 2)
            assert provider.calls + spare.calls == calls
            [row] = [row for row in proxy.served if row.attempts]
            assert (row.error, row.stored) == (None, True)
            assert (row.prompt_tokens, row.completion_tokens) == TOKENS
            assert [a.outcome for a in row.attempts].count(AttemptOutcome.WON) == 1


async def test_a_rescued_answer_is_booked_whole_though_its_client_left_at_the_last_event() -> None:
    spare = EndingProvider(Ending(None))
    async with ending(spare):
        route = {"name": "all", "strategy": "fallback", "upstreams": ["sim", "spare"],
                 "equal_models": "assume"}  # fmt: skip
        other = {"name": "spare", "base_url": spare.url, "dialect": "openai",
                 "price": {"default": PRICE}}  # fmt: skip
        provider = EndingProvider(Ending(0.0, reset=True), cut=3, words=(TEXT, " And more."))
        spare.words = (TEXT, " And more.")
        async with behind(provider, routes=(route,), others=(other,)) as proxy:
            read = await leave_at_last_event(proxy)
            await proxy.until(Served, 1)
            [row] = proxy.served
            assert b"And more." in read
            assert (row.error, row.stored) == (None, False)
            assert [each.outcome for each in row.attempts] == [
                AttemptOutcome.BROKEN,
                AttemptOutcome.WON,
            ]


# --- immediate repeats -------------------------------------------------------------------------


class Asgi:
    """A client in the gateway's own loop: what it does in ``send`` comes before anything else."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def ask(
        self, at_last: Callable[[], Awaitable[object]] | None = None, **headers: str
    ) -> Reply:
        """Send a request, and call ``at_last`` while its terminal event is being delivered."""
        sent = iter([{"type": "http.request", "body": json.dumps(body("openai", "Why?")).encode()}])
        reply = Reply(0, {}, b"")
        never = asyncio.Event()

        async def receive() -> Any:
            for message in sent:
                return message
            await never.wait()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                reply.status = message["status"]
                reply.headers = {n.decode(): v.decode() for n, v in message["headers"]}
                return
            reply.body += message["body"]
            if b"[DONE]" in message["body"] and at_last is not None:
                await at_last()

        given = {"authorization": "Bearer k", "content-type": "application/json", **headers}
        raw = [(name.encode(), value.encode()) for name, value in given.items()]
        scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1",
                 "method": "POST", "scheme": "http", "path": CHAT, "raw_path": CHAT.encode(),
                 "query_string": b"", "root_path": "", "headers": raw,
                 "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80)}  # fmt: skip
        await self._app(scope, receive, send)
        return reply


@pytest.mark.parametrize("how", [ON_TIME, Ending(0.05), Ending(None)])
@pytest.mark.parametrize(
    ("cache", "skip"),
    [
        ({"mode": "exact-only"}, 0),
        ({"mode": "serve", "audit": {"mode": "off"}}, 0),
        ({"mode": "exact-only"}, 1),
    ],
    ids=["exact", "semantic", "without usage"],
)
async def test_an_exact_repeat_is_a_hit_while_the_last_event_is_being_delivered(
    cache: dict[str, Any], skip: int, how: Ending
) -> None:
    provider = EndingProvider(how, skip=skip)
    async with behind(provider, cache=cache) as proxy:
        client, repeats = Asgi(proxy.app), []

        async def repeat() -> None:
            repeats.append(await client.ask())

        first = await client.ask(repeat)
        assert first.status == repeats[0].status == 200
        assert "hit" in repeats[0].verdict
        assert provider.calls == 1
        await proxy.stored(1)
        later = await client.ask()
        assert "hit" in later.verdict
        assert provider.calls == 1


async def test_a_repeat_joins_where_memory_has_no_room_for_the_entry() -> None:
    provider = EndingProvider(Ending(0.05))
    async with behind(provider, cache={"hot_bytes": 0}) as proxy:
        client, repeats = Asgi(proxy.app), []

        async def repeat() -> None:
            repeats.append(await client.ask())

        await client.ask(repeat)
        assert "joined" in repeats[0].verdict
        await proxy.stored(1)
        later = await client.ask()
        assert "hit" in later.verdict
        assert provider.calls == 1


# --- a wrapped app -----------------------------------------------------------------------------


class App:
    """An app with its own chat route, which has something to do after its last event."""

    def __init__(self, *, after: bytes = b"", fails: bool = False) -> None:
        self.calls = 0
        self.go_on = asyncio.Event()
        self.told = asyncio.Event()
        self.done = asyncio.Event()
        self.frames: list[bytes] = []
        """In place of the answer's own."""
        self._after = after
        self._fails = fails

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return await lifespan(receive, send)
        self.calls += 1
        sent = (await receive())["body"]
        frames, _ = answer(scope["path"], sent, WORDS)
        frames = self.frames or frames
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for each in frames:
            await send({"type": "http.response.body", "body": each, "more_body": True})
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(self._watch(receive))
            await self.go_on.wait()
            watch.cancel()
        if self._fails:
            raise RuntimeError("after the last event")
        if self._after:
            await send({"type": "http.response.body", "body": self._after, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        self.done.set()

    async def _watch(self, receive: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.told.set()
        self.go_on.set()


@contextlib.asynccontextmanager
async def wrapping(app: App) -> AsyncIterator[Proxied]:
    wrapped = HeadstartMiddleware(app, mode="exact-only", store="memory:")
    async with serving(wrapped) as url, aiohttp.ClientSession() as session:
        yield Proxied(url, ScriptedUpstream(), session)


async def test_an_app_may_finish_its_work_after_its_last_event() -> None:
    app = App()
    async with wrapping(app) as proxy:
        await leave_at_last_event(proxy)
        again = await proxy.ask("Why?", stream=True)
        assert "hit" in again.verdict
        assert TEXT.split()[0] in again.body.decode()
        await app.told.wait()
        await app.done.wait()
        assert app.calls == 1


async def test_bytes_after_an_apps_last_event_pass_to_clients_that_read_on() -> None:
    app = App(after=b": and more\n\n")
    async with wrapping(app) as proxy, asyncio.TaskGroup() as group:
        asked = group.create_task(proxy.ask("Why?", stream=True))
        await until(lambda: app.calls == 1)
        again = await leave_at_last_event(proxy)
        assert not app.told.is_set()
        app.go_on.set()
        assert (await asked).body.endswith(b"data: [DONE]\n\n: and more\n\n")
        assert again
        assert app.calls == 1


async def test_an_app_that_fails_after_its_last_event_has_given_its_answer(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A server that ran in this process before may have silenced uvicorn's loggers.
    monkeypatch.setattr(logging.getLogger("uvicorn"), "propagate", True)
    caplog.set_level(logging.ERROR, "uvicorn.error")
    app = App(fails=True)
    app.go_on.set()
    async with wrapping(app) as proxy:
        with contextlib.suppress(aiohttp.ClientPayloadError):
            await proxy.ask("Why?", stream=True)
        assert "hit" in (await proxy.ask("Why?", stream=True)).verdict
        assert app.calls == 1
    assert "after the last event" in caplog.text


async def test_an_app_that_fails_after_a_finish_reason_that_ends_the_answer_has_given_it() -> None:
    app = App(fails=True)
    app.go_on.set()
    path, _ = PATHS["gemini"]
    body = {"contents": [{"role": "user", "parts": [{"text": "Why?"}]}]}
    headers = {"x-goog-api-key": "k"}
    async with wrapping(app) as proxy:
        with contextlib.suppress(aiohttp.ClientPayloadError):
            async with proxy.session.post(proxy.url + path, json=body, headers=headers) as reply:
                await reply.read()
        async with proxy.session.post(proxy.url + path, json=body, headers=headers) as reply:
            assert "hit" in reply.headers["cache-status"]
            assert TEXT.split()[0] in await reply.text()
        assert app.calls == 1


async def test_an_answer_that_is_not_stored_is_not_shared_once_it_is_whole() -> None:
    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return {"id": "up", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}

    function = {"name": "f", "arguments": "{}"}
    call = {"index": 0, "id": "c1", "type": "function", "function": function}
    app = App()
    app.frames = [
        frame(chunk({"role": "assistant", "tool_calls": [call]})),
        frame(chunk({}, "tool_calls")),
        b"data: [DONE]\n\n",
    ]
    async with wrapping(app) as proxy, asyncio.TaskGroup() as group:
        first = group.create_task(proxy.ask("Why?", stream=True))  # it reads to the body's end
        await until(lambda: app.calls == 1)
        await leave_at_last_event(proxy)
        seen = app.calls
        await leave_at_last_event(proxy)
        assert app.calls == seen + 1
        app.go_on.set()
        assert (await first).status == 200
