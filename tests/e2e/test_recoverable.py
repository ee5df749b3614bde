"""Recoverable compression through the whole proxy, with the official clients."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import anthropic
import openai
import pytest
from google import genai
from google.genai import types as gemini

from headstart.compression.result import RETRIEVE, id_of
from headstart.observe import Served
from support.patience import PATIENCE_S
from support.proxied import CHAT, Proxied, proxied, reply_of
from support.reading_model import USAGE, Answer, Calls, ReadingModel, Says, Thinks

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning"),
]

LOG = "\n".join(
    f"2026-11-21 10:{n // 60:02}:{n % 60:02} INFO worker {n * 7 % 13} took {n * 31 % 97}ms "
    f"order={n:05}"
    for n in range(400)
)
LINE = LOG.splitlines()[217]
MARK = re.compile(RETRIEVE + r'\(\\?"([0-9a-f]{8})')
TOOLS = [{"type": "function", "function": {"name": "logs", "parameters": {"type": "object"}}}]
RECOVERABLE: Any = {"compression": {"mode": "recoverable"}}


def looks_up(document: dict[str, Any]) -> Answer:
    """Look for the order in what was cut, and say its line."""
    written = json.dumps(document)
    last = json.dumps(list(document.get("messages") or document["contents"])[-1])
    if LINE in last:
        return [Says(f"The line is: {LINE}")]
    if f"The line is: {LINE}" in written:
        return [Says("As I said.")]
    id = MARK.search(json.dumps(document.get("messages") or document["contents"]))
    assert id is not None, "nothing was cut"
    arguments = {"id": id[1], "query": "order=00217"}
    return [Says("Let me look."), Calls("call_r1", RETRIEVE, arguments)]


def chat(*more: Any, **fields: Any) -> Any:
    call = {"id": "c1", "type": "function", "function": {"name": "logs", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "What happened in the night?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": LOG},
        *more,
    ]
    return {"model": "m", "messages": messages, "tools": TOOLS, **fields}


def client(proxy: Proxied) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="k", max_retries=0)


WAYS = [
    pytest.param(True, 0.0, id="streamed at once"),
    pytest.param(True, 0.003, id="streamed event by event"),
    pytest.param(False, 0.0, id="whole"),
]


@pytest.mark.parametrize(("stream", "pause_s"), WAYS)
async def test_the_model_reads_what_was_cut_and_the_client_sees_one_answer(
    pause_s: float, *, stream: bool
) -> None:
    async with proxied(ReadingModel(looks_up, pause_s=pause_s), **RECOVERABLE) as proxy:
        async with client(proxy) as sdk:
            api: Any = sdk.chat.completions
            if stream:
                usage = {"include_usage": True}
                async with api.stream(**chat(), stream_options=usage) as events:
                    done = await events.get_final_completion()
            else:
                done = await api.create(**chat())
        first, second = (call.json for call in proxy.upstream.calls)
        await proxy.until(Served, 1)
    (choice,) = done.choices
    said = (choice.message.content or "").replace(" The", "The").strip()
    assert said == f"Let me look.The line is: {LINE}"
    assert not choice.message.tool_calls
    assert choice.finish_reason == "stop"
    assert done.usage is not None
    assert done.usage.prompt_tokens == 2 * USAGE[0]
    # The first call had the tool and a short log; the second one has the first as its prefix.
    assert first["tools"][-1]["function"]["name"] == RETRIEVE
    assert len(first["messages"][-1]["content"]) < len(LOG) / 5
    assert second["tools"] == first["tools"]
    assert second["messages"][: len(first["messages"])] == first["messages"]
    made, result = second["messages"][len(first["messages"]) :]
    assert made["tool_calls"][0]["function"]["name"] == RETRIEVE
    assert result["tool_call_id"] == "call_r1"
    assert LINE in result["content"]
    row = proxy.served[0]
    assert [each.role.value for each in row.attempts] == ["first", "retrieve"]
    assert [each.kind for each in row.shaped] == ["compress", "retrieve"]


@pytest.mark.parametrize("stream", [True, False])
async def test_later_turns_hold_the_hidden_calls_so_the_prefix_stays(*, stream: bool) -> None:
    async with proxied(ReadingModel(looks_up), **RECOVERABLE) as proxy:
        reply = await ask(proxy, chat(stream=stream))
        more = [{"role": "assistant", "content": reply}, {"role": "user", "content": "Sure?"}]
        again = await ask(proxy, chat(*more))
        _, second, third = (call.json for call in proxy.upstream.calls)
        # Somebody else with the same conversation does not get the hidden calls.
        await ask(proxy, chat(*more), key="other")
        other = proxy.upstream.calls[-1].json
    assert again == "As I said."
    assert third["messages"][: len(second["messages"])] == second["messages"]
    assert third["messages"][-2]["content"].strip() == f"The line is: {LINE}"
    assert [each["role"] for each in other["messages"]] == [
        "user", "assistant", "tool", "assistant", "user",
    ]  # fmt: skip


async def ask(proxy: Proxied, document: dict[str, Any], key: str = "k") -> str:
    headers = {"authorization": f"Bearer {key}", "cache-control": "no-cache"}
    async with proxy.session.post(proxy.url + CHAT, json=document, headers=headers) as response:
        body = (await reply_of(response)).body
    assert response.status == 200, body
    if not document.get("stream"):
        return str(json.loads(body)["choices"][0]["message"]["content"])
    chunks = [json.loads(line[6:]) for line in body.split(b"\n") if line.startswith(b"data: {")]
    deltas = [choice["delta"] for each in chunks for choice in each["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


def mixed(document: dict[str, Any]) -> Answer:
    """Call our tool and a tool of the client at once, and then say what came."""
    last = list(document.get("messages") or document["contents"])[-3:]
    if LINE in json.dumps(last):
        return [Says("Both came.")]
    answer = looks_up(document)
    return [*answer, Calls("call_c2", "logs", {"page": 2})]


async def test_a_call_beside_one_of_the_clients_is_answered_with_the_clients_result() -> None:
    async with proxied(ReadingModel(mixed), **RECOVERABLE) as proxy:
        async with client(proxy) as sdk:
            api: Any = sdk.chat.completions
            first = await api.create(**chat())
            message = first.choices[0].message
            result = {"role": "tool", "tool_call_id": "call_c2", "content": "page two"}
            second = await api.create(**chat(message.model_dump(exclude_none=True), result))
        sent = proxy.upstream.calls[-1].json["messages"][3:]
        calls = len(proxy.upstream.calls)
    assert [each.id for each in message.tool_calls or ()] == ["call_c2"]
    assert first.choices[0].finish_reason == "tool_calls"
    assert calls == 2, "the client's call is its own to answer: nobody is asked before"
    made, ours, theirs = sent
    assert [each["id"] for each in made["tool_calls"]] == ["call_r1", "call_c2"]
    assert ours["tool_call_id"] == "call_r1"
    assert LINE in ours["content"]
    assert theirs == result
    assert second.choices[0].message.content == "Both came."


def thinks(document: dict[str, Any]) -> Answer:
    return [Thinks("Which line?", "sig-1"), *looks_up(document)]


CLAUDE: Any = {
    "model": "claude-x",
    "max_tokens": 500,
    "tools": [{"name": "logs", "input_schema": {"type": "object"}}],
    "messages": [
        {"role": "user", "content": "What happened in the night?"},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "c1", "name": "logs", "input": {}}],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "c1", "content": LOG}],
        },
    ],
}


@pytest.mark.parametrize(("stream", "pause_s"), WAYS)
async def test_anthropics_sdk_gets_one_answer_and_signatures_hold(
    pause_s: float, *, stream: bool
) -> None:
    provider: Any = {"dialect": "anthropic"}
    async with (
        proxied(ReadingModel(thinks, pause_s=pause_s), provider=provider, **RECOVERABLE) as proxy,
        anthropic.AsyncAnthropic(base_url=proxy.url, api_key="k", max_retries=0) as sdk,
    ):
        api: Any = sdk.messages
        stops = 0
        if stream:
            async with api.stream(**CLAUDE) as events:
                async for each in events:
                    stops += each.type == "content_block_stop"
                done = await events.get_final_message()
            assert stops == len(done.content), "each block ends once"
        else:
            done = await api.create(**CLAUDE)
        kept = [block.model_dump(exclude_none=True) for block in done.content]
        more = [{"role": "assistant", "content": kept}, {"role": "user", "content": "Sure?"}]
        await api.create(**{**CLAUDE, "messages": [*CLAUDE["messages"], *more]})
        first, second, third = (call.json for call in proxy.upstream.calls)
    kinds = [block.type for block in done.content]
    assert kinds == ["thinking", "text", "thinking", "text"]
    assert done.stop_reason == "end_turn"
    assert done.usage.output_tokens == 2 * USAGE[1]
    assert second["messages"][: len(first["messages"])] == first["messages"]
    made, result = second["messages"][len(first["messages"]) :]
    assert [block["type"] for block in made["content"]] == ["thinking", "text", "tool_use"]
    assert made["content"][0]["signature"] == "sig-1"
    assert result["content"][0]["tool_use_id"] == "call_r1"
    assert third["messages"][: len(second["messages"])] == second["messages"]
    last = third["messages"][-2]
    assert [block["type"] for block in last["content"]] == ["thinking", "text"]


@pytest.mark.parametrize("stream", [True, False])
async def test_anthropics_results_of_both_stand_in_one_message(*, stream: bool) -> None:
    provider: Any = {"dialect": "anthropic"}
    async with (
        proxied(ReadingModel(mixed), provider=provider, **RECOVERABLE) as proxy,
        anthropic.AsyncAnthropic(base_url=proxy.url, api_key="k", max_retries=0) as sdk,
    ):
        api: Any = sdk.messages
        if stream:
            async with api.stream(**CLAUDE) as events:
                done = await events.get_final_message()
        else:
            done = await api.create(**CLAUDE)
        kept = [block.model_dump(exclude_none=True) for block in done.content]
        result = {"type": "tool_result", "tool_use_id": "call_c2", "content": "page two"}
        more = [{"role": "assistant", "content": kept}, {"role": "user", "content": [result]}]
        await api.create(**{**CLAUDE, "messages": [*CLAUDE["messages"], *more]})
        made, results = proxy.upstream.calls[-1].json["messages"][3:]
    assert [block["type"] for block in kept] == ["text", "tool_use"]
    assert done.stop_reason == "tool_use"
    calls = [block["id"] for block in made["content"] if block["type"] == "tool_use"]
    assert calls == ["call_r1", "call_c2"]
    assert [block["tool_use_id"] for block in results["content"]] == calls


@pytest.mark.parametrize("stream", [True, False])
async def test_geminis_sdk_gets_one_answer(*, stream: bool) -> None:
    provider: Any = {"dialect": "gemini"}
    history: Any = [
        {"role": "user", "parts": [{"text": "What happened in the night?"}]},
        {"role": "model", "parts": [{"functionCall": {"name": "logs", "args": {}}}]},
        {
            "role": "user",
            "parts": [{"functionResponse": {"name": "logs", "response": {"output": LOG}}}],
        },
    ]
    declared = gemini.FunctionDeclaration(name="logs", description="logs")
    config = gemini.GenerateContentConfig(
        tools=[gemini.Tool(function_declarations=[declared])],
        automatic_function_calling=gemini.AutomaticFunctionCallingConfig(disable=True),
    )
    async with proxied(ReadingModel(looks_up), provider=provider, **RECOVERABLE) as proxy:
        options = gemini.HttpOptions(base_url=proxy.url)
        sdk = genai.Client(api_key="k", http_options=options).aio
        api: Any = sdk.models
        if stream:
            said = ""
            async for each in await api.generate_content_stream(
                model="g", contents=history, config=config
            ):
                said += each.text or ""
        else:
            done = await api.generate_content(model="g", contents=history, config=config)
            said = done.text or ""
        await sdk.aclose()
        first, second = (call.json for call in proxy.upstream.calls)
    assert said == f"Let me look.The line is: {LINE}"
    (declared_tools,) = first["tools"]
    assert [each["name"] for each in declared_tools["functionDeclarations"]] == ["logs", RETRIEVE]
    made, result = second["contents"][3:]
    assert made["parts"][-1]["thoughtSignature"] == "sig-call_r1"
    assert LINE in json.dumps(result)


async def test_after_the_last_retrieval_the_prompt_goes_up_whole() -> None:
    asked = 0

    def never_content(document: dict[str, Any]) -> Answer:
        nonlocal asked
        if LOG in [each.get("content") for each in document["messages"]]:
            return [Says("Read it all.")]
        asked += 1
        return [Calls(f"call_{asked}", RETRIEVE, {"id": id_of(LOG), "query": "worker"})]

    async with proxied(
        ReadingModel(never_content), compression={"mode": "recoverable", "retrievals": 2}
    ) as proxy:
        assert await ask(proxy, chat()) == "Read it all."
        last = proxy.upstream.calls[-1].json
        calls = len(proxy.upstream.calls)
    assert calls == 4
    assert last == chat()


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "none"},
        {"tool_choice": {"type": "function", "function": {"name": "logs"}}},
        {"tools": [{"type": "function", "function": {"name": RETRIEVE}}]},
        {"n": 2},
        {"tools": [], "response_format": {"type": "json_object"}},
    ],
)
async def test_a_request_that_must_not_get_the_tool_is_not_cut(fields: dict[str, Any]) -> None:
    async with proxied(ReadingModel(lambda _: [Says("Yes.")]), **RECOVERABLE) as proxy:
        await ask(proxy, chat(**fields))
        (call,) = proxy.upstream.calls
    assert call.json == chat(**fields)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_model_that_must_call_a_tool_may_read_and_then_calls_one(*, stream: bool) -> None:
    """Such a request has the same tools and cuts as its neighbours, so their prefix stays."""

    def reads_then_calls(document: dict[str, Any]) -> Answer:
        last = json.dumps(document["messages"][-1])
        return [Calls("c2", "logs", {})] if LINE in last else looks_up(document)

    async with proxied(ReadingModel(reads_then_calls), **RECOVERABLE) as proxy:
        async with client(proxy) as sdk:
            api: Any = sdk.chat.completions
            asked = chat(tool_choice="required")
            if stream:
                async with api.stream(**asked) as events:
                    done = await events.get_final_completion()
            else:
                done = await api.create(**asked)
        await ask(proxy, chat())
        first, second, free = (call.json for call in proxy.upstream.calls[:3])
    (made,) = done.choices[0].message.tool_calls
    assert made.function.name == "logs"
    assert done.choices[0].finish_reason == "tool_calls"
    assert (first["tools"], first["messages"]) == (free["tools"], free["messages"])
    assert second["tool_choice"] == "required"


async def test_a_model_without_tools_gets_the_prompt_without_cuts() -> None:
    def refuses(document: dict[str, Any]) -> Answer:
        return [Says("Plain.")]

    class NoTools(ReadingModel):
        async def _answer(self, call: Any, send: Any) -> None:
            self.status = 400 if call.json.get("tools") else 200
            self.body = b'{"error":{"message":"m does not support tools"}}'
            await super()._answer(call, send)

    text = f"What happened in the night?\n<document>\n{LOG}\n</document>"
    document = {"model": "m", "messages": [{"role": "user", "content": text}]}
    async with proxied(NoTools(refuses), **RECOVERABLE) as proxy:
        assert await ask(proxy, document) == "Plain."
        assert await ask(proxy, document) == "Plain."
        tools = ["tools" in call.json for call in proxy.upstream.calls]
    assert tools == [True, False, False], "the model is remembered"


async def test_the_tool_is_there_from_the_first_turn_of_a_long_conversation() -> None:
    async with proxied(ReadingModel(lambda _: [Says("Yes.")]), **RECOVERABLE) as proxy:
        system = {"role": "system", "content": "Rule. " * 2000}
        first = {"model": "m", "tools": TOOLS}
        await ask(proxy, {**first, "messages": [system, {"role": "user", "content": "Hi"}]})
        (call,) = proxy.upstream.calls
    assert [each["function"]["name"] for each in call.json["tools"]] == ["logs", RETRIEVE]


async def test_a_cut_after_a_long_beginning_without_the_tool_is_not_made() -> None:
    async with proxied(ReadingModel(lambda _: [Says("Yes.")]), **RECOVERABLE) as proxy:
        messages = [
            {"role": "system", "content": "Rule. " * 2000},
            {"role": "user", "content": f"Why?\n<document>\n{LOG}\n</document>"},
        ]
        await ask(proxy, {"model": "m", "messages": messages})
        (call,) = proxy.upstream.calls
    assert call.json == {"model": "m", "messages": messages}


async def test_a_client_that_leaves_during_a_retrieval_cancels_it() -> None:
    upstream = ReadingModel(looks_up)
    async with proxied(upstream, **RECOVERABLE) as proxy:
        upstream.head_hold = None
        entered = asyncio.Event()
        answer = upstream._answer

        async def slow(call: Any, send: Any) -> None:
            if len(upstream.calls) > 1:
                entered.set()
                await call.left.wait()
                return
            await answer(call, send)

        upstream._answer = slow  # type: ignore[method-assign]
        async with proxy.session.post(proxy.url + CHAT, json=chat(stream=True)) as response:
            await response.content.readany()
            async with asyncio.timeout(PATIENCE_S):
                await entered.wait()
            response.close()
        async with asyncio.timeout(PATIENCE_S):
            await upstream.calls[1].left.wait()


async def test_an_upstream_that_breaks_in_a_retrieval_breaks_the_answer_openly() -> None:
    upstream = ReadingModel(looks_up)
    answer = upstream._answer

    async def breaks(call: Any, send: Any) -> None:
        upstream.status = 200 if len(upstream.calls) == 1 else 500
        await answer(call, send)

    upstream._answer = breaks  # type: ignore[method-assign]
    async with proxied(upstream, **RECOVERABLE) as proxy:
        headers = {"authorization": "Bearer k"}
        async with proxy.session.post(
            proxy.url + CHAT, json=chat(stream=True), headers=headers
        ) as response:
            body = (await reply_of(response)).body
        await proxy.until(Served, 1)
    assert b"[DONE]" not in body
    assert b'"error"' in body
    assert not proxy.served[0].stored
