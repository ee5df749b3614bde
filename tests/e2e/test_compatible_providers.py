"""Providers that speak OpenAI's dialect and add fields of their own, as they document them."""

from __future__ import annotations

import asyncio
import json
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import openai
import pytest

from headstart.config.checks import checked
from headstart.config.providers import discover_upstreams, preset
from headstart.settings import Settings, UpstreamSettings
from support.proxied import Proxied, proxied

if TYPE_CHECKING:
    from collections.abc import Mapping


pytestmark = pytest.mark.anyio

TEXT = "Paris."
COUNTS = {"prompt_tokens": 14, "completion_tokens": 3, "total_tokens": 17}


NONE: Mapping[str, Any] = MappingProxyType({})


class Form(NamedTuple):
    """The fields that a provider adds, in a whole answer or a chunk, a delta, and the usage."""

    beside: Mapping[str, Any] = NONE
    delta: Mapping[str, Any] = NONE
    usage: Mapping[str, Any] = NONE
    apart: bool = True
    """The usage comes in a chunk without choices."""


FORMS = {
    "sambanova": Form(
        beside={"system_fingerprint": "fastcoe"},
        usage={
            "time_to_first_token": 0.05,
            "completion_tokens_per_sec": 400.0,
            "is_last_response": 1,
        },
    ),
    "nvidia": Form(beside={"kv_transfer_params": None}, delta={"reasoning_content": "France."}),
    "qwen": Form(
        delta={"reasoning_content": "France."},
        usage={"prompt_tokens_details": {"cached_tokens": 8}},
    ),
    "moonshot": Form(usage={"cached_tokens": 8}, apart=False),
    "huggingface": Form(beside={"system_fingerprint": "fp", "x_groq": {"id": "req_1"}}),
}


def whole(form: Form) -> bytes:
    message = {"role": "assistant", "content": TEXT, **form.delta}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    document = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", **form.beside}
    return json.dumps({**document, "choices": choices, "usage": {**COUNTS, **form.usage}}).encode()


def stream(form: Form) -> bytes:
    head = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    usage = {"usage": {**COUNTS, **form.usage}}
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, {"content": TEXT}, {}]
    if form.delta:
        deltas.insert(1, {"content": None, **form.delta})
    chunks = [
        {**head, **form.beside, "choices": [{"index": 0, "delta": d, "finish_reason": None}]}
        for d in deltas
    ]
    chunks[-1]["choices"][0]["finish_reason"] = "stop"
    if form.apart:
        chunks.append({**head, "choices": [], **usage})
    else:
        chunks[-1].update(usage)
    lines = [b"data: " + json.dumps(each).encode() + b"\n\n" for each in chunks]
    return b"".join((*lines, b"data: [DONE]\n\n"))


def configured(name: str) -> dict[str, Any]:
    return {"name": name, "preset": name, "api_key_env": "PATH"}


def client(proxy: Proxied) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="k", max_retries=0)


FIELDS: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "max_completion_tokens": 9,
}


@pytest.mark.parametrize("name", FORMS)
async def test_a_whole_answer_is_read_and_its_repeat_a_hit(name: str) -> None:
    async with proxied(provider=configured(name)) as proxy:
        proxy.upstream.body = whole(FORMS[name])
        async with client(proxy) as asking:
            answers = [await asking.chat.completions.create(**FIELDS) for _ in range(2)]
        (row, _) = proxy.served
    assert len(proxy.upstream.calls) == 1
    assert [answer.choices[0].message.content for answer in answers] == [TEXT, TEXT]
    assert (row.prompt_tokens, row.completion_tokens) == (14, 3)
    for answer in answers:
        beside = {n: v for n, v in FORMS[name].beside.items() if v is not None}
        assert beside.items() <= answer.model_dump().items()


@pytest.mark.parametrize("name", FORMS)
async def test_a_stream_is_read_and_its_repeat_a_hit(name: str) -> None:
    async with proxied(provider=configured(name)) as proxy:
        proxy.upstream.body = stream(FORMS[name])
        proxy.upstream.headers = [(b"content-type", b"text/event-stream")]
        texts = []
        async with client(proxy) as asking:
            for _ in range(2):
                async with asking.chat.completions.stream(**FIELDS) as events:
                    completion = await events.get_final_completion()
                texts.append(completion.choices[0].message.content)
        (row, _) = proxy.served
    assert len(proxy.upstream.calls) == 1
    assert texts == [TEXT, TEXT]
    assert (row.prompt_tokens, row.completion_tokens) == (14, 3)


@pytest.mark.parametrize(("name", "told"), [("mistral", True), ("together", True), ("qwen", False)])
async def test_a_streamed_hit_on_a_whole_answer_has_usage_where_streams_have_it_unasked(
    name: str, *, told: bool
) -> None:
    async with proxied(provider=configured(name)) as proxy:
        proxy.upstream.body = whole(Form())
        async with client(proxy) as asking:
            await asking.chat.completions.create(**FIELDS)
            chunks = [
                each async for each in await asking.chat.completions.create(**FIELDS, stream=True)
            ]
    assert len(proxy.upstream.calls) == 1
    assert [chunk.usage is not None for chunk in chunks] == [*[False] * (len(chunks) - 1), told]
    assert all(chunk.choices for chunk in chunks)


