"""Anthropic's clients, and others, before Claude in Google Cloud: the form of Google's calls."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anthropic
import openai
import pytest

from headstart.config.checks import checked, listed_upstreams
from headstart.dialects.anthropic_requests import as_raw_predict
from headstart.errors import InvalidRequest
from headstart.settings import Settings, UpstreamSettings
from support.proxied import Proxied, proxied
from support.scripted import Received, ScriptedUpstream
from support.serving import serving

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.anyio

MODEL = "claude-opus-4-6@default"
TEXT = "It scatters."
USAGE = {"input_tokens": 9, "output_tokens": 3}
WHOLE = {
    "id": "msg_vrtx_1", "type": "message", "role": "assistant", "model": MODEL,
    "content": [{"type": "text", "text": TEXT}], "stop_reason": "end_turn", "stop_sequence": None,
    "usage": USAGE,
}  # fmt: skip
EVENTS: list[dict[str, Any]] = [
    {"type": "ping"},
    {"type": "message_start", "message": {**WHOLE, "content": [], "stop_reason": None}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": TEXT}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": USAGE},
    {"type": "message_stop"},
]
STREAM = b"".join(
    b"event: %b\ndata: %b\n\n" % (e["type"].encode(), json.dumps(e).encode()) for e in EVENTS
)
ASKED: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 50,
    "system": "Be brief.",
    "messages": [{"role": "user", "content": "Why is the sky blue?"}],
}


@pytest.fixture
def login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a program ``gcloud`` hand out the token "tok"."""
    program = tmp_path / "gcloud"
    program.write_text("#!/bin/sh\necho tok\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "GCE_METADATA_HOST"):
        monkeypatch.delenv(name, raising=False)


def google(**fields: Any) -> dict[str, Any]:
    return {"name": "google", "preset": "vertex-claude", **fields}


def scripted(*, stream: bool) -> ScriptedUpstream:
    upstream = ScriptedUpstream()
    upstream.body = STREAM if stream else json.dumps(WHOLE).encode()
    upstream.headers = [(b"content-type", b"text/event-stream")] if stream else []
    return upstream


def client(proxy: Proxied) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=proxy.url, api_key="callers", max_retries=0)


async def said(messages: Any, *, stream: bool) -> Any:
    """Ask as a user of the client does, and return the text of the answer."""
    if stream:
        async with messages.stream(**ASKED) as events:
            return "".join([each async for each in events.text_stream])
    return (await messages.create(**ASKED)).content[0].text


async def sent_by_the_sdk(*, stream: bool, beta: bool = False) -> Received:
    """Return what Anthropic's own client for Google sends."""
    upstream = scripted(stream=stream)
    async with (
        serving(upstream) as url,
        anthropic.AsyncAnthropicVertex(
            region="r", project_id="p", access_token="tok", base_url=f"{url}/v1", max_retries=0
        ) as asking,
    ):
        await said(asking.beta.messages if beta else asking.messages, stream=stream)
    (call,) = upstream.calls
    return call


@pytest.mark.usefixtures("login")
@pytest.mark.parametrize("beta", [False, True], ids=["plain", "beta"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_google_gets_what_anthropics_own_client_sends(*, stream: bool, beta: bool) -> None:
    expected = await sent_by_the_sdk(stream=stream, beta=beta)
    async with proxied(scripted(stream=stream), provider=google()) as proxy:
        async with client(proxy) as asking:
            messages = asking.beta.messages if beta else asking.messages
            assert [await said(messages, stream=stream) for _ in range(2)] == [TEXT, TEXT]
        first, second = proxy.served
    (call,) = proxy.upstream.calls
    assert call.path == "/v1" + expected.path.partition("/publishers/anthropic")[2]
    assert call.query == expected.query
    assert call.json == expected.json
    assert call.header(b"authorization") == expected.header(b"authorization") == b"Bearer tok"
    assert call.header(b"x-api-key") is None
    assert call.header(b"anthropic-version") is None
    assert first.cost_usd == pytest.approx((9 * 5 + 3 * 25) / 1e6)
    assert second.cost_usd == 0


@pytest.mark.usefixtures("login")
async def test_tokens_are_counted_by_google_as_by_anthropics_own_client() -> None:
    upstream = ScriptedUpstream()
    upstream.body = b'{"input_tokens": 7}'
    asked = {name: ASKED[name] for name in ("model", "messages")}
    async with (
        serving(upstream) as url,
        anthropic.AsyncAnthropicVertex(
            region="r", project_id="p", access_token="tok", base_url=f"{url}/v1", max_retries=0
        ) as own,
        proxied(upstream, provider=google()) as proxy,
        client(proxy) as asking,
    ):
        counts = [await each.messages.count_tokens(**asked) for each in (own, asking)]
    assert [each.input_tokens for each in counts] == [7, 7]
    expected, call = upstream.calls
    assert call.path == "/v1" + expected.path.partition("/publishers/anthropic")[2]
    assert call.json == expected.json


@pytest.mark.usefixtures("login")
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_clients_of_openai_get_claude_from_google(*, stream: bool) -> None:
    provider = google(models={"opus": MODEL})
    async with (
        proxied(scripted(stream=stream), provider=provider) as proxy,
        openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="k") as asking,
    ):
        answer: Any = await asking.chat.completions.create(
            model="opus", messages=[{"role": "user", "content": "Why?"}], stream=stream
        )
        if stream:
            chunks = [each async for each in answer]
            text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        else:
            text = answer.choices[0].message.content
    assert text == TEXT
    (call,) = proxy.upstream.calls
    assert call.path == f"/v1/models/{MODEL}:{'streamRawPredict' if stream else 'rawPredict'}"
    assert call.json["anthropic_version"] == "vertex-2023-10-16"
    assert call.json["max_tokens"] == 8192
    assert "model" not in call.json


@pytest.mark.usefixtures("login")
async def test_an_error_of_google_reaches_the_client_in_its_form() -> None:
    upstream = ScriptedUpstream()
    upstream.status = 404
    told = "Publisher Model `claude-x` was not found."
    upstream.body = json.dumps(
        {"error": {"code": 404, "message": told, "status": "NOT_FOUND"}}
    ).encode()
    async with proxied(upstream, provider=google()) as proxy, client(proxy) as asking:
        with pytest.raises(anthropic.NotFoundError, match="was not found"):
            await asking.messages.create(**ASKED)


@pytest.mark.usefixtures("login")
async def test_paths_that_google_lacks_are_refused_in_clear_words() -> None:
    async with proxied(provider=google()) as proxy, client(proxy) as asking:
        with pytest.raises(anthropic.BadRequestError, match="Google has no such path for Claude"):
            await asking.messages.batches.create(requests=[])
    assert proxy.upstream.calls == []


@pytest.mark.parametrize(
    ("model", "path"),
    [
        ("../x", b"/v1/models/..%2Fx:rawPredict"),
        ("a?b#c", b"/v1/models/a%3Fb%23c:rawPredict"),
        ("claude;x", b"/v1/models/claude%3Bx:rawPredict"),
    ],
)
async def test_a_models_name_leads_to_no_other_path(model: str, path: bytes) -> None:
    body = json.dumps({"model": model}).encode()
    assert as_raw_predict(b"/v1/messages", body, "2023-06-01")[0] == path


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"model": 1}', b'{"model": "m", "stream": 1}']
)
async def test_a_body_of_another_shape_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="names its model"):
        as_raw_predict(b"/v1/messages", body, "2023-06-01")


