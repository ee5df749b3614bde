"""HTTPUpstream over real sockets: calls of another dialect, folded calls, keys and errors."""

from __future__ import annotations

import gzip
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from headstart.attempts import Tokens
from headstart.canonical_request import Quirks
from headstart.dialects.anthropic_messages import ANTHROPIC_MESSAGES
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.dialects.openai_responses import OPENAI_RESPONSES
from headstart.dialects.registry import UPSTREAM_DIALECTS
from headstart.errors import InvalidRequest, UpstreamProtocolError
from headstart.middleware.upstreams.http import HTTPUpstream
from headstart.middleware.upstreams.outgoing import neutral_headers
from headstart.settings import DialectName, UpstreamSettings
from headstart.types import Call, Ended, ErrorReported, Finished, Started, TextDelta, UsageReported
from support.candidates import make_call
from support.events import decoded, encoded, folded, said
from support.proxied import proxied
from support.scripted import Received, ScriptedUpstream, chunk
from support.scripted_messages import ScriptedMessages
from support.serving import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headstart.dialects.dialect import Dialect
    from headstart.types import Completion, Headers, Receive, Scope, Send, StreamEvent

pytestmark = pytest.mark.anyio

OPENAI, ANTHROPIC = OPENAI_CHAT, ANTHROPIC_MESSAGES
DIALECTS: dict[str, Dialect] = {OPENAI.name: OPENAI, ANTHROPIC.name: ANTHROPIC}
PATHS = {OPENAI.name: b"/v1/chat/completions", ANTHROPIC.name: b"/v1/messages"}
KEYS: Headers = (
    (b"authorization", b"Bearer caller"),
    (b"user-agent", b"test"),
    (b"openai-organization", b"o"),
    (b"cookie", b"c"),
)


class Answer:
    """A reply, read to its end."""

    status: int
    headers: dict[bytes, bytes]
    transforms: tuple[str, ...]

    def __init__(self) -> None:
        self.pieces: list[tuple[bytes, tuple[StreamEvent, ...]]] = []

    @property
    def body(self) -> bytes:
        return b"".join(data for data, _ in self.pieces)

    @property
    def events(self) -> list[StreamEvent]:
        return [event for _, events in self.pieces for event in events]


def call_of(dialect: Dialect, *, headers: Headers = KEYS, **fields: Any) -> Call:
    streamed, editable = fields.pop("streamed_upstream", False), fields.pop("editable", True)
    asked = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], **fields}
    if dialect is ANTHROPIC:
        asked.setdefault("max_tokens", 9)
    body = msgspec.json.encode(asked)
    return make_call(
        body,
        dialect,
        path=PATHS[dialect.name],
        headers=((b"content-type", b"application/json"), *headers),
        streamed_upstream=streamed,
        editable=editable,
        prompt_tokens=12,
    )


@asynccontextmanager
async def upstream_at(provider: ScriptedUpstream, **options: Any) -> AsyncIterator[HTTPUpstream]:
    async with serving(provider) as url:
        base_url = url + options.pop("base", "")
        credential = options.pop("credential", None)
        settings = UpstreamSettings(name="u", base_url=base_url, **options)
        made = HTTPUpstream(settings, credential=credential)
        try:
            yield made
        finally:
            await made.aclose()


def without_native(completion: Completion) -> Completion:
    """Drop the provider's own word for why it stopped: the client's dialect has no place for it."""
    choices = tuple(
        msgspec.structs.replace(choice, native_finish=None) for choice in completion.choices
    )
    return msgspec.structs.replace(completion, choices=choices)


async def read(upstream: HTTPUpstream, call: Call) -> Answer:
    answer = Answer()
    async with await upstream.send(call) as reply:
        answer.status, answer.headers = reply.status, dict(reply.headers)
        answer.transforms = reply.transforms
        async for piece in reply.pieces:
            answer.pieces.append((piece.data, piece.events))
    return answer


