"""Each SDK talks to every other provider's API through us, as if it were its own."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NamedTuple

import anthropic
import openai
import pytest
from google import genai
from google.genai import types as gemini

from headstart.decisions import Outcome
from headstart.simulator import Oracle
from headstart.simulator.faults import Status
from headstart.simulator.profiles import Profile
from support.sidecar import PROMPT, Provider, sidecar

pytestmark = [
    pytest.mark.anyio,
    # google-genai derives its own session from aiohttp's.
    pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning"),
]

ANSWER = Oracle().truth(PROMPT).text
KEY = "sk-test"
PROVIDERS = ("openai", "anthropic", "gemini", "cohere")
EXACT = {"mode": "exact-only"}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = "get_weather"
ASKS_FOR_TOOL = "What is the weather in Oslo?"


class Said(NamedTuple):
    """What an SDK makes of an answer."""

    text: str
    tools: tuple[tuple[str, str, Any], ...]
    """Id, name and arguments."""
    tokens: tuple[int, int]
    ended: str
    reasoning: str = ""


class Refused(Exception):
    """An SDK's error: its type's name and its status."""


class Ask(NamedTuple):
    """A call, in no SDK's terms."""

    model: str
    prompt: str = PROMPT
    stream: bool = False
    system: str | None = None
    tools: bool = False
    schema: bool = False
    thinks: bool = False
    result: tuple[Said, str] | None = None
    """The answer that called a tool, and what the tool returned."""


async def say_openai(url: str, ask: Ask) -> Said:
    messages: list[Any] = [{"role": "user", "content": ask.prompt}]
    if ask.system is not None:
        messages.insert(0, {"role": "system", "content": ask.system})
    if ask.result is not None:
        said, result = ask.result
        calls = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": given}}
            for id, name, given in said.tools
        ]
        messages.append({"role": "assistant", "content": said.text or None, "tool_calls": calls})
        messages += [
            {"role": "tool", "tool_call_id": call["id"], "content": result} for call in calls
        ]
    fields: dict[str, Any] = {"model": ask.model, "messages": messages}
    if ask.tools:
        function = {"name": TOOL, "description": "Weather", "parameters": SCHEMA}
        fields["tools"] = [{"type": "function", "function": function}]
    if ask.schema:
        schema = {"name": "trip", "schema": SCHEMA, "strict": True}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    if ask.thinks:
        fields["reasoning_effort"] = "high"
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key=KEY, max_retries=0) as client:
        create = client.chat.completions.create
        try:
            if not ask.stream:
                completion = await create(**fields)
            else:
                async with client.chat.completions.stream(
                    **fields,
                    stream_options={"include_usage": True},
                ) as stream:
                    completion = await stream.get_final_completion()
        except openai.APIStatusError as error:
            raise Refused(type(error).__name__, error.status_code) from error
    choice, usage = completion.choices[0], completion.usage
    message = choice.message
    return Said(
        message.content or "",
        tuple(
            (call.id, call.function.name, call.function.arguments)
            for call in message.tool_calls or ()
        ),
        (usage.prompt_tokens, usage.completion_tokens),
        choice.finish_reason,
        getattr(message, "reasoning_content", None) or "",
    )


async def say_anthropic(url: str, ask: Ask) -> Said:
    messages: list[Any] = [{"role": "user", "content": ask.prompt}]
    if ask.result is not None:
        said, result = ask.result
        used = [
            {"type": "tool_use", "id": id, "name": name, "input": given}
            for id, name, given in said.tools
        ]
        got = [{"type": "tool_result", "tool_use_id": u["id"], "content": result} for u in used]
        messages += [{"role": "assistant", "content": used}, {"role": "user", "content": got}]
    fields: dict[str, Any] = {"model": ask.model, "messages": messages, "max_tokens": 4000}
    if ask.system is not None:
        fields["system"] = ask.system
    if ask.tools:
        fields["tools"] = [{"name": TOOL, "description": "Weather", "input_schema": SCHEMA}]
    if ask.schema:
        fields["output_config"] = {"format": {"type": "json_schema", "schema": SCHEMA}}
    if ask.thinks:
        fields["thinking"] = {"type": "enabled", "budget_tokens": 2000}
    async with anthropic.AsyncAnthropic(base_url=url, api_key=KEY, max_retries=0) as client:
        try:
            if not ask.stream:
                message = await client.messages.create(**fields)
            else:
                async with client.messages.stream(**fields) as stream:
                    message = await stream.get_final_message()
        except anthropic.APIStatusError as error:
            raise Refused(type(error).__name__, error.status_code) from error
    return Said(
        "".join(block.text for block in message.content if block.type == "text"),
        tuple(
            (block.id, block.name, block.input)
            for block in message.content
            if block.type == "tool_use"
        ),
        (message.usage.input_tokens, message.usage.output_tokens),
        str(message.stop_reason),
        "".join(block.thinking for block in message.content if block.type == "thinking"),
    )