async def test_a_version_of_the_client_is_kept() -> None:
    body = b'{"model": "m", "anthropic_version": "vertex-2030-01-01"}'
    _, sent = as_raw_predict(b"/v1/messages", body, "2023-06-01")
    assert json.loads(sent) == {"anthropic_version": "vertex-2030-01-01"}


async def test_google_is_not_asked_for_a_list_of_claudes_models() -> None:
    upstream = UpstreamSettings(preset="vertex-claude", region="r", project="p", api_key_env="PATH")
    settings = checked(Settings(upstream=(upstream,)))
    assert list(listed_upstreams(settings)) == []


@pytest.mark.usefixtures("login")
async def test_prompts_are_marked_for_the_cache() -> None:
    tools = [{"name": "find", "description": "word " * 1200, "input_schema": {"type": "object"}}]
    system = [{"type": "text", "text": "You find things. " * 300}]
    steered = {"prompt_cache": "auto", "mode": "off"}
    async with (
        proxied(scripted(stream=False), provider=google(), compression=steered) as proxy,
        client(proxy) as asking,
    ):
        turns: list[dict[str, Any]] = []
        for number in range(6):
            turns.append({"role": "user", "content": f"{number} " + "line of a file " * 300})
            fields: dict[str, Any] = {**ASKED, "system": system, "tools": tools}
            await asking.messages.create(**{**fields, "messages": turns})
            turns.append({"role": "assistant", "content": "Go on."})
    last = proxy.upstream.calls[-1]
    assert last.json["tools"][-1]["cache_control"] == {"type": "ephemeral"}
    assert last.json["messages"][-1]["content"][-1]["cache_control"] == {"type": "ephemeral"}
    assert last.path == f"/v1/models/{MODEL}:rawPredict"


@pytest.mark.usefixtures("login")
async def test_the_list_of_models_has_the_names_given() -> None:
    async with (
        proxied(provider=google(models={"opus": MODEL})) as proxy,
        client(proxy) as asking,
        openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="k", max_retries=0) as other,
    ):
        names = [{each.id for each in (await who.models.list()).data} for who in (asking, other)]
        assert (await asking.models.retrieve("opus")).id == "opus"
    assert names == [{"opus", "claude-opus-4-6"}] * 2
    assert proxy.upstream.calls == []


@pytest.mark.usefixtures("login")
async def test_googles_errors_are_told_to_clients_of_other_dialects() -> None:
    upstream = ScriptedUpstream()
    upstream.status = 429
    error = {"code": 429, "message": "Quota exceeded for x.", "status": "RESOURCE_EXHAUSTED"}
    upstream.body = json.dumps([{"error": error}]).encode()  # as before a stream
    async with (
        proxied(upstream, provider=google()) as proxy,
        openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="k", max_retries=0) as asking,
    ):
        with pytest.raises(openai.RateLimitError, match="Quota exceeded for x"):
            await asking.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "Why?"}], stream=True
            )


@pytest.mark.usefixtures("login")
async def test_anthropic_takes_over_when_google_fails() -> None:
    failing = ScriptedUpstream()
    failing.status, failing.body = 503, b"{}"
    async with serving(failing) as url:
        others = (google(base_url=url),)
        own = {"name": "own", "preset": "anthropic", "api_key_env": "PATH"}
        names = {"upstreams": ["google", "own"], "strategy": "fallback"}
        routes = ({"name": "r", **names},)
        upstream = scripted(stream=False)
        async with (
            proxied(upstream, others, routes, provider=own) as proxy,
            client(proxy) as asking,
        ):
            answer = await asking.messages.create(**{**ASKED, "model": "claude-opus-4-6"})
    assert answer.content[0].text == TEXT
    assert failing.calls[0].path == "/v1/models/claude-opus-4-6:rawPredict"
    (call,) = upstream.calls
    assert (call.path, call.json["model"]) == ("/v1/messages", "claude-opus-4-6")
    assert "anthropic_version" not in call.json
