"""Values that a model refuses, in requests that were translated for its provider."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headstart.dialects.gemini_generate import GEMINI_GENERATE
from headstart.middleware.upstreams.http import HTTPUpstream
from headstart.middleware.upstreams.refused_values import RefusedValues, ValueRefused
from headstart.settings import UpstreamSettings
from support.candidates import make_call
from support.proxied import Proxied, proxied, reply_of
from support.scripted import ScriptedUpstream
from support.serving import serving

OPENAI = '{"error":{"message":"Unsupported parameter: \'top_p\' is not supported with this model.",'
OPENAI += '"type":"invalid_request_error","param":"top_p","code":"unsupported_parameter"}}'
VLLM = """{"error":{"message":"1 validation error: {'type': 'literal_error', 'loc': ('body',
'reasoning_effort'), 'msg': \\"Input should be 'low', 'medium' or 'high'\\"}","code":400}}"""
MISTRAL = '{"detail":[{"type":"extra_forbidden","loc":["body","seed"],"msg":'
MISTRAL += '"Extra inputs are not permitted"}]}'
ANTHROPIC = '{"type":"error","error":{"type":"invalid_request_error","message":'
ANTHROPIC += '"This model does not support the effort parameter."}}'
FORM = {"output_config": {"effort": "low", "format": {"type": "json_schema"}}}


LIMIT = {"max_completion_tokens": 64000}
VLLM_LIMIT = (
    """{"error":{"message":"'max_tokens' or 'max_completion_tokens' is too large: 64000. This """
    "model's maximum context length is 32768 tokens and your request has 17459 input tokens "
    '(64000 > 32768 - 17459).","param":"max_tokens","code":400}}'
)
OPENAI_LIMIT = (
    '{"error":{"message":"max_tokens is too large: 64000. This model supports at most 16384 '
)
OPENAI_LIMIT += 'completion tokens, whereas you provided 64000.","param":"max_tokens"}}'
GROQ_LIMIT = (
    '{"error":{"message":"`max_completion_tokens` must be less than or equal to `8192`, the "}}'
)
DEEPSEEK_LIMIT = '{"error":{"message":"Invalid max_tokens value, the valid range is [1, 8192]"}}'
CLAUDE_LIMIT = (
    '{"type":"error","error":{"message":"max_tokens: 64000 > 8192, which is the maximum"}}'
)
OLD_LIMIT = (
    """{"error":{"message":"This model's maximum context length is 102400 tokens. However, """
    'you requested 102772 tokens (70772 in the messages, 32000 in the completion)."}}'
)


@pytest.mark.parametrize(
    ("sent", "error", "left"),
    [
        (LIMIT, VLLM_LIMIT, {}),
        (LIMIT, OPENAI_LIMIT, {"max_completion_tokens": 16384}),
        (LIMIT, GROQ_LIMIT, {"max_completion_tokens": 8192}),
        (LIMIT, GROQ_LIMIT.replace("8192", "8192" * 2000), {}),
        (LIMIT, OPENAI_LIMIT.replace("16384", "16,384"), {"max_completion_tokens": 16384}),
        ({"max_tokens": 64000}, DEEPSEEK_LIMIT, {"max_tokens": 8192}),
        ({"max_tokens": 64000}, CLAUDE_LIMIT, {"max_tokens": 8192}),
        ({"max_tokens": 32000}, OLD_LIMIT, {}),
        ({"top_p": 0.9, "temperature": 1}, OPENAI, {"temperature": 1}),
        ({"reasoning_effort": "xhigh"}, VLLM, {"reasoning_effort": "high"}),
        ({"reasoning_effort": "high"}, VLLM, {}),
        ({"seed": 1}, MISTRAL, {}),
        (
            {"output_config": {"effort": "max"}},
            ANTHROPIC,
            {"output_config": {"effort": "high"}},
        ),
        ({"output_config": {"effort": "low"}, "max_tokens": 9}, ANTHROPIC, {"max_tokens": 9}),
        ({"thinking": {"type": "adaptive"}}, '"llama3" does not support thinking', {}),
        ({"presence_penalty": 1}, '{"error":"Argument not supported: presencePenalty"}', {}),
        ({"temperature": 0}, '{"error":{"message":"`temperature` is deprecated here."}}', {}),
    ],
)
def test_a_request_goes_without_a_value_that_the_model_refused(
    sent: dict[str, Any], error: str, left: dict[str, Any]
) -> None:
    refused = RefusedValues()
    body = json.dumps({"model": "m", **sent}).encode()
    with pytest.raises(ValueRefused):
        refused.check("m", 400, body, error.encode())
    written, names = refused.without("m", body)
    assert json.loads(written) == {"model": "m", **left}
    assert names == tuple(name for name in sent if left.get(name) != sent[name])
    other = json.dumps({"model": "n", **sent}).encode()
    assert refused.without("n", other) == (other, ())


