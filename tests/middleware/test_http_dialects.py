"""HTTPUpstream over real sockets against simulated providers that speak Gemini and Cohere."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from headstart.canonical_request import Quirks
from headstart.dialects.anthropic_messages import ANTHROPIC_MESSAGES
from headstart.dialects.cohere_chat import COHERE_CHAT
from headstart.dialects.gemini_generate import GEMINI_GENERATE
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.errors import InvalidRequest, UpstreamRefused
from headstart.lab.simulator import Simulator
from headstart.lab.simulator.faults import Status
from headstart.middleware.upstreams.http import HTTPUpstream
from headstart.middleware.upstreams.target import Target
from headstart.policies.routing.measures import UpstreamModel
from headstart.settings import UpstreamSettings
from headstart.types import Call, Ended
from support.candidates import UNIX, Targets, make_call
from support.events import decoded, folded, said
from support.gemini_stream import OPERATIONS
from support.scripted import ScriptedUpstream, chunk
from support.scripted_messages import ScriptedMessages
from support.serving import serving
from support.simulated import simulated

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headstart.dialects.dialect import Dialect, UpstreamDialect
    from headstart.lab.simulator.simulated_calls import EndedCall
    from headstart.reply import Reply

pytestmark = pytest.mark.anyio

OPENAI, ANTHROPIC, GEMINI, COHERE = (
    OPENAI_CHAT,
    ANTHROPIC_MESSAGES,
    GEMINI_GENERATE,
    COHERE_CHAT,
)
DIALECTS: dict[str, Dialect] = {each.name: each for each in (OPENAI, ANTHROPIC, GEMINI)}
WEATHER = {"name": "weather", "parameters": {"type": "object", "properties": {}}}


@asynccontextmanager
async def upstream_to(
    url: str, dialect: UpstreamDialect, **options: Any
) -> AsyncIterator[HTTPUpstream]:
    place = UpstreamSettings(name="u", base_url=url, dialect=dialect.setting, **options)
    upstream = HTTPUpstream(place)
    try:
        yield upstream
    finally:
        await upstream.aclose()


def call_of(
    dialect: Dialect, path: bytes, *, streamed_upstream: bool = False, **asked: Any
) -> Call:
    body, query = msgspec.json.encode(asked), b""
    request = None
    if dialect is GEMINI:
        query = b"alt=sse" if b":stream" in path else b""
        request = OPERATIONS.parse(path, query, body)
    return make_call(
        body,
        dialect,
        path=path,
        query_string=query,
        headers=((b"content-type", b"application/json"), (b"authorization", b"Bearer k")),
        request=request,
        streamed_upstream=streamed_upstream,
    )


def chat(*, streamed_upstream: bool = False, **asked: Any) -> Call:
    messages = [{"role": "user", "content": "What is the weather in Bonn?"}]
    document = {"model": "m", "messages": messages, **asked}
    return call_of(OPENAI, b"/v1/chat/completions", streamed_upstream=streamed_upstream, **document)


def generate(method: bytes, *, streamed_upstream: bool = False) -> Call:
    contents = [{"role": "user", "parts": [{"text": "Hi"}]}]
    return call_of(
        GEMINI,
        b"/v1beta/models/m:" + method,
        streamed_upstream=streamed_upstream,
        contents=contents,
    )


async def body_of(reply: Reply) -> bytes:
    return b"".join([piece.data async for piece in reply.pieces])


async def ask(
    call: Call, dialect: UpstreamDialect, simulator: Simulator | None = None, **options: Any
) -> tuple[bytes, EndedCall]:
    """Return the answer of a simulated provider, and how the provider remembers the call."""
    simulator = simulator or Simulator()
    async with (
        simulated(simulator) as url,
        upstream_to(url, dialect, **options) as upstream,
        await upstream.send(call) as reply,
    ):
        assert reply.status == 200
        body = await body_of(reply)
    (record,) = simulator.stats.ended_calls(0)
    return body, record


@pytest.mark.parametrize("method", [b"generateContent", b"streamGenerateContent"])
async def test_a_gemini_client_gets_geminis_own_answer_under_an_alias(method: bytes) -> None:
    answer, record = await ask(generate(method), GEMINI, models={"m": "models/gemini-real"})
    assert (record.model, record.stream) == ("gemini-real", method[0:1] == b"s")
    if record.stream:
        assert folded([*decoded(GEMINI, answer), Ended()]).choices[0].finish == "stop"
    else:
        assert json.loads(answer)["modelVersion"] == "gemini-real"


async def test_a_folded_gemini_call_streams_and_gives_one_body() -> None:
    answer, record = await ask(generate(b"generateContent", streamed_upstream=True), GEMINI)
    assert record.stream
    whole, _ = await ask(generate(b"generateContent"), GEMINI)
    texts = [json.loads(each)["candidates"][0]["content"]["parts"] for each in (answer, whole)]
    assert "".join(part["text"] for part in texts[0]) == texts[1][0]["text"]


@pytest.mark.parametrize("dialect", [COHERE, GEMINI])
@pytest.mark.parametrize(
    ("stream", "streamed_upstream"), [(True, False), (False, False), (False, True)]
)
async def test_an_openai_client_is_answered_in_its_own_dialect(
    dialect: UpstreamDialect, stream: bool, streamed_upstream: bool
) -> None:
    simulator = Simulator()
    call = chat(
        stream=stream,
        streamed_upstream=streamed_upstream,
        stream_options={"include_usage": True} if stream else None,
    )
    answer, record = await ask(call, dialect, simulator, models={"m": "real"})
    assert (record.model, record.stream) == ("real", stream or streamed_upstream)
    events = decoded(OPENAI, answer) if stream else [*OPENAI.decode_body(200, answer)]
    completion = folded(events)
    assert completion.choices[0].finish == "stop"
    assert said(completion.choices[0])[0][0] == "text"
    assert completion.usage is not None
    assert OPENAI.tokens(completion.usage).completion == record.answer_tokens


@pytest.mark.parametrize("dialect", [COHERE, GEMINI, ANTHROPIC])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_of_functions_gets_its_calls_as_functions(
    dialect: UpstreamDialect, stream: bool
) -> None:
    call = chat(stream=stream, functions=[WEATHER], function_call={"name": "weather"})
    answer, _ = await ask(call, dialect)
    events = decoded(OPENAI, answer) if stream else [*OPENAI.decode_body(200, answer)]
    (choice,) = folded(events).choices
    assert choice.finish == "function_call"
    (part,) = [each for each in choice.parts if getattr(each, "kind", "") == "function_call"]
    assert (part.id, part.name) == ("", "weather")  # type: ignore[union-attr]
    assert b"tool_call" not in answer


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_that_called_tools_says_so_whatever_the_provider_says(
    stream: bool,
) -> None:
    provider = ScriptedMessages()
    provider.content = [{"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}}]
    tools = [{"type": "function", "function": WEATHER}]
    async with (
        serving(provider) as url,
        upstream_to(url, ANTHROPIC) as upstream,
        await upstream.send(chat(stream=stream, tools=tools)) as reply,
    ):
        answer = await body_of(reply)
    events = decoded(OPENAI, answer) if stream else [*OPENAI.decode_body(200, answer)]
    assert folded(events).choices[0].finish == "tool_calls"


async def test_a_same_dialect_finish_stays_as_it_is() -> None:
    provider = ScriptedUpstream()
    provider.headers = [(b"content-type", b"text/event-stream")]
    called = {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}]}
    provider.body = chunk(called) + chunk({}, "stop") + b"data: [DONE]\n\n"
    async with (
        serving(provider) as url,
        upstream_to(url, OPENAI) as upstream,
        await upstream.send(chat(streamed_upstream=True)) as reply,
    ):
        assert json.loads(await body_of(reply))["choices"][0]["finish_reason"] == "stop"


async def test_anthropics_own_bodies_lose_what_the_upstream_rejects() -> None:
    provider = ScriptedMessages()
    quirks = Quirks(drops=("service_tier",), sampling=False)
    asked: dict[str, Any] = {
        "model": "m",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "Hi"}],
    }
    call = call_of(
        ANTHROPIC, b"/v1/messages", **asked, temperature=1, service_tier="auto", stream=True
    )
    plain = call_of(ANTHROPIC, b"/v1/messages", **asked)
    async with (
        serving(provider) as url,
        upstream_to(url, ANTHROPIC, quirks=quirks) as upstream,
    ):
        async with await upstream.send(call) as reply:
            await body_of(reply)
            assert reply.transforms == ("dropped:service_tier", "dropped:temperature")
        async with await upstream.send(plain) as reply:
            await body_of(reply)
    assert provider.calls[0].json == {**asked, "stream": True}
    assert provider.calls[1].body == plain.body


async def test_a_request_that_cannot_be_expressed_makes_no_call() -> None:
    targets = Targets()
    async with upstream_to("http://127.0.0.1:9", COHERE) as upstream:
        settings = UpstreamSettings(name="u")
        target = Target(upstream, settings, targets.states, lambda: UNIX)
        with pytest.raises(InvalidRequest, match="web_search_options"):
            async with await target.send(chat(web_search_options={})):
                raise AssertionError
        assert target.estimate(chat()).ready_in_s == 0.0
    assert targets.outcomes("01H") == []
    assert targets.states.measures.in_flight(UpstreamModel("u", "m")) == 0


@pytest.mark.parametrize("client", [OPENAI, GEMINI])
async def test_the_wait_in_a_gemini_error_holds_whoever_asked(client: Dialect) -> None:
    targets, call = Targets(), chat() if client is OPENAI else generate(b"generateContent")
    info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "7.5s"}
    error = {"code": 429, "message": "Slow down", "status": "RESOURCE_EXHAUSTED"}
    body = json.dumps({"error": {**error, "details": [info]}})
    simulator = Simulator(fault=Status(status=429, body=body))
    async with simulated(simulator) as url, upstream_to(url, GEMINI) as upstream:
        settings = UpstreamSettings(name="u")
        target = Target(upstream, settings, targets.states, lambda: UNIX, key="1")
        with pytest.raises(UpstreamRefused) as caught:
            async with await target.send(call):
                raise AssertionError
        assert dict(caught.value.headers)[b"retry-after"] == b"8"
        assert 5.0 < target.estimate(call).ready_in_s <= 8.0


MESSAGE: dict[str, Any] = {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize("stream", [True, False])
async def test_a_further_dialect_passes_byte_for_byte(stream: bool) -> None:
    asked: dict[str, Any] = {
        "model": "m",
        **MESSAGE,
        "temperature": 1.0,
        "tool_choice": {"type": "auto"},
    }
    call = call_of(ANTHROPIC, b"/v1/messages", **asked, stream=stream)
    provider = ScriptedMessages()
    options: dict[str, Any] = {
        "also_speaks": ("anthropic",),
        "quirks": Quirks(drops=("tool_choice",), renames={"max_tokens": "limit"}, sampling=False),
    }
    async with (
        serving(provider) as url,
        upstream_to(url, OPENAI, **options) as upstream,
        await upstream.send(call) as reply,
    ):
        answer = await body_of(reply)
    (received,) = provider.calls
    assert (received.path, received.body) == ("/v1/messages", call.body), "the quirks are Chat's"
    assert reply.transforms == ()
    events = decoded(ANTHROPIC, answer) if stream else [*ANTHROPIC.decode_body(200, answer)]
    assert folded(events).choices[0].finish == "stop"


async def test_a_caller_with_a_further_dialects_header_is_known_by_the_main_one() -> None:
    call = call_of(ANTHROPIC, b"/v1/messages", model="m", **MESSAGE)
    call = msgspec.structs.replace(call, headers=((b"x-api-key", b"mine"),))
    provider = ScriptedMessages()
    async with (
        serving(provider) as url,
        upstream_to(url, OPENAI, also_speaks=("anthropic",)) as upstream,
        await upstream.send(call) as reply,
    ):
        await body_of(reply)
    (received,) = provider.calls
    assert received.header(b"x-api-key") == b"mine"
    assert received.header(b"authorization") == b"Bearer mine"


async def test_other_dialects_are_translated_into_the_main_one() -> None:
    provider = ScriptedMessages()
    async with (
        serving(provider) as url,
        upstream_to(url, ANTHROPIC, also_speaks=("gemini",)) as upstream,
        await upstream.send(chat()) as reply,
    ):
        await body_of(reply)
    assert provider.calls[0].path == "/v1/messages"
    assert reply.transforms[0] == "translated:anthropic-messages"