async def test_openai_client_streams_from_anthropic() -> None:
    provider = ScriptedMessages()
    call = call_of(OPENAI, stream=True, stream_options={"include_usage": True}, logprobs=True)
    async with upstream_at(provider, dialect=ANTHROPIC.setting, models={"m": "claude"}) as upstream:
        answer = await read(upstream, call)
    (received,) = provider.calls
    assert received.path == "/v1/messages"
    assert received.json["model"] == "claude"
    assert received.json["stream"] is True
    assert received.header(b"x-api-key") == b"caller"
    assert received.header(b"anthropic-version") == b"2023-06-01"
    assert received.header(b"user-agent") == b"test"
    foreign = {b"authorization", b"openai-organization", b"cookie"}
    assert not foreign & {name for name, _ in received.headers}
    assert answer.headers[b"content-type"] == OPENAI.content_types.stream
    assert {"translated:anthropic-messages", "model"} <= set(answer.transforms)
    completion = folded(decoded(OPENAI, answer.body))
    assert completion == without_native(folded(answer.events))
    assert said(completion.choices[0]) == [("text", "Hello from upstream")]
    assert completion.model == "claude-real"
    assert completion.usage is not None
    assert OPENAI.tokens(completion.usage) == Tokens(30, 20, 15, 5, 0)
    assert answer.body.endswith(b"data: [DONE]\n\n")


async def test_anthropic_client_streams_from_openai() -> None:
    provider = ScriptedUpstream()
    headers: Headers = ((b"x-api-key", b"caller"), (b"anthropic-beta", b"b"))
    call = call_of(ANTHROPIC, stream=True, headers=headers)
    async with upstream_at(provider, dialect=OPENAI.setting) as upstream:
        answer = await read(upstream, call)
    (received,) = provider.calls
    assert received.path == "/v1/chat/completions"
    assert received.header(b"authorization") == b"Bearer caller"
    assert received.header(b"anthropic-beta") is None
    assert received.json["stream_options"] == {"include_usage": True}
    assert b'"usage":{"input_tokens":12,' in answer.body.partition(b"\n\n")[0]
    completion = folded(decoded(ANTHROPIC, answer.body))
    assert said(completion.choices[0]) == [("text", "Hello from upstream")]
    assert completion.choices[0].finish == "stop"
    assert completion.usage is not None
    counted = ANTHROPIC.tokens(completion.usage)
    assert (counted.prompt, counted.completion) == (30, 20)


@pytest.mark.parametrize("fold", [True, False])
async def test_whole_answer_is_translated(fold: bool) -> None:
    provider = ScriptedMessages()
    call = call_of(OPENAI, streamed_upstream=fold)
    async with upstream_at(provider, dialect=ANTHROPIC.setting) as upstream:
        answer = await read(upstream, call)
    assert bool(provider.calls[0].json.get("stream")) is fold
    assert answer.headers[b"content-type"] == b"application/json"
    document = json.loads(answer.body)
    assert document["id"].startswith("chatcmpl-")
    assert document["choices"][0]["message"]["content"] == "Hello from upstream"
    assert document["usage"]["total_tokens"] == 50
    assert without_native(folded(answer.events)) == folded(OPENAI.decode_body(200, answer.body))


async def test_folded_call_of_the_same_dialect_streams_and_gives_one_body() -> None:
    provider = ScriptedUpstream()
    async with upstream_at(provider) as upstream:
        answer = await read(upstream, call_of(OPENAI, streamed_upstream=True))
    (received,) = provider.calls
    assert received.json["stream"] is True
    assert received.json["stream_options"] == {"include_usage": True}
    assert set(answer.transforms) == {"fold", "include-usage"}
    assert answer.headers[b"content-type"] == b"application/json"
    assert [data for data, _ in answer.pieces if data] == [answer.body]
    document = json.loads(answer.body)
    assert document["id"] == "up-1"
    assert document["choices"][0]["message"]["content"] == "Hello from upstream"
    assert document["usage"]["prompt_tokens"] == 30


