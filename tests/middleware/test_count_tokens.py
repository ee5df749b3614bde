"""Counts of tokens: which provider is asked, and the answer when none can be asked."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from support.raw_upstream import RawUpstream
from support.relaying import relay_to, says

pytestmark = pytest.mark.anyio

COUNT = "/v1/messages/count_tokens"
RESPONSES_COUNT = "/v1/responses/input_tokens"
PICTURE = "data:image/png;base64," + "iVBORw0KGgo" * 9_000
ANTHROPIC = {"dialect": "anthropic"}
NO_MODEL = b'{"type":"error","error":{"type":"not_found_error"}}'
COUNTED = says("200 OK", b'{"input_tokens":41}')


def prompt(model: str = "claude", text: str = "hi") -> bytes:
    return json.dumps({"model": model, "messages": [{"role": "user", "content": text}]}).encode()


async def test_an_upstream_of_the_dialect_counts_under_its_name_of_the_model() -> None:
    upstream = RawUpstream(COUNTED)
    options = ({**ANTHROPIC, "models": {"claude": "claude-real"}},)
    async with relay_to(upstream, routes=(), options=options) as gate:
        status, headers, body = await gate.ask(COUNT, prompt())
    assert (status, body) == (200, b'{"input_tokens":41}')
    assert json.loads(upstream.body())["model"] == "claude-real"
    assert "x-headstart-estimated" not in headers


async def test_a_fallback_counts_when_the_first_upstream_is_down() -> None:
    second = RawUpstream(COUNTED)
    async with relay_to(None, second, options=(ANTHROPIC, ANTHROPIC)) as gate:
        assert (await gate.ask(COUNT, prompt()))[2] == b'{"input_tokens":41}'


async def test_the_model_decides_whether_the_count_is_ours() -> None:
    """The chat with this model would be translated, so that the other upstream does not know it."""
    claude, chat = RawUpstream(COUNTED), RawUpstream(COUNTED)
    options = (ANTHROPIC, {"models": {"gpt": "gpt-4o"}})
    async with relay_to(claude, chat, routes=(), options=options) as gate:
        _, headers, body = await gate.ask(COUNT, prompt("gpt", "word " * 100))
        assert (await gate.ask(COUNT, prompt("claude")))[2] == b'{"input_tokens":41}'
        (row, _) = gate.served
    assert headers["x-headstart-estimated"] == "tokens"
    assert 95 <= json.loads(body)["input_tokens"] <= 110
    assert chat.requests == []
    assert len(claude.requests) == 1
    assert (row.status, row.upstream, row.model, row.attempts) == (200, "", "gpt", ())


@pytest.mark.parametrize("speaks", [{"dialect": "responses"}, {"also_speaks": ["responses"]}])
@pytest.mark.parametrize("chat_first", [False, True])
async def test_a_provider_of_responses_counts_for_its_clients(
    speaks: dict[str, Any], chat_first: bool
) -> None:
    answer = b'{"object":"response.input_tokens","input_tokens":41}'
    chat, able = RawUpstream(COUNTED), RawUpstream(says("200 OK", answer))
    upstreams, options = ((chat, able), ({}, speaks)) if chat_first else ((able,), (speaks,))
    routes = ({"name": "r", "upstreams": ["a", "b"][: len(upstreams)]},)
    if chat_first:
        routes[0]["strategy"] = "fallback"
    async with relay_to(*upstreams, routes=routes, options=options) as gate:
        status, headers, body = await gate.ask(RESPONSES_COUNT, b'{"model":"m","input":"hi"}')
    assert (status, body) == (200, answer)
    assert "x-headstart-estimated" not in headers
    assert (len(able.requests), chat.requests) == (1, [])


TEXT = {"type": "input_text", "text": "word " * 100}


@pytest.mark.parametrize(
    ("asked", "most"),
    [
        ("word " * 100, 110),
        (
            [
                {"role": "user", "content": [TEXT]},
                {"type": "reasoning", "encrypted_content": "x" * 9999},
            ],
            120,
        ),
        ([{"type": "function_call_output", "call_id": "c" * 99, "output": "word " * 100}], 115),
        (
            [{"role": "user", "content": [TEXT, {"type": "input_image", "image_url": PICTURE}]}],
            2_000,
        ),
    ],
)
async def test_a_count_for_a_client_of_responses_is_ours_if_the_chat_would_be_translated(
    asked: object, most: int
) -> None:
    chat = RawUpstream(COUNTED)
    async with relay_to(chat, routes=()) as gate:
        body = json.dumps({"model": "gpt-4o", "input": asked}).encode()
        status, headers, answer = await gate.ask(RESPONSES_COUNT, body)
    counted = json.loads(answer)
    assert (status, headers["x-headstart-estimated"]) == (200, "tokens")
    assert counted["object"] == "response.input_tokens"
    assert 95 <= counted["input_tokens"] <= most
    assert chat.requests == []


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (says("404 Not Found", b"404 page not found"), 200),
        (says("405 Method Not Allowed", b'{"detail":"Method Not Allowed"}'), 200),
        (says("404 Not Found", NO_MODEL), 404),
        (says("404 Not Found", gzip.compress(NO_MODEL), b"content-encoding: gzip\r\n"), 404),
    ],
)
async def test_an_upstream_without_the_path_leaves_the_count_to_us(
    answer: bytes, status: int
) -> None:
    upstream = RawUpstream(answer)
    async with relay_to(upstream, routes=(), options=(ANTHROPIC,)) as gate:
        found, headers, body = await gate.ask(COUNT, prompt(text="word " * 100))
    assert found == status
    assert (headers.get("x-headstart-estimated") == "tokens") == (status == 200)
    assert (b"input_tokens" in body) == (status == 200)
    if headers.get("content-encoding") == "gzip":
        body = gzip.decompress(body)
    assert (b"not_found_error" in body) == (status == 404)


async def test_a_route_without_an_upstream_of_the_dialect_gets_an_estimate() -> None:
    claude, chat = RawUpstream(COUNTED), RawUpstream(COUNTED)
    routes = ({"name": "private", "match": {"header": {"x-team": "p"}}, "upstreams": ["b"]},)
    async with relay_to(claude, chat, routes=routes, options=(ANTHROPIC, {})) as gate:
        _, headers, _ = await gate.ask(COUNT, prompt(), "X-Team: p\r\n")
    assert headers["x-headstart-estimated"] == "tokens"
    assert claude.requests == chat.requests == []  # the route keeps its prompts to its upstreams


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages*"])
async def test_a_prompt_is_counted_by_the_route_of_its_chat(path: str) -> None:
    first, second = RawUpstream(COUNTED), RawUpstream(COUNTED)
    routes = ({"name": "chat", "match": {"path": path, "model": "cl*"}, "upstreams": ["b"]},)
    async with relay_to(first, second, routes=routes, options=(ANTHROPIC, ANTHROPIC)) as gate:
        _, headers, _ = await gate.ask(COUNT, prompt(text="x" * 1_100_000))
    assert headers["x-headstart-upstream"] == "b"
    assert first.requests == []


@pytest.mark.parametrize("model", ["flash", "gpt"])
async def test_gemini_counts_by_the_model_in_the_path(model: str) -> None:
    path = f"/v1beta/models/{model}:countTokens"
    flash = RawUpstream(says("200 OK", b'{"totalTokens":7}'))
    options: tuple[dict[str, Any], ...] = (
        {"dialect": "gemini", "models": {"flash": "gemini-x"}}, {"models": {"gpt": "gpt-4o"}}
    )  # fmt: skip
    body = b'{"contents":[{"role":"user","parts":[{"text":"hi there"}]}]}'
    async with relay_to(flash, RawUpstream(COUNTED), routes=(), options=options) as gate:
        _, headers, answer = await gate.ask(path, body)
    if model == "flash":
        assert json.loads(answer) == {"totalTokens": 7}
        assert flash.targets == [b"/v1beta/models/gemini-x:countTokens"]
    else:
        assert json.loads(answer) == {"totalTokens": 6}
        assert headers["x-headstart-estimated"] == "tokens"
        assert flash.requests == []


@pytest.mark.parametrize(
    ("body", "status"), [(b"[]", 400), (b"{", 400), (b'{"messages":"' + b"x" * 5000 + b'"}', 413)]
)
async def test_an_uncountable_prompt_is_refused_in_the_dialect(body: bytes, status: int) -> None:
    server: dict[str, Any] = {"server.max_body_bytes": 4000}
    async with relay_to(RawUpstream(COUNTED), routes=(), **server) as gate:
        found, _, answer = await gate.ask(COUNT, body)
    assert found == status
    assert json.loads(answer)["type"] == "error"


async def test_a_long_prompt_is_counted_whole() -> None:
    text = "a few words " * 120_000
    async with relay_to(RawUpstream(COUNTED), routes=()) as gate:
        _, _, answer = await gate.ask(COUNT, prompt(text=text))
    assert json.loads(answer)["input_tokens"] == pytest.approx(len(text) / 4, abs=10)
