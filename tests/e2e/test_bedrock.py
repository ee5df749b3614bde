"""Clients of every dialect before AWS Bedrock: signatures, streams, errors, settings."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import anthropic
import openai
import pytest

from headstart.cli.config import report_on
from headstart.config.checks import checked
from headstart.middleware.upstreams.signers import AwsKeys, SignedRequest, sign
from headstart.settings import Settings, UpstreamSettings
from support.aws_events import encode_message
from support.proxied import Proxied, proxied

if TYPE_CHECKING:
    from support.scripted import Received

pytestmark = pytest.mark.anyio

MODEL = "us.amazon.nova-2-lite-v1:0"
ASKED: list[Any] = [{"role": "user", "content": "Why is the sky blue?"}]
USAGE = {"inputTokens": 30, "outputTokens": 2, "totalTokens": 32}
WHOLE = {
    "output": {"message": {"role": "assistant", "content": [{"text": "It scatters."}]}},
    "stopReason": "end_turn",
    "usage": USAGE,
    "metrics": {"latencyMs": 1},
}
EVENTS: list[tuple[str, dict[str, Any]]] = [
    ("messageStart", {"role": "assistant"}),
    ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "It "}}),
    ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "scatters."}}),
    ("contentBlockStop", {"contentBlockIndex": 0}),
    ("messageStop", {"stopReason": "end_turn"}),
    ("metadata", {"usage": USAGE, "metrics": {"latencyMs": 1}}),
]
BEDROCK: dict[str, Any] = {"name": "aws", "preset": "bedrock", "region": "eu-west-1"}
KEYS = AwsKeys("AKIDEXAMPLE", "secret", "token/+=")


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_BEARER_TOKEN_BEDROCK", raising=False)
    for name, value in zip(
        ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN"), KEYS, strict=True
    ):
        monkeypatch.setenv(f"AWS_{name}", str(value))


def message(kind: str, payload: dict[str, Any], type: str = "event") -> bytes:
    headers = {f":{type}-type": kind, ":message-type": type}
    return encode_message(headers, json.dumps(payload).encode())


def streams(proxy: Proxied, body: bytes) -> None:
    proxy.upstream.body = body
    proxy.upstream.headers = [(b"content-type", b"application/vnd.amazon.eventstream")]


def all_of(events: list[tuple[str, dict[str, Any]]]) -> bytes:
    return b"".join(message(kind, payload) for kind, payload in events)


def to_openai(proxy: Proxied) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="callers", max_retries=0)


def assert_signed(call: Received, url: str) -> None:
    """Compute the signature of what arrived anew."""
    from datetime import UTC, datetime

    stamp = (call.header(b"x-amz-date") or b"").decode()
    now = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
    typed = (("content-type", "application/json"),)
    asked = SignedRequest("POST", urlsplit(url).netloc, call.path, "", typed, call.body)
    proof = dict(sign(asked, KEYS, region="eu-west-1", service="bedrock", now=now))
    assert (call.header(b"authorization") or b"").decode() == proof["authorization"]
    assert call.header(b"x-amz-security-token") == b"token/+="


async def test_a_whole_answer_is_signed_for_translated_and_cached() -> None:
    async with proxied(provider=BEDROCK) as proxy:
        proxy.upstream.body = json.dumps(WHOLE).encode()
        async with to_openai(proxy) as client:
            create = client.chat.completions.create
            answers = [await create(model=MODEL, messages=ASKED) for _ in range(2)]
        (call,) = proxy.upstream.calls
        host = dict(call.headers)[b"host"].decode()
    assert [each.choices[0].message.content for each in answers] == ["It scatters."] * 2
    usage = answers[0].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (30, 2)
    assert call.path == "/model/us.amazon.nova-2-lite-v1%3A0/converse"
    assert b"callers" not in b"".join(value for _, value in call.headers)
    assert_signed(call, f"http://{host}")


async def test_a_stream_reaches_clients_of_openai_and_anthropic() -> None:
    async with proxied(provider=BEDROCK) as proxy:
        streams(proxy, all_of(EVENTS))
        async with (
            to_openai(proxy) as client,
            client.chat.completions.stream(model=MODEL, messages=ASKED) as stream,
        ):
            completion = await stream.get_final_completion()
        async with (
            anthropic.AsyncAnthropic(base_url=proxy.url, api_key="k", max_retries=0) as other,
            other.messages.stream(model=MODEL, messages=ASKED, max_tokens=9) as events,
        ):
            said = await events.get_final_message()
        first, second = proxy.upstream.calls
    assert completion.choices[0].message.content == "It scatters."
    assert said.content[0].type == "text"
    assert said.content[0].text == "It scatters."
    assert (said.usage.input_tokens, said.usage.output_tokens) == (30, 2)
    assert first.path.endswith("/converse-stream")
    assert first.header(b"accept") == b"application/vnd.amazon.eventstream"
    assert second.json["inferenceConfig"] == {"maxTokens": 9}


async def test_a_repeat_of_a_stream_is_a_hit() -> None:
    async with proxied(provider=BEDROCK) as proxy:
        streams(proxy, all_of(EVENTS))
        first = await proxy.ask(stream=True)
        again = await proxy.ask(stream=True)
    assert len(proxy.upstream.calls) == 1
    assert first.body.endswith(b"data: [DONE]\n\n")
    assert "hit" in again.verdict


@pytest.mark.parametrize("damage", ["cut", "checksum"])
async def test_a_broken_stream_is_an_error_and_not_stored(damage: str) -> None:
    whole = all_of(EVENTS)
    broken = whole[: len(whole) // 2] if damage == "cut" else whole[:-1] + b"\x00"
    async with proxied(provider=BEDROCK) as proxy:
        streams(proxy, broken)
        await proxy.ask(stream=True)
        await proxy.ask(stream=True)
    assert len(proxy.upstream.calls) >= 2


async def test_an_exception_in_a_stream_is_the_clients_error() -> None:
    async with proxied(provider=BEDROCK) as proxy:
        said = message("throttlingException", {"message": "Too many"}, "exception")
        streams(proxy, all_of(EVENTS[:1]) + said)
        async with to_openai(proxy) as client:
            with pytest.raises(openai.APIError, match="Too many"):
                await client.chat.completions.create(model=MODEL, messages=ASKED)


async def test_an_error_keeps_its_status() -> None:
    async with proxied(provider=BEDROCK) as proxy:
        proxy.upstream.status = 400
        proxy.upstream.body = b'{"message": "The model is not there"}'
        async with to_openai(proxy) as client:
            with pytest.raises(openai.BadRequestError, match="not there"):
                await client.chat.completions.create(model=MODEL, messages=ASKED)


async def test_a_bearer_token_takes_the_place_of_the_signature(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "bearer")
    async with proxied(provider=BEDROCK) as proxy:
        proxy.upstream.body = json.dumps(WHOLE).encode()
        await proxy.ask()
    (call,) = proxy.upstream.calls
    assert call.header(b"authorization") == b"Bearer bearer"
    assert call.header(b"x-amz-date") is None


def problems(environ: dict[str, str], **fields: Any) -> tuple[str, ...]:
    upstream = UpstreamSettings(preset="bedrock", **fields)
    return report_on(checked(Settings(upstream=(upstream,))), environ).problems


SET = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}


@pytest.mark.parametrize(
    ("environ", "fields", "told"),
    [
        (SET, {}, "set its region, or the variable AWS_REGION or AWS_DEFAULT_REGION"),
        ({"AWS_REGION": "us-east-1"}, {}, "set the variable AWS_BEARER_TOKEN_BEDROCK, or AWS_ACC"),
        ({}, {"region": "us-east-1"}, "or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
    ],
)
async def test_config_check_says_what_is_missing(
    environ: dict[str, str], fields: dict[str, Any], told: str
) -> None:
    (found,) = await asyncio.to_thread(problems, environ, **fields)
    assert told in found


async def test_a_configuration_with_keys_and_region_is_valid() -> None:
    assert await asyncio.to_thread(problems, {**SET, "AWS_DEFAULT_REGION": "x"}) == ()
    bearer = {"AWS_BEARER_TOKEN_BEDROCK": "t"}
    assert await asyncio.to_thread(problems, bearer, region="us-east-1") == ()