def test_a_provider_that_needs_a_limit_gets_the_largest_one_or_the_same() -> None:
    body = b'{"model":"m","max_tokens":64000}'
    refused = RefusedValues(needs_limit=True)
    refused.check("m", 400, body, OLD_LIMIT.encode())
    assert refused.without("m", body) == (body, ())
    with pytest.raises(ValueRefused):
        refused.check("m", 400, body, CLAUDE_LIMIT.encode())
    assert json.loads(refused.without("m", body)[0])["max_tokens"] == 8192


@pytest.mark.parametrize(
    ("sent", "status", "error"),
    [
        ({"top_p": 0.9}, 500, OPENAI),
        ({"temperature": 1}, 400, OPENAI),
        (FORM, 400, ANTHROPIC),
        ({"thinking": {}}, 400, '{"error":"messages.1: thinking blocks must come first"}'),
        (LIMIT, 400, '{"error":"the prompt has 40000 tokens, and the context length is 32768"}'),
        (LIMIT, 400, '{"error":"max_completion_tokens must be an integer"}'),
        (LIMIT, 400, "max_" * 2500),
        ({"seed": 1}, 400, '{"error":"messages.0.seed: Extra inputs are not permitted"}'),
        ({"seed": 1}, 422, MISTRAL.replace('"seed"', '"messages",0,"user","seed"')),
        ({"seed": 1}, 400, '{"error":{"message":"no seed is supported","param":"messages"}}'),
    ],
)
def test_other_errors_leave_nothing_out(sent: dict[str, Any], status: int, error: str) -> None:
    refused = RefusedValues()
    body = json.dumps({"model": "m", **sent}).encode()
    refused.check("m", status, body, error.encode())
    assert refused.without("m", body) == (body, ())


def test_a_limit_that_exceeds_the_context_stays_in_requests_with_shorter_prompts() -> None:
    refused = RefusedValues()
    long, longer, short = (
        json.dumps({"model": "m", "messages": text, "max_tokens": 32000}).encode()
        for text in ("x" * 400, "x" * 500, "x")
    )
    with pytest.raises(ValueRefused):
        refused.check("m", 400, long, OLD_LIMIT.encode())
    for body in (long, longer):
        assert "max_tokens" not in json.loads(refused.without("m", body)[0])
    assert refused.without("m", short) == (short, ())


def test_values_without_end_take_no_more_memory_and_are_still_left_out() -> None:
    refused = RefusedValues()
    for number in range(1100):
        body = json.dumps({"temperature": number}).encode()
        with pytest.raises(ValueRefused):
            refused.check("m", 400, body, b"temperature is not supported")
        assert refused.without("m", body) == (b"{}", ("temperature",))
    assert refused.without("m", b'{"temperature":0}') == (b'{"temperature":0}', ())
    with pytest.raises(ValueRefused):
        refused.check("m", 400, b'{"seed":1}', b"seed is not supported")
    assert refused.without("m", b'{"seed":2}') == (b"{}", ("seed",)), "no seed is supported"


BEDROCK_LIMIT = (
    '{"message":"The maximum tokens you requested exceeds the model limit of 10000. Try '
)
BEDROCK_LIMIT += 'again with a maximum tokens value that is lower than 10000."}'
VERTEX_LIMIT = (
    '{"error":{"message":"Unable to submit request because it has a maxOutputTokens value of '
)
VERTEX_LIMIT += '64000 but the supported range is from 1 (inclusive) to 8193 (exclusive)."}}'