@pytest.mark.parametrize("own", ["openai", "anthropic"])
async def test_a_folded_stream_may_end_its_lines_with_carriage_returns(own: Any) -> None:
    usage = {"prompt_tokens": 30, "completion_tokens": 20, "total_tokens": 50}
    choice = {"index": 0, "delta": {"content": "Hello"}, "finish_reason": "stop"}
    last: dict[str, Any] = {"choices": [choice], "usage": usage}
    raw = b"data: " + msgspec.json.encode(last)
    if own == "anthropic":
        begun = {"id": "m", "model": "m", "content": [], "usage": {"input_tokens": 30}}
        text, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": "Hello"}
        ending = {"delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 20}}
        events: list[dict[str, Any]] = [
            {"type": "message_start", "message": begun},
            {"type": "content_block_start", "index": 0, "content_block": text},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "message_delta", **ending},
        ]
        raw = b"\r\r".join(b"data: " + msgspec.json.encode(each) for each in events)

    async def streamed(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": raw + b"\r\r"})

    async with serving(streamed, lifespan="off") as url:
        upstream = HTTPUpstream(UpstreamSettings(name="u", base_url=url, dialect=own))
        answer = await read(upstream, call_of(OPENAI, streamed_upstream=True))
        await upstream.aclose()
    document = json.loads(answer.body)
    assert document["choices"][0]["message"]["content"] == "Hello"
    assert document["choices"][0]["finish_reason"] == "stop"
    assert document["usage"]["completion_tokens"] == 20


async def test_stream_cut_while_it_is_folded_is_an_error() -> None:
    provider = ScriptedUpstream()
    provider.terminal = False
    async with upstream_at(provider) as upstream:
        with pytest.raises(UpstreamProtocolError, match="ended before its answer"):
            await read(upstream, call_of(OPENAI, streamed_upstream=True))


async def test_error_comes_in_the_clients_dialect_with_its_status_and_wait() -> None:
    provider = ScriptedMessages()
    error = {"type": "overloaded_error", "message": "busy"}
    wait = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "3.5s"}
    provider.status = 529
    provider.body = json.dumps({"type": "error", "error": {**error, "details": [wait]}}).encode()
    provider.headers = [(b"request-id", b"req_up")]
    async with upstream_at(provider, dialect=ANTHROPIC.setting) as upstream:
        answer = await read(upstream, call_of(OPENAI, stream=True))
    assert answer.status == 503
    assert answer.headers[b"content-type"] == b"application/json"
    assert answer.headers[b"x-request-id"] == b"req_up"
    assert answer.headers[b"retry-after"] == b"4"
    assert json.loads(answer.body)["error"]["message"] == "busy"
    assert answer.events == [ErrorReported(message="busy", code="overloaded_error", status=503)]


async def test_upstreams_own_key_takes_the_callers_place() -> None:
    provider = ScriptedMessages()
    own: Headers = ((b"x-api-key", b"ours"),)
    async with upstream_at(provider, dialect=ANTHROPIC.setting, credential=own) as upstream:
        await read(upstream, call_of(OPENAI))
    keys = [value for name, value in provider.calls[0].headers if b"key" in name]
    assert keys == [b"ours"]


@pytest.mark.parametrize("dialect", [OPENAI, ANTHROPIC], ids=lambda each: each.name)
@pytest.mark.parametrize("name", ["authorization", "Authorization"])
@pytest.mark.parametrize("credential", [None, ((b"authorization", b"Bearer ours"),)])
async def test_a_secret_in_the_settings_headers_is_the_only_one_of_its_name(
    credential: Headers | None, name: str, dialect: Dialect
) -> None:
    provider = ScriptedUpstream()
    headers = {name: "Bearer set", "x-tag": "set"}
    async with upstream_at(provider, credential=credential, headers=headers) as upstream:
        await read(upstream, call_of(dialect, headers=(*KEYS, (b"x-tag", b"caller"))))
    sent = provider.calls[0].headers
    assert [value for name, value in sent if name == b"authorization"] == [b"Bearer set"]
    assert (b"x-tag", b"set") in sent


@pytest.mark.parametrize("stream", [True, False])
async def test_fields_and_quirks_edit_the_clients_own_body(stream: bool) -> None:
    provider = ScriptedUpstream()
    quirks = Quirks(drops=("logit_bias",), stream_usage=False)
    options = {"quirks": quirks, "fields": {"service_tier": "flex"}, "models": {"m": "real"}}
    async with upstream_at(provider, **options) as upstream:
        answer = await read(upstream, call_of(OPENAI, stream=stream, logit_bias={"1": 2}, seed=1))
    (received,) = provider.calls
    assert received.json == {
        "model": "real",
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": stream,
        "seed": 1,
        "service_tier": "flex",
    }
    assert set(answer.transforms) == {"dropped:logit_bias", "model", "fields"}


