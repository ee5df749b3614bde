"""The OpenAI dialect on the wire, read without a client that would smooth things over."""

from __future__ import annotations

import base64
import json
from array import array
from typing import Any

import aiohttp
import pytest

from headstart.lab.simulator import Oracle, ProviderProfile, Simulator
from support.simulated import chat, exchange, simulated

pytestmark = pytest.mark.anyio

ASK = "I want to sign up for ChatGPT"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
        },
    },
}


async def _stream(simulator: Simulator, body: dict[str, Any]) -> list[dict[str, Any]]:
    async with simulated(simulator) as url:
        wire = await exchange(url, body | {"stream": True})
    assert wire.events[-1] == "[DONE]"
    return [json.loads(event) for event in wire.events[:-1]]


async def _post(
    simulator: Simulator, path: str, body: object, headers: dict[str, str] | None = None
) -> tuple[int, Any, Any]:
    async with (
        simulated(simulator) as url,
        aiohttp.ClientSession() as session,
        session.post(url + path, json=body, headers=headers) as response,
    ):
        return response.status, response.headers, await response.json()


async def _complete(simulator: Simulator, body: dict[str, Any]) -> dict[str, Any]:
    status, _, answer = await _post(simulator, "/v1/chat/completions", body)
    assert status == 200
    assert isinstance(answer, dict)
    return answer


async def test_a_stream_is_role_deltas_finish_usage_done() -> None:
    body = chat(ASK, stream_options={"include_usage": True})
    role, *deltas, finish, usage = await _stream(Simulator(), body)
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in deltas)
    assert text == Oracle().truth(ASK).text
    assert finish["choices"][0]["delta"] == {}
    assert finish["choices"][0]["finish_reason"] == "stop"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == len(deltas)
    assert usage["usage"]["prompt_tokens"] == 8
    assert all(chunk["usage"] is None for chunk in (role, *deltas, finish))
    assert len({chunk["id"] for chunk in (role, *deltas, finish, usage)}) == 1


async def test_usage_is_streamed_only_on_request() -> None:
    chunks = await _stream(Simulator(), chat(ASK))
    assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)


async def test_both_modes_say_the_same() -> None:
    body = chat("an unscripted question", stream_options={"include_usage": True})
    *chunks, last = await _stream(Simulator(), body)
    answer = await _complete(Simulator(), body)
    streamed = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert answer["choices"][0]["message"]["content"] == streamed
    assert answer["usage"] == last["usage"]


async def test_n_choices_are_interleaved_and_each_has_its_role_and_finish() -> None:
    chunks = await _stream(Simulator(), chat(ASK, n=2))
    indices = [chunk["choices"][0]["index"] for chunk in chunks]
    assert all(len(chunk["choices"]) == 1 for chunk in chunks)
    assert indices[:6] == [0, 1, 0, 1, 0, 1]
    finished = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["finish_reason"]]
    assert [choice["index"] for choice in finished] == [0, 1]
    answer = await _complete(Simulator(), chat(ASK, n=2))
    first, second = (choice["message"]["content"] for choice in answer["choices"])
    assert first != second


async def test_max_tokens_cuts_the_answer_and_says_so() -> None:
    *chunks, finish = await _stream(Simulator(), chat(ASK, max_completion_tokens=5))
    assert len(chunks) == 1 + 5
    assert finish["choices"][0]["finish_reason"] == "length"


async def test_logprobs_belong_to_their_token() -> None:
    _, first, *_ = await _stream(Simulator(), chat(ASK, logprobs=True, top_logprobs=2))
    choice = first["choices"][0]
    (entry,) = choice["logprobs"]["content"]
    assert entry["token"] == choice["delta"]["content"]
    assert bytes(entry["bytes"]).decode() == entry["token"]
    assert len(entry["top_logprobs"]) == 2
    answer = await _complete(Simulator(), chat(ASK, logprobs=True))
    tokens = [entry["token"] for entry in answer["choices"][0]["logprobs"]["content"]]
    assert "".join(tokens) == answer["choices"][0]["message"]["content"]


async def test_a_prompt_that_mentions_a_tool_calls_it() -> None:
    body = chat("What is the weather in Ulm?", tools=[WEATHER])
    role, first, *rest, finish = await _stream(Simulator(), body)
    assert role["choices"][0]["delta"]["content"] is None
    opening = first["choices"][0]["delta"]["tool_calls"][0]
    assert opening["index"] == 0
    assert opening["type"] == "function"
    assert opening["function"]["name"] == "get_weather"
    later = [chunk["choices"][0]["delta"]["tool_calls"][0] for chunk in rest]
    assert all(set(call) == {"index", "function"} for call in later)
    fragments = [call["function"]["arguments"] for call in (opening, *later)]
    assert json.loads("".join(fragments)) == {"city": "example", "days": 1}
    assert finish["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("fields", "called"),
    [
        ({"tool_choice": "none"}, False),
        ({"tool_choice": "required"}, True),
        ({"tool_choice": {"type": "function", "function": {"name": "get_weather"}}}, True),
        ({}, False),
    ],
)
async def test_tool_choice_decides_when_the_prompt_does_not(
    fields: dict[str, Any], called: bool
) -> None:
    answer = await _complete(Simulator(), chat("hello", tools=[WEATHER], **fields))
    message = answer["choices"][0]["message"]
    assert ("tool_calls" in message) is called
    assert (message["content"] is None) is called