@pytest.mark.parametrize(
    ("place", "sent", "error", "left"),
    [
        ("inferenceConfig", {"maxTokens": 64000}, BEDROCK_LIMIT, {"maxTokens": 10000}),
        (
            "inferenceConfig",
            {"temperature": 1, "topP": 0.9},
            '{"message":"`temperature` and `top_p` cannot both be specified for this model."}',
            {"topP": 0.9},
        ),
        (
            "additionalModelRequestFields",
            {"thinking": {"type": "enabled", "budget_tokens": 1024}, "top_k": 9},
            '{"message":"Malformed input request: #: extraneous key [thinking] is not permitted"}',
            {"top_k": 9},
        ),
        (
            "outputConfig",
            {"effort": "max", "textFormat": {"type": "json_schema"}},
            '{"message":"This model doesn\'t support the effort max. It is not supported."}',
            {"effort": "high", "textFormat": {"type": "json_schema"}},
        ),
        ("generationConfig", {"maxOutputTokens": 64000, "seed": 1}, VERTEX_LIMIT, {"seed": 1}),
        (
            "generationConfig",
            {"thinkingConfig": {"thinkingLevel": "low"}, "topK": 3},
            '{"error":{"message":"Thinking level is not supported for this model."}}',
            {"topK": 3},
        ),
    ],
)
def test_values_within_the_objects_of_bedrock_and_gemini_are_left_out(
    place: str, sent: dict[str, Any], error: str, left: dict[str, Any]
) -> None:
    refused = RefusedValues()
    body = json.dumps({"messages": [], place: sent}).encode()
    with pytest.raises(ValueRefused):
        refused.check("m", 400, body, error.encode())
    assert json.loads(refused.without("m", body)[0]) == {"messages": [], place: left}


def test_a_seed_out_of_range_says_nothing_about_another_callers_seed() -> None:
    refused = RefusedValues()
    error = b"seed: Input should be less than or equal to 9223372036854775807"
    for seed in (2**64, -1):
        body = json.dumps({"seed": seed}).encode()
        with pytest.raises(ValueRefused):
            refused.check("m", 400, body, error)
        assert refused.without("m", body)[0] == b"{}"
    assert refused.without("m", b'{"seed":42}') == (b'{"seed":42}', ())


def test_a_temperature_that_is_refused_with_thinking_stays_in_requests_without() -> None:
    refused = RefusedValues()
    body = b'{"reasoning_effort":"high","temperature":0.2}'
    with pytest.raises(ValueRefused):
        refused.check("m", 400, body, b"temperature is not supported with this effort")
    assert refused.without("m", body)[0] == b'{"reasoning_effort":"high"}'
    other = b'{"reasoning_effort":"none","temperature":0.2}'
    assert refused.without("m", other) == (other, ())


def test_a_field_that_is_refused_because_of_another_is_left_out_itself() -> None:
    refused = RefusedValues()
    body = b'{"reasoning_effort":"high","top_p":0.9}'
    with pytest.raises(ValueRefused):
        refused.check("m", 400, body, b"`top_p` is not supported when thinking is enabled")
    assert refused.without("m", body) == (b'{"reasoning_effort":"high"}', ("top_p",))


@pytest.mark.parametrize(
    ("error", "left"),
    [
        ("max_tokens (64000) cannot be greater than 32768", {"max_tokens": 32768}),
        ("this model supports up to 8192, max_tokens is 64000", {"max_tokens": 8192}),
        ("Range of max_tokens should be [1, 8192]", {"max_tokens": 8192}),
    ],
)
def test_other_words_for_limits_are_known(error: str, left: dict[str, Any]) -> None:
    refused = RefusedValues()
    with pytest.raises(ValueRefused):
        refused.check("m", 400, b'{"max_tokens":64000}', error.encode())
    assert json.loads(refused.without("m", b'{"max_tokens":64000}')[0]) == left


def test_a_temperature_that_is_not_the_only_one_allowed_is_left_out() -> None:
    refused = RefusedValues()
    with pytest.raises(ValueRefused):
        refused.check("m", 400, b'{"temperature":0.5}', b"invalid temperature: only 1 is allowed")
    assert refused.without("m", b'{"temperature":0.5}')[0] == b"{}"


def test_a_limit_that_another_model_takes_is_lowered_for_this_one() -> None:
    refused = RefusedValues()
    for model, asked, most in (("m", 64000, 16384), ("n", 16384, 8192)):
        body = json.dumps({"max_tokens": asked}).encode()
        with pytest.raises(ValueRefused):
            refused.check(model, 400, body, f"max_tokens: at most {most}".encode())
        assert json.loads(refused.without(model, body)[0]) == {"max_tokens": most}


