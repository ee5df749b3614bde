"""Anthropic's path through the gateway and the middleware: bytes, keys, headers, storing."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

import aiohttp
import pytest
from yarl import URL

from headstart import HeadstartMiddleware
from headstart.decisions import Outcome
from support.patience import PATIENCE_S
from support.proxied import CHAT, Reply, proxied, reply_of
from support.scripted import ScriptedUpstream
from support.scripted_messages import ScriptedMessages
from support.serving import serving

pytestmark = pytest.mark.anyio

MESSAGES = "/v1/messages"
ANTHROPIC = {"dialect": "anthropic"}
KEY = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
PROMPT = "Why is the sky blue?"


async def ask(
    url: str, session: aiohttp.ClientSession, content: Any = PROMPT, **fields: Any
) -> Reply:
    headers = {**KEY, **fields.pop("headers", {})}
    body = {
        "model": "m",
        "max_tokens": 100,
        "messages": [{"role": "user", "content": content}],
        **fields,
    }
    async with session.post(url + MESSAGES, json=body, headers=headers) as response:
        return await reply_of(response)


def text_of(raw: bytes) -> str:
    lines = (line for line in raw.split(b"\n") if line.startswith(b"data: "))
    events = (json.loads(line[6:]) for line in lines)
    return "".join(each.get("delta", {}).get("text", "") for each in events)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_miss_passes_the_clients_own_bytes_and_the_upstreams_own_bytes(
    stream: bool,
) -> None:
    upstream = ScriptedMessages()
    raw = b'{ "model":"m",\t"messages":[{"content":"h\\u00e9","role":"user"}], "zz": 1.50 %b}' % (
        b', "stream" : true' if stream else b""
    )
    async with proxied(upstream, provider=ANTHROPIC) as proxy, serving(upstream) as direct:
        answers = []
        for url in (proxy.url, direct):
            target = URL(f"{url}{MESSAGES}?beta=true", encoded=True)
            async with proxy.session.post(target, data=raw, headers=KEY) as response:
                answers.append(await reply_of(response))
    ours, theirs = answers
    assert ours.body == theirs.body
    assert "miss" in ours.verdict
    call = upstream.calls[0]
    assert (call.path, call.query, call.body) == (MESSAGES, b"beta=true", raw)
    assert call.header(b"x-api-key") == b"k"
    assert call.header(b"authorization") is None


async def test_a_hit_is_replayed_in_either_mode() -> None:
    async with proxied(ScriptedMessages(), provider=ANTHROPIC) as proxy:
        first = await ask(proxy.url, proxy.session, stream=True)
        assert first.headers["x-cache"] == "MISS"
        whole = await ask(proxy.url, proxy.session)
        assert whole.verdict.startswith("headstart; hit; ttl=")
        assert whole.headers["x-headstart-tokens-saved"] == "50"
        document = json.loads(whole.body)
        assert document["content"] == [{"type": "text", "text": "Hello from upstream"}]
        again = await ask(proxy.url, proxy.session, stream=True)
        assert again.headers["content-type"].startswith("text/event-stream")
        assert text_of(again.body) == text_of(first.body) == "Hello from upstream"
        assert again.body.endswith(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')


async def test_an_upstreams_own_key_travels_as_the_api_wants_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TEST_ANTHROPIC_KEY", "sk-own")
    provider = {**ANTHROPIC, "api_key_env": "TEST_ANTHROPIC_KEY"}
    async with proxied(ScriptedMessages(), provider=provider) as proxy:
        mine = {"authorization": "Bearer mine"}
        await ask(proxy.url, proxy.session, headers={**mine, "anthropic-version": "2026-10-21"})
        body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
        async with proxy.session.post(proxy.url + MESSAGES, json=body, headers=mine):
            pass
        versions = []
        for call in proxy.upstream.calls:
            assert call.header(b"x-api-key") == b"sk-own"
            assert call.header(b"authorization") is None
            versions.append([v for n, v in call.headers if n == b"anthropic-version"])
    assert versions == [[b"2026-10-21"], [b"2023-06-01"]]


@pytest.mark.parametrize("path", [MESSAGES, "/v1/messages/batches"], ids=["a call", "relayed"])
async def test_headers_of_the_settings_take_the_place_of_the_callers(path: str) -> None:
    """Two headers of one name would reach the provider. Lists of betas are joined instead."""
    own = {"X-Team": "ours", "user-agent": "gateway", "Anthropic-Beta": "fast-mode"}
    async with proxied(ScriptedMessages(), provider={**ANTHROPIC, "headers": own}) as proxy:
        theirs = {"x-team": "theirs", "anthropic-beta": "context-1m", "x-other": "1"}
        body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
        asked = {"authorization": "Bearer k", **theirs}
        async with proxy.session.post(proxy.url + path, json=body, headers=asked):
            pass
        [call] = proxy.upstream.calls
        names = (b"x-team", b"user-agent", b"anthropic-beta", b"x-other")
        sent = [(n.lower(), v) for n, v in call.headers if n.lower() in names]
    assert sorted(sent) == [
        (b"anthropic-beta", b"context-1m,fast-mode"),
        (b"user-agent", b"gateway"),
        (b"x-other", b"1"),
        (b"x-team", b"ours"),
    ]


def agent(name: str, value: str, **more: str) -> dict[str, Any]:
    """Return the metadata in which a coding agent names its user."""
    return {"metadata": {"user_id": json.dumps({name: value, **more})}}


KEPT_APART: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "versions": ({}, {"headers": {"anthropic-version": "2026-10-21"}}),
    "betas": ({}, {"headers": {"anthropic-beta": "context-1m"}}),
    "systems": ({"system": "Be brief."}, {"system": "Be long."}),
    "thinking": ({}, {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
    "tool choices": ({"tool_choice": {"type": "auto"}}, {"tool_choice": {"type": "none"}}),
    "stop sequences": ({}, {"stop_sequences": ["#"]}),
    "users": ({"metadata": {"user_id": "a"}}, {"metadata": {"user_id": "b"}}),
    "users of an agent": (agent("device_id", "a"), agent("device_id", "b")),
    "an agent's user and another object": (agent("a", "b"), agent("b", "a")),
}


@pytest.mark.parametrize(("one", "other"), KEPT_APART.values(), ids=KEPT_APART.keys())
async def test_headers_and_fields_that_change_an_answer_are_keyed(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    async with proxied(ScriptedMessages(), provider=ANTHROPIC) as proxy:
        await ask(proxy.url, proxy.session, **one)
        reply = await ask(proxy.url, proxy.session, **other)
        assert reply.headers["x-cache"] == "MISS"


MARK = {"cache_control": {"type": "ephemeral"}}
THE_SAME: dict[str, tuple[dict[str, Any], ...]] = {
    "a string and its block": (
        {"content": PROMPT, "system": "Be brief."},
        {
            "content": [{"type": "text", "text": PROMPT, **MARK}],
            "system": [{"type": "text", "text": "Be brief.", **MARK}],
        },
    ),
    "tiers and speeds": ({"service_tier": "auto", "speed": "fast"}, {"cache_control": MARK}),
    "limits": ({"max_tokens": 50}, {"max_tokens": 60}),
    "other metadata": ({"metadata": {"user_id": "a"}}, {"metadata": {"user_id": "a", "b": 1}}),
    "sessions of an agent": (
        agent("device_id", "a", session_id="1"),
        agent("device_id", "a", session_id="2"),
    ),
    "sessions of an older agent": (
        {"metadata": {"user_id": f"user_1_account__session_{uuid.UUID(int=1)}"}},
        {"metadata": {"user_id": f"user_1_account__session_{uuid.UUID(int=2)}"}},
    ),
}


@pytest.mark.parametrize(("one", "other"), THE_SAME.values(), ids=THE_SAME.keys())
async def test_headers_and_fields_that_do_not_change_an_answer_are_not_keyed(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    async with proxied(ScriptedMessages(), provider=ANTHROPIC) as proxy:
        await ask(proxy.url, proxy.session, **one)
        reply = await ask(proxy.url, proxy.session, **other)
        assert reply.headers["x-cache"] == "HIT"


async def test_an_answer_longer_than_the_limit_is_not_served() -> None:
    async with proxied(ScriptedMessages(), provider=ANTHROPIC) as proxy:
        await ask(proxy.url, proxy.session)
        reply = await ask(proxy.url, proxy.session, max_tokens=19)
        assert "longer-than-limit" in reply.verdict


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("finish", ["max_tokens", "pause_turn", "refusal", "tool_use", "novel"])
async def test_an_answer_that_did_not_end_by_itself_is_not_stored(
    finish: str, stream: bool
) -> None:
    upstream = ScriptedMessages()
    upstream.finish = finish
    async with proxied(upstream, provider=ANTHROPIC) as proxy:
        await ask(proxy.url, proxy.session, stream=stream)
        reply = await ask(proxy.url, proxy.session, stream=stream)
        assert reply.headers["x-cache"] == "MISS"


BYPASSED: dict[str, tuple[dict[str, Any], str]] = {
    "a hosted search": (
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        "hosted-tools",
    ),
    "an MCP server": ({"mcp_servers": [{"type": "url", "url": "u"}]}, "hosted-tools"),
    "a call that fills the prompt cache": ({"max_tokens": 0}, "cache-warming"),
    "a thread that the provider is to keep": ({"thread": {"type": "create"}}, "conversation"),
    "a thread that the provider keeps": (
        {"thread": {"type": "continue", "previous_message_id": "msg_1"}},
        "conversation",
    ),
}


@pytest.mark.parametrize(("fields", "reason"), BYPASSED.values(), ids=BYPASSED.keys())
async def test_requests_that_must_reach_the_provider_bypass_the_cache(
    fields: dict[str, Any], reason: str
) -> None:
    async with proxied(ScriptedMessages(), provider=ANTHROPIC) as proxy:
        for _ in range(2):
            reply = await ask(proxy.url, proxy.session, **fields)
            assert reply.verdict == f"headstart; fwd=bypass; detail={reason}"


@pytest.mark.parametrize(
    ("headers", "cache"),
    [
        ({"cache-control": "no-store"}, {}),
        ({}, {"scope": "header:x-tenant"}),
        ({}, {"never_stored": ["sky"]}),
    ],
    ids=["no-store", "no-identity", "never-stored"],
)
async def test_the_request_of_a_thread_passes_unchanged_for_whatever_reason_it_is_not_stored(
    headers: dict[str, str], cache: dict[str, Any]
) -> None:
    """Anthropic refuses a system text in a thread that goes on."""
    thread = {"type": "continue", "previous_message_id": "msg_1"}
    upstream, output = ScriptedMessages(), {"concise": 2}
    async with proxied(upstream, provider=ANTHROPIC, output=output, cache=cache) as proxy:
        reply = await ask(proxy.url, proxy.session, thread=thread, headers=headers)
        assert reply.verdict == "headstart; fwd=bypass; detail=conversation"
        reply = await ask(proxy.url, proxy.session, headers=headers)
        assert "concise:2" in reply.headers["x-headstart-transforms"]
    assert [call.json.keys() & {"thread", "system"} for call in upstream.calls] == [
        {"thread"},
        {"system"},
    ]


async def test_conversations_of_equal_meaning_share_an_answer() -> None:
    def talk(first: str) -> list[dict[str, Any]]:
        said = [("user", first), ("assistant", "Of course."), ("user", "What does it cost?")]
        return [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in said]

    async with proxied(
        ScriptedMessages(),
        provider=ANTHROPIC,
        cache={"mode": "serve"},
        encoder={"max_wait_ms": 20_000.0},
    ) as proxy:
        await ask(proxy.url, proxy.session, messages=talk("How can I sign up for ChatGPT?"))
        await proxy.indexed(1)
        await ask(proxy.url, proxy.session, messages=talk("I want to sign up for ChatGPT"))
        assert [row.outcome for row in proxy.served] == [Outcome.MISS, Outcome.SEMANTIC]


async def test_an_untranslatable_request_is_refused_with_the_fix() -> None:
    async with proxied(ScriptedMessages(), provider=ANTHROPIC) as proxy:
        uploading = proxy.session.post(proxy.url + "/v1/files", json={}, headers=KEY)
        async with uploading as response:
            assert response.status == 200  # the header says whose API it is
        async with proxy.session.post(proxy.url + "/v1/embeddings", json={}) as response:
            assert response.status == 404
            assert 'dialect = \\"openai\\"' in await response.text()
        assert len(proxy.upstream.calls) == 1
    async with proxied() as proxy:
        batching = proxy.session.post(proxy.url + MESSAGES + "/batches", json={})
        async with batching as response:
            assert response.status == 404
            assert 'dialect = \\"anthropic\\"' in await response.text()
        assert proxy.upstream.calls == []


@pytest.mark.parametrize("stream", [False, True])
async def test_calls_of_another_dialect_are_translated(stream: bool) -> None:
    async with proxied(ScriptedMessages(), provider=ANTHROPIC) as proxy:
        reply = await proxy.ask(stream=stream)
        assert (reply.status, proxy.upstream.calls[0].path) == (200, MESSAGES)
        assert reply.headers["x-headstart-transforms"] == "translated:anthropic-messages"
    async with proxied() as proxy:
        reply = await ask(proxy.url, proxy.session, stream=stream)
        assert (reply.status, proxy.upstream.calls[0].path) == (200, CHAT)
        assert reply.headers["x-headstart-transforms"].startswith("translated:openai-chat")


LINE = "x-anthropic-billing-header: cc_version=2.1.197.7c8; cch=71fea;"
"""The first block of Claude Code's system prompts."""