@pytest.mark.parametrize("client", [OPENAI, ANTHROPIC])
async def test_frame_that_cannot_be_read_ends_the_stream_apart_from_the_others(
    client: Dialect,
) -> None:
    provider = ScriptedUpstream()
    provider.headers = [(b"content-type", b"text/event-stream")]
    good = chunk({"role": "assistant", "content": "a"})
    provider.body = good + b'data: {"choi\n\n' + chunk({"content": "b"}) + chunk({}, "stop")
    async with upstream_at(provider, dialect=OPENAI.setting) as upstream:
        answer = await read(upstream, call_of(client, stream=True))
    *_, (data, events) = answer.pieces
    assert isinstance(events[0], ErrorReported)
    assert isinstance(decoded(client, data)[0], ErrorReported)
    before = b"".join(data for data, _ in answer.pieces[:-1])
    assert b'"a"' in before
    assert b"error" not in before
    assert b'"b"' not in answer.body


async def test_frame_is_passed_on_when_it_is_whole() -> None:
    provider = ScriptedUpstream()
    provider.headers = [(b"content-type", b"text/event-stream")]
    provider.body = chunk({"content": "a"}) + b'data: {"choices":[{"ind'
    async with (
        upstream_at(provider) as upstream,
        await upstream.send(call_of(OPENAI, stream=True)) as r,
    ):
        pieces = [piece.data async for piece in r.pieces]
    assert pieces[0] == chunk({"content": "a"})
    assert b"".join(pieces) == provider.body


@pytest.mark.parametrize(
    ("base", "path", "sent"),
    [
        ("", b"/v1/chat/completions", "/v1/chat/completions"),
        ("/openai/v1", b"/v1/chat/completions", "/openai/v1/chat/completions"),
        ("/v1beta", b"/v1beta/models/g:generateContent", "/v1beta/models/g:generateContent"),
        ("/v1beta", b"/v1/models/g:generateContent", "/v1beta/models/g:generateContent"),
        ("/v2", b"/v2/chat", "/v2/chat"),
        ("", b"/v2/chat", "/v2/chat"),
    ],
)
async def test_path_takes_the_version_of_the_base_url(base: str, path: bytes, sent: str) -> None:
    upstream = HTTPUpstream(UpstreamSettings(name="u", base_url="http://h" + base))
    assert str(upstream.url(path, b"")) == "http://h" + sent


@pytest.mark.parametrize(
    ("dialect", "base", "path", "sent"),
    [
        ("anthropic", "/anthropic", b"/v1/messages", "/anthropic/v1/messages"),
        ("anthropic", "/v1/my/claude", b"/v1/messages", "/v1/my/claude/v1/messages"),
        ("anthropic", "/anthropic/v1", b"/v1/messages", "/anthropic/v1/messages"),
        ("gemini", "/google", b"/v1beta/models/g:x", "/google/v1beta/models/g:x"),
        ("gemini", "/google/", b"/ws/google.ai.x", "/google/ws/google.ai.x"),
        ("gemini", "/v1beta", b"/upload/v1/files", "/upload/v1/files"),
        ("gemini", "/google", b"/upload/v1beta/files", "/google/upload/v1beta/files"),
        ("gemini", "/google", b"/v1alpha/auth_tokens", "/google/v1alpha/auth_tokens"),
        ("gemini", "/v1/projects/p/publishers/google", b"/v1beta/models/g:x",
         "/v1/projects/p/publishers/google/models/g:x"),
        ("cohere", "/cohere", b"/v2/chat", "/cohere/v2/chat"),
        ("openai", "/team", b"/v1/chat/completions", "/team/chat/completions"),
    ],
)  # fmt: skip
async def test_a_base_url_has_the_form_of_the_sdks_of_its_dialect(
    dialect: DialectName, base: str, path: bytes, sent: str
) -> None:
    upstream = HTTPUpstream(UpstreamSettings(name="u", base_url="http://h" + base, dialect=dialect))
    assert str(upstream.url(path, b"")) == "http://h" + sent


@pytest.mark.parametrize(
    ("headers", "query"),
    [
        (((b"authorization", b"Bearer k"),), b""),
        (((b"x-api-key", b"k"),), b""),
        (((b"x-goog-api-key", b"k"),), b""),
        ((), b"alt=sse&key=k"),
    ],
)
@pytest.mark.parametrize(
    ("dialect", "sent"),
    [
        ("openai-chat", ("authorization", "Bearer k")),
        ("cohere-chat", ("authorization", "Bearer k")),
        ("anthropic-messages", ("x-api-key", "k")),
        ("gemini-generate", ("x-goog-api-key", "k")),
    ],
)
async def test_callers_key_takes_the_providers_form(
    headers: Headers, query: bytes, dialect: str, sent: tuple[str, str]
) -> None:
    across = neutral_headers(headers, query, None, UPSTREAM_DIALECTS[dialect].key_header)
    assert [pair for pair in across if pair[1].endswith("k")] == [sent]