class Shrinking(ScriptedUpstream):
    """Refuses each limit, and names one that is smaller by 1."""

    async def _answer(self, call: Any, send: Any) -> None:
        self.status, self.body = 200, None
        if limit := call.json.get("max_completion_tokens"):
            error = f"max_tokens is too large: this model takes at most {limit - 1}"
            self.status, self.body = 400, json.dumps({"error": {"message": error}}).encode()
        await super()._answer(call, send)


@pytest.mark.anyio
async def test_a_provider_that_refuses_the_limit_that_it_named_gets_none() -> None:
    server = Shrinking()
    async with proxied(server) as proxy:
        assert await asked(proxy, maxOutputTokens=64000) == 200
    sent = [call.json.get("max_completion_tokens") for call in server.calls]
    assert sent == [64000, 63999, None]


class Strict(ScriptedUpstream):
    """Refuses fields one after the other, as OpenAI does for models that reason."""

    refuses = ("temperature", "top_p")

    async def _answer(self, call: Any, send: Any) -> None:
        self.status, self.body = 200, None
        for name in self.refuses:
            if name in call.json:
                error = {"message": f"Unsupported value: '{name}'.", "param": name}
                self.status, self.body = 400, json.dumps({"error": error}).encode()
                break
        await super()._answer(call, send)


ASKED = {
    "contents": [{"role": "user", "parts": [{"text": "Why?"}]}],
    "generationConfig": {"temperature": 1, "topP": 0.95, "maxOutputTokens": 9},
}
PATH = "/v1beta/models/m:generateContent"


@pytest.mark.anyio
async def test_a_translated_request_is_sent_again_without_refused_values() -> None:
    server = Strict()
    async with proxied(server) as proxy:
        replies = []
        for _ in range(2):
            headers = {"x-goog-api-key": "k", "cache-control": "no-store"}
            async with proxy.session.post(
                proxy.url + PATH, json=ASKED, headers=headers
            ) as response:
                replies.append(await reply_of(response))
        rows = list(proxy.served)
    assert [reply.status for reply in replies] == [200, 200]
    told = replies[1].headers["x-headstart-transforms"]
    assert told.endswith("dropped:temperature,dropped:top_p")
    assert len(server.calls) == 4, "the values are known from the first request on"
    assert server.calls[-1].json.keys().isdisjoint(server.refuses)
    assert server.calls[-1].json["max_completion_tokens"] == 9
    assert [len(row.attempts) for row in rows] == [1, 1]


@pytest.mark.anyio
async def test_a_provider_that_shall_refuse_gets_no_other_request() -> None:
    server = Strict()
    async with proxied(server, provider={"unsupported": "refuse"}) as proxy:
        headers = {"x-goog-api-key": "k"}
        async with proxy.session.post(proxy.url + PATH, json=ASKED, headers=headers) as response:
            assert response.status == 400
    assert len(server.calls) == 1


@pytest.mark.anyio
async def test_a_request_in_the_providers_own_dialect_stays_as_it_is() -> None:
    server = Strict()
    async with proxied(server) as proxy:
        assert (await proxy.ask(temperature=1)).status == 400
    assert len(server.calls) == 1


class Refusing(ScriptedUpstream):
    """Refuses a temperature. ``always``: it answers no request. ``then``: its next statuses."""

    always = ""
    then: tuple[int, ...] = ()

    async def _answer(self, call: Any, send: Any) -> None:
        self.status, self.body = 200, None
        if "temperature" in call.json or self.always:
            quoted = self.always or "temperature is not supported"
            self.status, self.body = 400, json.dumps({"error": {"message": quoted}}).encode()
        elif self.then:
            (self.status, *rest), self.body = self.then, b"{}"
            self.then = tuple(rest)
        await super()._answer(call, send)


async def asked(proxy: Proxied, **settings: Any) -> int:
    document = {**ASKED, "generationConfig": settings}
    headers = {"x-goog-api-key": "k", "cache-control": "no-store"}
    async with proxy.session.post(proxy.url + PATH, json=document, headers=headers) as response:
        return response.status


@pytest.mark.anyio
async def test_an_error_that_quotes_the_prompt_makes_no_value_a_refused_one() -> None:
    server = Refusing()
    async with proxied(server) as proxy:
        server.always = "images are not supported: which seed and top_p did you mean?"
        assert await asked(proxy, topP=0.5, seed=3) == 400
        assert len(server.calls) == 3
        server.always = ""
        assert await asked(proxy, topP=0.5, seed=3) == 200
    assert (server.calls[-1].json["top_p"], server.calls[-1].json["seed"]) == (0.5, 3)