@pytest.mark.parametrize(
    ("provider", "kept"),
    [
        ({"dialect": "anthropic"}, True),
        ({"dialect": "anthropic", "quirks": {"attribution": False}}, False),
        ({"also_speaks": ["anthropic"]}, False),
    ],
    ids=["Anthropic's", "by its quirk", "another server"],
)
async def test_a_line_for_anthropics_billing_goes_to_anthropic_alone(
    provider: dict[str, Any], kept: bool
) -> None:
    system = [{"type": "text", "text": LINE}, {"type": "text", "text": "Help."}]
    upstream = ScriptedMessages()
    async with proxied(upstream, provider=provider) as proxy:
        reply = await ask(proxy.url, proxy.session, system=system)
    assert upstream.calls[0].json["system"] == (system if kept else system[1:])
    assert (reply.headers.get("x-headstart-transforms") is None) == kept


@pytest.mark.parametrize("system", [LINE, [{"type": "text", "text": LINE}]])
async def test_a_system_prompt_of_this_line_alone_is_left_out(system: Any) -> None:
    upstream = ScriptedMessages()
    async with proxied(upstream, provider={"also_speaks": ["anthropic"]}) as proxy:
        await ask(proxy.url, proxy.session, system=system)
    assert "system" not in upstream.calls[0].json