async def say_gemini(url: str, ask: Ask) -> Said:
    contents: list[Any] = [gemini.UserContent(ask.prompt)]
    if ask.result is not None:
        said, result = ask.result
        calls = [
            gemini.Part.from_function_call(name=name, args=given) for _, name, given in said.tools
        ]
        got = [
            gemini.Part.from_function_response(name=name, response={"result": result})
            for _, name, _ in said.tools
        ]
        contents += [gemini.ModelContent(calls), gemini.UserContent(got)]
    fields: dict[str, Any] = {"system_instruction": ask.system}
    if ask.tools:
        function = gemini.FunctionDeclaration(
            name=TOOL, description="Weather", parameters_json_schema=SCHEMA
        )
        fields["tools"] = [gemini.Tool(function_declarations=[function])]
    if ask.schema:
        fields["response_mime_type"] = "application/json"
        fields["response_json_schema"] = SCHEMA
    if ask.thinks:
        fields["thinking_config"] = gemini.ThinkingConfig(
            include_thoughts=True, thinking_budget=4000
        )
    config = gemini.GenerateContentConfig(**fields)
    options = gemini.HttpOptions(base_url=url)
    client = genai.Client(api_key=KEY, vertexai=False, http_options=options).aio
    try:
        if not ask.stream:
            answers = [
                await client.models.generate_content(
                    model=ask.model, contents=contents, config=config
                )
            ]
        else:
            stream = await client.models.generate_content_stream(
                model=ask.model, contents=contents, config=config
            )
            answers = [answer async for answer in stream]
    except genai.errors.APIError as error:
        raise Refused(type(error).__name__, error.code) from error
    finally:
        await client.aclose()
    parts = [
        part
        for answer in answers
        for candidate in answer.candidates or ()
        if candidate.content is not None
        for part in candidate.content.parts or ()
    ]
    usage = next(each.usage_metadata for each in reversed(answers) if each.usage_metadata)
    reasons = [c.finish_reason for a in answers for c in a.candidates or () if c.finish_reason]
    return Said(
        "".join(part.text or "" for part in parts if not part.thought),
        tuple(
            (part.function_call.id or "", part.function_call.name or "", part.function_call.args)
            for part in parts
            if part.function_call
        ),
        (usage.prompt_token_count or 0, usage.candidates_token_count or 0),
        reasons[-1].name,
        "".join(part.text or "" for part in parts if part.thought),
    )


CLIENTS = {"openai": say_openai, "anthropic": say_anthropic, "gemini": say_gemini}
ENDED = {"openai": "stop", "anthropic": "end_turn", "gemini": "STOP"}
CALLED = {"openai": "tool_calls", "anthropic": "tool_use", "gemini": "STOP"}
each_client = pytest.mark.parametrize("client", CLIENTS)
each_mode = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


def all_providers(provider: Provider | None = None, **fields: Any) -> Any:
    """Run one simulator behind four upstreams, one for each dialect that it speaks."""

    def upstream(dialect: str) -> dict[str, Any]:
        return {"name": dialect, "dialect": dialect, "models": {f"via-{dialect}": "m"}, **fields}

    return sidecar(
        provider or Provider(api_keys=[KEY]),
        upstream=upstream("openai"),
        others=tuple(upstream(each) for each in PROVIDERS[1:]),
        cache=EXACT,
    )


@each_mode
@each_client
async def test_an_answer_is_the_same_from_everyone_and_then_a_hit(
    client: str, stream: bool
) -> None:
    async with all_providers() as gateway:
        for place, provider in enumerate(PROVIDERS, 1):
            ask = Ask(f"via-{provider}", stream=stream)
            first, second = [await CLIENTS[client](gateway.url, ask) for _ in range(2)]
            assert (first.text, first.ended) == (ANSWER, ENDED[client])
            assert first.tokens[0] > 0
            assert first.tokens[1] > 20
            assert second == first
            assert gateway.outcomes[-2:] == [Outcome.MISS, Outcome.EXACT]
            assert gateway.served[-2].upstream == provider
            assert gateway.provider.calls == place


@each_mode
@each_client
async def test_a_system_prompt_arrives(client: str, stream: bool) -> None:
    async with all_providers() as gateway:
        for provider in PROVIDERS:
            system = "Be kind. " * 40
            ask = Ask(f"via-{provider}", stream=stream, system=system)
            said = await CLIENTS[client](gateway.url, ask)
            assert said.text == ANSWER
            seen = gateway.provider.stats.records()[-1]
            assert seen.prompt_tokens >= len(system) // 4