@pytest.mark.anyio
async def test_a_provider_that_is_down_is_not_asked_twice_as_often() -> None:
    server = Refusing()
    server.then = (503,)
    async with proxied(server) as proxy:
        assert await asked(proxy, temperature=1) == 200
    assert ["temperature" in call.json for call in server.calls] == [True, False, False]


@pytest.mark.anyio
async def test_a_field_that_the_operator_set_is_always_sent() -> None:
    server = Refusing()
    async with proxied(server, provider={"fields": {"temperature": 0.3}}) as proxy:
        assert await asked(proxy) == 400
    assert len(server.calls) == 1


@pytest.mark.anyio
async def test_a_provider_whose_path_names_the_model_gets_one_more_request() -> None:
    server = Refusing()
    server.always = "temperature is not supported"
    provider = {"dialect": "anthropic", "quirks": {"raw_predict": True}}
    async with proxied(server, provider=provider) as proxy:
        assert (await proxy.ask(temperature=0.5)).status == 400
    assert ["temperature" in call.json for call in server.calls] == [True, False]


@pytest.mark.anyio
async def test_calls_of_commands_go_without_refused_values_too() -> None:
    server = Refusing()
    async with serving(server) as url:
        upstream = HTTPUpstream(UpstreamSettings(name="u", base_url=url, dialect="openai"))
        body = json.dumps({**ASKED, "model": "m"}).encode()
        call = make_call(body, GEMINI_GENERATE, path=PATH.encode())
        async with await upstream.send(call) as reply:
            assert reply.status == 200
        await upstream.aclose()
    assert len(server.calls) == 2


class Thinking(ScriptedUpstream):
    """Refuses turns of the model without reasoning, as Kimi does."""

    async def _answer(self, call: Any, send: Any) -> None:
        self.status, self.body = 200, None
        turns = [each for each in call.json["messages"] if each["role"] == "assistant"]
        if not all(turn.get("reasoning_content") for turn in turns):
            told = "thinking is enabled but reasoning_content is missing in assistant tool call "
            error = {"message": told + "message at index 1"}
            self.status, self.body = 400, json.dumps({"error": error}).encode()
        await super()._answer(call, send)


@pytest.mark.anyio
async def test_a_model_that_wants_its_reasoning_back_gets_a_blank_one() -> None:
    """The client asked to see no reasoning, or another provider made the turn."""
    server = Thinking()
    call = {"type": "tool_use", "id": "1", "name": "look", "input": {}}
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "headstart:reasoning_content"}
    result = {"type": "tool_result", "tool_use_id": "1", "content": "ok"}
    body = {
        "model": "m",
        "max_tokens": 9,
        "messages": [
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": [thought, call]},
            {"role": "user", "content": [result]},
            {"role": "assistant", "content": "Yes."},
            {"role": "user", "content": "Go on."},
        ],
    }
    async with proxied(server) as proxy:
        for _ in range(2):
            headers = {"x-api-key": "k", "cache-control": "no-store"}
            url = proxy.url + "/v1/messages"
            async with proxy.session.post(url, json=body, headers=headers) as response:
                reply = await reply_of(response)
                assert reply.status == 200
    assert "dropped:reasoning_content" in reply.headers["x-headstart-transforms"]
    assert len(server.calls) == 3, "the model is known from the first request on"
    turns = [each for each in server.calls[-1].json["messages"] if each["role"] == "assistant"]
    assert [turn["reasoning_content"] for turn in turns] == ["Hm.", " "]


@pytest.mark.parametrize(
    "error",
    [
        "The `reasoning_content` in the thinking mode must be passed back to the API.",
        "messages with tool_calls must include reasoning_content",
    ],
)
def test_other_words_for_missing_reasoning_are_known(error: str) -> None:
    refused = RefusedValues()
    body = b'{"model":"m","messages":[{"role":"assistant","content":"a"}]}'
    with pytest.raises(ValueRefused):
        refused.check("m", 400, body, error.encode())
    sent, names = refused.without("m", body)
    assert names == ("reasoning_content",)
    refused.check("m", 400, sent, error.encode())
    assert refused.without("n", b'{"model":"n","messages":[]}')[1] == ()