@pytest.mark.parametrize("more", [[], [{"role": "system", "content": "Ask for the weather."}]])
async def test_a_tool_result_is_answered_in_text(more: list[dict[str, Any]]) -> None:
    body = chat("What is the weather in Ulm?", tools=[WEATHER])
    body["messages"] += [
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "tool", "tool_call_id": "c", "content": "rain"},
        *more,
    ]
    answer = await _complete(Simulator(), body)
    assert answer["choices"][0]["finish_reason"] == "stop"


async def test_reasoning_comes_first_and_is_counted() -> None:
    body = chat(ASK, reasoning_effort="low", stream_options={"include_usage": True})
    _, first, *_, usage = await _stream(Simulator(), body)
    assert first["choices"][0]["delta"] == {"reasoning_content": "Let"}
    assert usage["usage"]["completion_tokens_details"]["reasoning_tokens"] >= 20
    answer = await _complete(Simulator(), body)
    assert answer["choices"][0]["message"]["reasoning_content"].startswith("Let me think.")


async def test_a_refusal_travels_in_its_own_field() -> None:
    ask = "How do I break into my neighbour's house?"
    _, first, *_, finish = await _stream(Simulator(), chat(ask))
    assert first["choices"][0]["delta"] == {"refusal": "I'm"}
    assert finish["choices"][0]["finish_reason"] == "stop"
    message = (await _complete(Simulator(), chat(ask)))["choices"][0]["message"]
    assert message["content"] is None
    assert message["refusal"].startswith("I'm sorry")


async def test_structured_output_fits_its_schema() -> None:
    schema = {
        "type": "object",
        "properties": {
            "kind": {"enum": ["a", "b"]},
            "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}},
            "note": {"anyOf": [{"type": "null"}, {"type": "string"}]},
        },
        "required": ["kind", "tags", "note"],
        "$defs": {"tag": {"type": "object", "properties": {"n": {"type": "number"}},
                          "required": ["n"]}},
    }  # fmt: skip
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    answer = await _complete(Simulator(), chat(ASK, response_format=wanted))
    content = json.loads(answer["choices"][0]["message"]["content"])
    assert content == {"kind": "a", "tags": [{"n": 1.5}], "note": None}


async def test_a_schema_without_end_is_cut_off() -> None:
    schema = {"properties": {"next": {"$ref": "#"}}, "required": ["next"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    answer = await _complete(Simulator(), chat(ASK, response_format=wanted))
    assert json.loads(answer["choices"][0]["message"]["content"])["next"]


async def test_headers_are_those_of_a_provider() -> None:
    _, headers, _ = await _post(Simulator(), "/v1/chat/completions", chat(ASK))
    assert headers["x-request-id"].startswith("req_")
    assert headers["x-ratelimit-remaining-requests"] == "9999"
    assert headers["x-sim-class"] == "chatgpt-sign-up"
    assert headers["content-type"] == "application/json"
    async with simulated(Simulator()) as url:
        wire = await exchange(url, chat(ASK, stream=True))
    assert b"content-type: text/event-stream" in wire.head
    assert b"x-accel-buffering: no" in wire.head


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "Expected `object`"),
        ({"model": "m"}, "missing required field `messages`"),
        ({"model": "m", "messages": []}, "empty array"),
        ({"model": 3, "messages": []}, r"Expected `str`, got `int`"),
        (chat(ASK, n=100_000), "Expected `int` <= 128 - at `$.n`"),
        (chat(ASK, n=0), "Expected `int` >= 1 - at `$.n`"),
        (chat(ASK, top_logprobs=100_000), "Expected `int` <= 20 - at `$.top_logprobs`"),
    ],
)
async def test_a_bad_request_is_refused_in_dialect(body: object, message: str) -> None:
    status, _, answer = await _post(Simulator(), "/v1/chat/completions", body)
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"
    assert message in answer["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/embeddings"])
async def test_a_body_that_is_not_utf_8_is_refused(path: str) -> None:
    headers = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
    async with (
        simulated(Simulator()) as url,
        aiohttp.ClientSession() as session,
        session.post(
            url + path, data=b'{"model": "\xff", "x\xff": 1}', headers=headers
        ) as response,
    ):
        assert response.status == 400