async def compressed(scope: Scope, receive: Receive, send: Send) -> None:
    """An app that compresses its answers, whatever it was asked for."""
    while (await receive()).get("more_body"):
        pass
    headers = [(b"content-type", b"application/json"), (b"content-encoding", b"gzip")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": gzip.compress(b"{}")})


@pytest.mark.parametrize(
    ("own", "folded_call", "readable"),
    [("anthropic", False, False), ("openai", True, False), ("openai", False, True)],
)
async def test_a_compressed_answer_is_only_an_error_where_it_has_to_be_read(
    own: Any, *, folded_call: bool, readable: bool
) -> None:
    call = call_of(OPENAI, streamed_upstream=folded_call)
    async with serving(compressed, lifespan="off") as url:
        upstream = HTTPUpstream(UpstreamSettings(name="u", base_url=url, dialect=own))
        if readable:
            assert gzip.decompress((await read(upstream, call)).body) == b"{}"
        else:
            with pytest.raises(UpstreamProtocolError, match="compressed its answer"):
                await read(upstream, call)
        await upstream.aclose()


@pytest.mark.parametrize("own_key", [None, "own-key"])
async def test_a_relayed_call_of_a_further_dialect_has_the_callers_key_in_both_forms(
    own_key: str | None,
) -> None:
    """Its provider may take the one or the other. With a key of its own it gets that alone."""
    provider = ScriptedUpstream()
    credential = own_key and ((b"authorization", f"Bearer {own_key}".encode()),)
    options = {"also_speaks": ("anthropic",), "credential": credential}
    async with upstream_at(provider, **options) as upstream:
        call = call_of(ANTHROPIC, headers=((b"x-api-key", b"caller"),))
        await read(upstream, msgspec.structs.replace(call, request=None, endpoint="relay"))
        both = (*call.headers, (b"authorization", b"Bearer other"))
        await read(upstream, msgspec.structs.replace(call, request=None, headers=both))
    first, second = ([*each.headers] for each in provider.calls)
    sent = dict(first)
    assert sent[b"authorization"] == f"Bearer {own_key or 'caller'}".encode()
    assert sent.get(b"x-api-key") == (None if own_key else b"caller")
    keys = [value for name, value in second if name == b"authorization"]
    assert keys == [f"Bearer {own_key or 'other'}".encode()]


ZEROS = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("reported", [None, ZEROS])
async def test_a_translated_answer_without_usage_has_an_estimate(
    reported: dict[str, int] | None, *, stream: bool
) -> None:
    """Anthropic's clients sum up these numbers. The books find no usage and mark their estimate."""
    server, text = ScriptedUpstream(), "Hello from upstream"
    usage = {} if reported is None else {"usage": reported}
    if stream:
        last = b"data: " + json.dumps({"choices": [], **usage}).encode() + b"\n\ndata: [DONE]\n\n"
        server.body = chunk({"content": text}) + chunk({}, "stop") + last
        server.headers = [(b"content-type", b"text/event-stream")]
    else:
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        server.body = json.dumps({"id": "1", "model": "m", "choices": [choice], **usage}).encode()
    async with upstream_at(server, dialect=OPENAI.setting) as upstream:
        answer = await read(upstream, call_of(ANTHROPIC, stream=stream))
    events = decoded(ANTHROPIC, answer.body) if stream else ANTHROPIC.decode_body(200, answer.body)
    completion = folded(events)
    assert said(completion.choices[0]) == [("text", text)]
    assert completion.usage is not None
    tokens = ANTHROPIC.tokens(completion.usage)
    assert (tokens.prompt > 0, tokens.completion) == (True, round(len(text) / 4))
    booked = [event.usage for event in answer.events if isinstance(event, UsageReported)]
    assert all(ANTHROPIC.tokens(each) == Tokens() for each in booked)


class BreaksOffOnce(ScriptedUpstream):
    """Its first answer breaks off, and no answer has usage."""

    async def _answer(self, call: Received, send: Send) -> None:
        self.headers = [(b"content-type", b"text/event-stream")]
        broken = b'data: {"error": {"message": "overloaded"}}\n\n'
        end = chunk({"content": "over it."}) + chunk({}, "stop") + b"data: [DONE]\n\n"
        self.body = chunk({"content": "The fox jumps "}) + (broken if self.calls[1:] == [] else end)
        await super()._answer(call, send)


@pytest.mark.parametrize("client", [ANTHROPIC, OPENAI])
async def test_a_rescued_stream_has_an_estimate_if_it_was_translated(client: Dialect) -> None:
    async with proxied(BreaksOffOnce()) as proxy:
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
        body |= {"max_tokens": 9} if client is ANTHROPIC else {}
        url, headers = proxy.url + PATHS[client.name].decode(), {"authorization": "Bearer k"}
        async with proxy.session.post(url, json=body, headers=headers) as response:
            answer = await response.read()
        assert len(proxy.upstream.calls) == 2
    completion = folded(decoded(client, answer))
    assert said(completion.choices[0]) == [("text", "The fox jumps over it.")]
    if client is OPENAI:
        assert completion.usage is None
    else:
        assert completion.usage is not None
        assert client.tokens(completion.usage).completion == round(22 / 4)


WORDS = ("The ", "quick ", 'brown "sequence_number":7,\n', "fox ", "jumps ", "over ", "it.")


class BreaksOffAmidWords(ScriptedUpstream):
    """Its first answer breaks off after five words."""

    def __init__(self, provider: Dialect) -> None:
        super().__init__()
        self._provider = provider

    async def _answer(self, call: Received, send: Send) -> None:
        self.headers = [(b"content-type", b"text/event-stream")]
        first = not self.calls[1:]
        texts = [TextDelta(text=word) for word in (WORDS[:5] if first else WORDS)]
        events: list[StreamEvent] = [Started(id="i", model="m"), *texts]
        if first:
            events.append(ErrorReported(message="overloaded"))
        else:
            events += [Finished(reason="stop"), Ended()]
        self.body = encoded(self._provider, events)
        await super()._answer(call, send)


@pytest.mark.parametrize("provider", [OPENAI_RESPONSES, OPENAI, ANTHROPIC], ids=lambda d: d.name)
async def test_the_events_of_a_rescued_stream_are_numbered_one_by_one(provider: Dialect) -> None:
    async with proxied(
        BreaksOffAmidWords(provider), provider={"dialect": provider.setting}
    ) as proxy:
        url, headers = proxy.url + "/v1/responses", {"authorization": "Bearer k"}
        body = {"model": "m", "stream": True, "input": "Hi", "max_output_tokens": 99}
        async with proxy.session.post(url, json=body, headers=headers) as response:
            answer = await response.read()
        assert len(proxy.upstream.calls) == 2
    lines = [line[5:] for line in answer.splitlines() if line.startswith(b"data:")]
    told = [json.loads(line) for line in lines]
    assert "".join(each.get("delta", "") for each in told) == "".join(WORDS)
    assert told[-1]["type"] == "response.completed"
    assert [each["sequence_number"] for each in told] == list(range(len(told)))


async def test_tools_that_only_another_provider_runs_are_left_out_if_the_operator_says_so() -> None:
    look = {"name": "look", "input_schema": {"type": "object", "properties": {}}}
    kind, provider = "web_search_20250305", ScriptedUpstream()
    call = call_of(ANTHROPIC, tools=[look, {"type": kind, "name": "web_search"}])
    async with upstream_at(provider, dialect=OPENAI.setting) as upstream:
        with pytest.raises(InvalidRequest, match=f"^tools of type {kind}: .*`drops`"):
            await upstream.send(call)
    quirks = Quirks(drops=(kind,))
    async with upstream_at(provider, dialect=OPENAI.setting, quirks=quirks) as upstream:
        answer = await read(upstream, call)
    (received,) = provider.calls
    assert [tool["function"]["name"] for tool in received.json["tools"]] == ["look"]
    assert f"dropped:{kind}" in answer.transforms
    quirks = Quirks(drops=(kind,), refuse=True)
    async with upstream_at(provider, dialect=OPENAI.setting, quirks=quirks) as upstream:
        with pytest.raises(InvalidRequest, match=f"^{kind}: "):
            await upstream.send(call)