@each_mode
@each_client
async def test_tools_are_called_and_their_results_come_back(client: str, stream: bool) -> None:
    async with all_providers() as gateway:
        for provider in PROVIDERS:
            model = f"via-{provider}"
            ask = Ask(model, ASKS_FOR_TOOL, stream=stream, tools=True)
            called = await CLIENTS[client](gateway.url, ask)
            assert called.ended == CALLED[client]
            assert [name for _, name, _ in called.tools] == [TOOL]
            given = called.tools[0][2]
            given = json.loads(given) if isinstance(given, str) else given
            assert set(given) == {"city", "days"}
            again = ask._replace(result=(called, "Rain, 7 degrees."))
            said = await CLIENTS[client](gateway.url, again)
            assert (said.ended, said.tools) == (ENDED[client], ())
            assert said.text


@each_mode
@each_client
async def test_a_schema_is_kept_to(client: str, stream: bool) -> None:
    async with all_providers() as gateway:
        for provider in PROVIDERS:
            ask = Ask(f"via-{provider}", stream=stream, schema=True)
            said = await CLIENTS[client](gateway.url, ask)
            assert set(json.loads(said.text)) == {"city", "days"}, provider


UNSHOWN = {
    # Anthropic's API takes back only what it signed, so its clients get nothing else.
    ("anthropic", "openai"),
    ("anthropic", "gemini"),
    ("anthropic", "cohere"),
    # Gemini shows its thoughts on request, which OpenAI's requests cannot express.
    ("openai", "gemini"),
}


@each_mode
@each_client
async def test_reasoning_is_kept_apart_from_the_answer(client: str, stream: bool) -> None:
    async with all_providers() as gateway:
        for provider in PROVIDERS:
            ask = Ask(f"via-{provider}", stream=stream, thinks=True)
            said = await CLIENTS[client](gateway.url, ask)
            assert said.text == ANSWER
            assert bool(said.reasoning) == ((client, provider) not in UNSHOWN), provider


ERRORS = {
    "no-such-model": (
        Status(status=404, message="The model does not exist", code="model_not_found"),
        {
            "openai": ("NotFoundError", 404),
            "anthropic": ("NotFoundError", 404),
            "gemini": ("ClientError", 404),
        },
    ),
    "rate-limit": (
        Status(status=429, headers={"retry-after": "3000"}),
        {
            "openai": ("RateLimitError", 429),
            "anthropic": ("RateLimitError", 429),
            "gemini": ("ClientError", 429),
        },
    ),
    "overloaded": (
        Status(status=529),
        {
            "openai": ("InternalServerError", 503),
            "anthropic": ("OverloadedError", 529),
            "gemini": ("ServerError", 503),
        },
    ),
}


@each_mode
@each_client
@pytest.mark.parametrize("error", ERRORS)
async def test_errors_are_the_clients_own(error: str, client: str, stream: bool) -> None:
    fault, expected = ERRORS[error]
    async with all_providers(Provider(fault=fault)) as gateway:
        for provider in PROVIDERS:
            if provider == client and error == "overloaded":
                continue  # its own API's statuses pass as they are
            ask = Ask(f"via-{provider}", stream=stream)
            with pytest.raises(Refused) as caught:
                await CLIENTS[client](gateway.url, ask)
            assert caught.value.args == expected[client], provider


@each_client
async def test_callers_of_one_dialect_share_a_translated_call(client: str) -> None:
    async with all_providers() as gateway:
        gateway.provider.open.clear()
        ask = Ask("via-gemini" if client != "gemini" else "via-anthropic", stream=True)
        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(CLIENTS[client](gateway.url, ask)) for _ in range(3)]
            await gateway.in_flight(3)
            gateway.provider.open.set()
        assert {task.result().text for task in asking} == {ANSWER}
        assert sorted(gateway.outcomes) == [Outcome.JOINED, Outcome.JOINED, Outcome.MISS]
        assert gateway.provider.calls == 1


@each_mode
@pytest.mark.parametrize(
    ("client", "provider"),
    [("anthropic", "openai"), ("openai", "gemini"), ("gemini", "openai"), ("anthropic", "gemini")],
)
async def test_a_translated_answer_is_booked_at_the_price_of_cached_tokens(
    client: str, provider: str, stream: bool
) -> None:
    price = {"input_per_million": 100.0, "cached_per_million": 1.0, "output_per_million": 10.0}
    simulator = Provider(profile=Profile(model="m", prefix_cache=True), api_keys=[KEY])
    async with all_providers(simulator, price={"m": price}) as gateway:
        for question in ("First?", "Second?"):
            ask = Ask(f"via-{provider}", "word " * 2000 + question, stream=stream)
            await CLIENTS[client](gateway.url, ask)
        await gateway.finished(2)
        seen = gateway.provider.stats.records()[-1]
        assert seen.cached_tokens > 1000
        fresh = seen.prompt_tokens - seen.cached_tokens
        cost_usd = (fresh * 100 + seen.cached_tokens * 1 + seen.answer_tokens * 10) / 1e6
        assert gateway.served[-1].cost_usd == pytest.approx(cost_usd)
        assert gateway.served[-1].attempts[0].cached_tokens == seen.cached_tokens