@pytest.mark.parametrize("name", FORMS)
async def test_the_request_has_what_the_provider_takes(name: str) -> None:
    async with proxied(provider=configured(name)) as proxy:
        proxy.upstream.body = stream(FORMS[name])
        proxy.upstream.headers = [(b"content-type", b"text/event-stream")]
        async with client(proxy) as asking:
            await (await asking.chat.completions.create(**FIELDS, seed=1, stream=True)).close()
    (call,) = proxy.upstream.calls
    assert call.json["max_tokens" if name == "nvidia" else "max_completion_tokens"] == 9
    assert (call.json["seed"], call.json["stream_options"]) == (1, {"include_usage": True})


async def test_the_usual_variables_find_them() -> None:
    known = [preset(name) for name in FORMS]
    variables = {each.variable: "k" for each in known if each is not None and each.variable}
    found, _ = await asyncio.to_thread(discover_upstreams, variables)
    settings = await asyncio.to_thread(checked, Settings(upstream=found))
    assert {each.name for each in settings.upstream} == set(FORMS)
    assert all(each.base_url.startswith("https://") for each in settings.upstream)


async def test_a_client_of_anthropic_reaches_sambanova_untranslated() -> None:
    async with proxied(provider=configured("sambanova")) as proxy:
        content = [{"type": "text", "text": TEXT}]
        message = {
            "role": "assistant",
            "type": "message",
            "id": "1",
            "model": "m",
            "content": content,
        }
        proxy.upstream.body = json.dumps(message).encode()
        asked = {"model": "m", "max_tokens": 5, "messages": FIELDS["messages"], "top_k": 3}
        await (await proxy.session.post(f"{proxy.url}/v1/messages", json=asked)).read()
    (call,) = proxy.upstream.calls
    assert (call.path, call.json) == ("/v1/messages", asked)
    settings = Settings(upstream=(UpstreamSettings(preset="sambanova"),))
    assert (await asyncio.to_thread(checked, settings)).upstream[0].further == (
        "anthropic",
        "responses",
    )


SOURCE = "https://example.com/paris"
RESPONSE: dict[str, Any] = {
    "id": "resp_1", "object": "response", "created_at": 1, "model": "perplexity/sonar",
    "status": "completed",
    "output": [
        {"type": "search_results", "queries": ["paris"], "results": [{"id": 1, "url": SOURCE}]},
        {
            "type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": TEXT, "annotations": []}],
        },
    ],
    "usage": {
        "input_tokens": 14, "output_tokens": 3, "total_tokens": 17,
        "input_tokens_details": {"cache_read_input_tokens": 4},
        "cost": {"currency": "USD", "input_cost": 1e-5, "output_cost": 1e-5, "total_cost": 2e-5},
    },
}  # fmt: skip
"""An answer of Perplexity's Agent API, as its own SDK types it."""


def agent_events() -> bytes:
    search, message = RESPONSE["output"]
    part = message["content"][0]
    place = {"item_id": "msg_1", "output_index": 1, "content_index": 0}
    bare = {**RESPONSE, "status": "in_progress", "output": [], "usage": None}
    begun, empty = {**message, "status": "in_progress", "content": []}, {**part, "text": ""}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": bare},
        {"type": "response.output_item.added", "output_index": 0, "item": search},
        {"type": "response.output_item.done", "output_index": 0, "item": search},
        {"type": "response.output_item.added", "output_index": 1, "item": begun},
        {"type": "response.content_part.added", **place, "part": empty},
        {"type": "response.output_text.delta", **place, "delta": TEXT, "logprobs": []},
        {"type": "response.output_text.done", **place, "text": TEXT, "logprobs": []},
        {"type": "response.content_part.done", **place, "part": part},
        {"type": "response.output_item.done", "output_index": 1, "item": message},
        {"type": "response.completed", "response": RESPONSE},
    ]
    lines = [{**event, "sequence_number": number} for number, event in enumerate(events)]
    return b"".join(
        b"event: %b\ndata: %b\n\n" % (each["type"].encode(), json.dumps(each).encode())
        for each in lines
    )


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_perplexity_is_asked_by_responses(api: str, *, stream: bool) -> None:
    model = "perplexity/sonar"
    async with proxied(provider=configured("perplexity")) as proxy, client(proxy) as asking:
        proxy.upstream.body = agent_events() if stream else json.dumps(RESPONSE).encode()
        kind = b"text/event-stream" if stream else b"application/json"
        proxy.upstream.headers = [(b"content-type", kind)]
        texts: list[str | None] = []
        for _ in range(2):
            if api == "responses" and stream:
                # The helper ``stream`` warns of items that OpenAI does not have.
                events = await asking.responses.create(model=model, input="Where?", stream=True)
                parts = [e.delta async for e in events if e.type == "response.output_text.delta"]
                texts.append("".join(parts))
            elif api == "responses":
                texts.append(
                    (await asking.responses.create(model=model, input="Where?")).output_text
                )
            elif stream:
                fields: dict[str, Any] = {**FIELDS, "model": model}
                async with asking.chat.completions.stream(**fields) as chunks:
                    completion = await chunks.get_final_completion()
                texts.append(completion.choices[0].message.content)
            else:
                whole = await asking.chat.completions.create(**{**FIELDS, "model": model})
                texts.append(whole.choices[0].message.content)
        row = proxy.served[0]
    assert texts == [TEXT, TEXT]
    call = proxy.upstream.calls[0]
    assert (call.path, call.json["model"]) == ("/v1/responses", model)
    assert (row.prompt_tokens, row.completion_tokens) == (14, 3)
    assert row.cost_usd == pytest.approx((10 * 0.25 + 4 * 0.0625 + 3 * 2.5) / 1e6)