async def test_claude_codes_prompt_has_one_system_message_for_other_providers() -> None:
    """Chat templates of Qwen, Llama and Gemma refuse a system message in the conversation."""
    call = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "Rain."}
    messages = [
        {"role": "user", "content": "Look."},
        {"role": "system", "content": "Agents: none."},
        {"role": "user", "content": "Please."},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
        {"role": "system", "content": "It is late."},
        {"role": "user", "content": "And now?"},
    ]
    system = [{"type": "text", "text": LINE}, {"type": "text", "text": "Help."}]
    async with proxied() as proxy:
        reply = await ask(proxy.url, proxy.session, system=system, messages=messages)
        assert reply.status == 200
        sent = [
            (each["role"], each["content"]) for each in proxy.upstream.calls[0].json["messages"]
        ]
    assert sent == [
        ("system", "Help.\nAgents: none."),
        ("user", "Look.\nPlease."),
        ("assistant", None),
        ("tool", "Rain."),
        ("user", "<system-reminder>\nIt is late.\n</system-reminder>\nAnd now?"),
    ]


async def test_other_providers_get_a_user_and_ids_that_are_short_enough() -> None:
    """OpenAI takes 64 characters of a user and 40 of an id. Claude Code's user has 150 and more."""
    call = {"type": "tool_use", "id": "chatcmpl-tool-" + "a" * 32, "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "Rain."}
    messages = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    async with proxied() as proxy:
        for session in ("1", "2"):
            user = {"device_id": "d" * 64, "account_uuid": "", "session_id": session * 36}
            fields = {"messages": messages, "metadata": {"user_id": json.dumps(user)}}
            await ask(proxy.url, proxy.session, headers={"cache-control": "no-store"}, **fields)
        first, second = [each.json for each in proxy.upstream.calls]
    assert len(first["user"]) == 64
    assert first == second, "another session is no other user"
    (used,) = first["messages"][1]["tool_calls"]
    assert used["id"] == first["messages"][2]["tool_call_id"]
    assert len(used["id"]) <= 40


async def test_each_dialect_goes_to_its_own_upstream() -> None:
    async with serving(ScriptedMessages()) as claude:
        others = ({"name": "claude", "base_url": claude, "dialect": "anthropic"},)
        async with proxied(others=others) as proxy:
            chat, messages = await proxy.ask(), await ask(proxy.url, proxy.session)
            assert chat.headers["x-headstart-upstream"] == "sim"
            assert messages.headers["x-headstart-upstream"] == "claude"
            async with proxy.session.get(proxy.url + "/v1/files", headers=KEY) as response:
                assert response.headers["x-headstart-upstream"] == "claude"
            async with proxy.session.get(proxy.url + "/v1/files") as response:
                assert response.headers["x-headstart-upstream"] == "sim"


@pytest.mark.parametrize("stream", [False, True])
async def test_the_middleware_caches_an_app_that_answers_messages_itself(stream: bool) -> None:
    app = ScriptedMessages()
    async with (
        serving(HeadstartMiddleware(app, mode="exact-only")) as url,
        aiohttp.ClientSession() as session,
    ):
        first = await ask(url, session, stream=stream)
        again = await _until_hit(url, session, stream=stream)
        if stream:
            assert text_of(again.body) == text_of(first.body) == "Hello from upstream"
        else:
            one, other = json.loads(first.body), json.loads(again.body)
            assert {**one, "id": ""} == {**other, "id": ""}


async def _until_hit(url: str, session: aiohttp.ClientSession, **fields: Any) -> Reply:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            reply = await ask(url, session, **fields)
            if reply.headers["x-cache"] == "HIT":
                return reply


async def test_the_middleware_leaves_another_apps_messages_alone() -> None:
    """The path is a common one: what is not Anthropic's passes, and is not stored."""
    app = ScriptedUpstream()
    app.body = b'{"delivered":true}'
    async with (
        serving(HeadstartMiddleware(app, mode="exact-only")) as url,
        aiohttp.ClientSession() as session,
    ):
        for body in (b"to=me", b'{"to":"me"}', b'{"model":"m","messages":[]}'):
            for _ in range(2):
                async with session.post(url + MESSAGES, data=body, headers=KEY) as response:
                    assert await response.read() == app.body
        assert len(app.calls) == 6


async def test_a_users_id_of_claude_code_fits_openai() -> None:
    """OpenAI takes 64 characters, and refuses the request of a longer one."""
    async with proxied() as proxy:
        for name in ("a" * 64, "b" * 64, "b" * 64):
            fields = agent("device_id", name, session_id=str(uuid.UUID(int=1)))
            fields["headers"] = {"cache-control": "no-store"}
            reply = await ask(proxy.url, proxy.session, **fields)
            assert reply.status == 200
        await ask(proxy.url, proxy.session, metadata={"user_id": "short"})
        sent = [call.json["user"] for call in proxy.upstream.calls]
    assert all(len(user) <= 64 for user in sent)
    assert (sent[1] == sent[2] != sent[0], sent[3]) == (True, "short")