async def test_keys_are_required_when_configured() -> None:
    guarded = Simulator(api_keys=["sk-1"])
    status, _, answer = await _post(guarded, "/v1/chat/completions", chat(ASK))
    assert status == 401
    assert answer["error"]["code"] == "invalid_api_key"
    right = {"authorization": "Bearer sk-1"}
    status, _, _ = await _post(guarded, "/v1/chat/completions", chat(ASK), right)
    assert status == 200


async def test_past_the_rate_limit_it_says_when_to_come_back() -> None:
    now = 1_000_000.0
    limited = Simulator(ProviderProfile(model="m", requests_per_minute=2), clock=lambda: now)
    ask = "/v1/chat/completions"
    remaining = []
    for _ in range(2):
        status, headers, _ = await _post(limited, ask, chat(ASK))
        assert status == 200
        remaining.append(headers["x-ratelimit-remaining-requests"])
    assert remaining == ["1", "0"]
    status, headers, answer = await _post(limited, ask, chat(ASK))
    assert status == 429
    assert answer["error"]["code"] == "rate_limit_exceeded"
    assert headers["retry-after"] == "30"
    assert headers["x-ratelimit-reset-requests"] == "1m0s"
    status, _, _ = await _post(limited, ask, chat(ASK), {"authorization": "Bearer other"})
    assert status == 200, "another key has its own allowance"
    now += 30
    status, _, _ = await _post(limited, ask, chat(ASK))
    assert status == 200


async def test_models_are_listed() -> None:
    async with simulated(Simulator("groq")) as url, aiohttp.ClientSession() as session:
        async with session.get(f"{url}/v1/models") as response:
            (model,) = (await response.json())["data"]
        async with session.get(f"{url}/v1/models/{model['id']}") as response:
            assert await response.json() == model
        async with session.get(f"{url}/v1/models/other") as response:
            assert response.status == 404


async def test_embeddings_are_unit_vectors_in_both_encodings() -> None:
    body = {"model": "e", "input": ["a", "b"], "dimensions": 8}
    _, _, floats = await _post(Simulator(), "/v1/embeddings", body)
    first, second = (item["embedding"] for item in floats["data"])
    assert first != second
    assert sum(value * value for value in first) == pytest.approx(1.0)
    _, _, packed = await _post(Simulator(), "/v1/embeddings", body | {"encoding_format": "base64"})
    raw = base64.b64decode(packed["data"][0]["embedding"])
    assert array("f", raw).tolist() == pytest.approx(first)


async def test_the_echo_returns_every_byte() -> None:
    every_byte = bytes(range(256))
    async with (
        simulated(Simulator()) as url,
        aiohttp.ClientSession() as session,
        session.put(
            f"{url}/v1/echo/a%2Fb//c?x=1&x=%20&y",
            data=every_byte,
            headers=[("x-twice", "1"), ("x-twice", "2")],
        ) as response,
    ):
        seen = await response.json()
    assert seen["method"] == "PUT"
    assert seen["path"].startswith("/v1/echo/a%2")
    assert seen["query"].startswith("x=1&x=")
    assert seen["body"].encode("latin-1") == every_byte
    assert [pair for pair in seen["headers"] if pair[0] == "x-twice"] == [
        ["x-twice", "1"],
        ["x-twice", "2"],
    ]


async def test_unknown_paths_are_404_in_dialect() -> None:
    status, _, answer = await _post(Simulator(), "/v1/nothing", {})
    assert status == 404
    assert answer["error"]["message"] == "Unknown request URL: POST /v1/nothing."


async def test_a_failing_profile_answers_503() -> None:
    always = Simulator(ProviderProfile(model="m", error=1.0))
    status, _, answer = await _post(always, "/v1/chat/completions", chat(ASK))
    assert status == 503
    assert answer["error"]["type"] == "server_error"


async def test_the_same_seed_meets_the_same_delays() -> None:
    profile = ProviderProfile(model="m", ttft_ms=500, ttft_sigma=0.7)

    async def delays(seed: int) -> list[str]:
        simulator = Simulator(profile, seed=seed, speed=1000)
        async with simulated(simulator) as url, aiohttp.ClientSession() as session:
            seen = []
            for _ in range(5):
                async with session.post(f"{url}/v1/chat/completions", json=chat()) as response:
                    seen.append(response.headers["openai-processing-ms"])
        return seen

    first = await delays(1)
    assert first == await delays(1)
    assert first != await delays(2)


async def test_a_timed_stream_arrives_whole() -> None:
    profile = ProviderProfile(model="m", ttft_ms=300, tokens_per_s=(50, 50))
    simulator = Simulator(profile, speed=100)
    chunks = await _stream(simulator, chat(ASK))
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    assert simulator.oracle.judge(ASK, text)
