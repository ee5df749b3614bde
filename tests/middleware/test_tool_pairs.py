"""Histories whose tool calls and results are not in pairs, at providers of other dialects."""

from __future__ import annotations

from time import process_time
from typing import Any

import pytest

from headstart.canonical_request import CallPart, Message, TextPart, name_results
from support.proxied import proxied, reply_of

pytestmark = pytest.mark.anyio


def said(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": text}


def call(id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": id, "name": "look", "arguments": "{}"}


def result(id: str, text: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": id, "output": text}


ASKED, GO_ON = said("user", "Look."), said("user", "Go on.")
LONG = "call_" + "x" * 70
HISTORIES: dict[str, tuple[list[Any], list[str]]] = {
    "in pairs": (
        [ASKED, call("1"), call("2"), result("2", "b"), result("1", "a")],
        ["user Look.", "calls 1 2", "2 b", "1 a"],
    ),
    "a note before a result": (
        [ASKED, call("1"), said("developer", "It is late."), result("1", "a"), GO_ON],
        [
            "user Look.",
            "calls 1",
            "1 a",
            "user <system-reminder>\nIt is late.\n</system-reminder>\nGo on.",
        ],
    ),
    "words of the model before a result": (
        [ASKED, call("1"), said("assistant", "I wait."), result("1", "a")],
        ["user Look.", "I wait. calls 1", "1 a"],
    ),
    "a late result": (
        [ASKED, call("1"), GO_ON, said("assistant", "Yes."), result("1", "a"), GO_ON],
        ["user Look.", "calls 1", "1 a", "user Go on.", "assistant Yes.", "user Go on."],
    ),
    "a result before the last call": (
        [ASKED, result("1", "a"), call("1")],
        ["user Look.", "calls 1", "1 a"],
    ),
    "an interrupted call": (
        [ASKED, call("1"), call("2"), result("1", "a"), GO_ON],
        ["user Look.", "calls 1 2", "1 a", "2 (no result)", "user Go on."],
    ),
    "a result twice": (
        [ASKED, call("1"), call("2"), *[result("1", "a"), result("2", "b")] * 2, GO_ON],
        ["user Look.", "calls 1 2", "1 a", "2 b", "user Go on."],
    ),
    "another result of a call": (
        [ASKED, call("1"), result("1", "a"), result("1", "b"), result("1", "a"), GO_ON],
        [
            "user Look.",
            "calls 1",
            "1 a",
            "user The result of an earlier tool call:\nb\nGo on.",
        ],
    ),
    "a conversation that begins with the model": (
        [said("developer", "Be kind."), said("assistant", "Hello."), ASKED],
        ["system Be kind.", "user (no message)", "assistant Hello.", "user Look."],
    ),
    "a conversation that begins with a call": (
        [call("1"), result("1", "a"), GO_ON],
        ["user (no message)", "calls 1", "1 a", "user Go on."],
    ),
    "a blank beginning of the model": (
        [said("assistant", " "), ASKED],
        ["user Look."],
    ),
    "nothing but a blank text": ([said("user", " ")], ["user (no message)"]),
    "a blank text after a turn of the model": (
        [ASKED, said("assistant", "One."), said("user", "")],
        ["user Look.", "assistant One.", "user (no message)"],
    ),
    "two turns of the model in a row": (
        [ASKED, said("assistant", "One."), said("assistant", "Two."), GO_ON],
        ["user Look.", "assistant One.\nTwo.", "user Go on."],
    ),
    "a result whose call was cut off": (
        [result("0", "z"), said("assistant", "Yes."), GO_ON],
        ["user The result of an earlier tool call:\nz", "assistant Yes.", "user Go on."],
    ),
}


def summary(message: dict[str, Any]) -> str:
    text = message["content"] or ""
    if message["role"] == "tool":
        return f"{message['tool_call_id']} {text}"
    if calls := message.get("tool_calls"):
        return f"{text} calls {' '.join(each['id'] for each in calls)}".strip()
    return f"{message['role']} {text}"


@pytest.mark.parametrize(("history", "sent"), HISTORIES.values(), ids=HISTORIES.keys())
async def test_each_call_has_one_result_directly_after_it(
    history: list[Any], sent: list[str]
) -> None:
    """OpenAI's Responses API takes these histories. Most other APIs refuse them."""
    async with proxied() as proxy:
        body = {"model": "m", "input": history, "store": False}
        async with proxy.session.post(proxy.url + "/v1/responses", json=body) as response:
            assert (await reply_of(response)).status == 200
        assert [summary(each) for each in proxy.upstream.calls[0].json["messages"]] == sent


@pytest.mark.parametrize("dialect", ["anthropic", "bedrock", "gemini"])
async def test_the_user_begins_the_conversation(dialect: str) -> None:
    async with proxied(provider={"dialect": dialect}) as proxy:
        body = {"model": "m", "input": [said("assistant", "Hello."), ASKED], "store": False}
        async with proxy.session.post(proxy.url + "/v1/responses", json=body):
            pass
        sent = proxy.upstream.calls[0].json
    turns = sent["contents"] if dialect == "gemini" else sent["messages"]
    assert [turn["role"] for turn in turns][::2] == ["user", "user"]
    assert "(no message)" in str(turns[0])


async def test_openai_takes_a_conversation_that_begins_with_the_model() -> None:
    async with proxied(provider={"quirks": {"system": "anywhere"}}) as proxy:
        body = {"model": "m", "input": [said("assistant", "Hello."), ASKED], "store": False}
        async with proxy.session.post(proxy.url + "/v1/responses", json=body):
            pass
        messages = proxy.upstream.calls[0].json["messages"]
    assert [summary(each) for each in messages] == ["assistant Hello.", "user Look."]


@pytest.mark.parametrize("dialect", ["anthropic", "bedrock"])
async def test_ids_that_are_equal_without_odd_characters_stay_two(dialect: str) -> None:
    history = [ASKED, call("a.b"), call("a_b"), result("a_b", "2"), result("a.b", "1"), GO_ON]
    async with proxied(provider={"dialect": dialect}) as proxy:
        body = {"model": "m", "input": history, "store": False}
        async with proxy.session.post(proxy.url + "/v1/responses", json=body):
            pass
        _, turn, results = proxy.upstream.calls[0].json["messages"]
    if dialect == "anthropic":
        ids = [block["id"] for block in turn["content"]]
        told = {each["tool_use_id"]: each["content"] for each in results["content"][:2]}
    else:
        ids = [block["toolUse"]["toolUseId"] for block in turn["content"]]
        found = [each["toolResult"] for each in results["content"][:2]]
        told = {each["toolUseId"]: each["content"][0]["text"] for each in found}
    assert [told[id] for id in ids] == ["1", "2"]


@pytest.mark.parametrize("dialect", ["anthropic", "bedrock"])
async def test_a_turn_that_the_model_continues_ends_without_a_space(dialect: str) -> None:
    begun = {"role": "assistant", "content": "The answer is: \n"}
    async with proxied(provider={"dialect": dialect}) as proxy:
        await proxy.ask(messages=[{"role": "user", "content": "Hi "}, begun])
        user, last = proxy.upstream.calls[0].json["messages"]
    plain = dialect == "anthropic"
    assert user["content"] == ("Hi " if plain else [{"text": "Hi "}])
    assert last["content"] == ("The answer is:" if plain else [{"text": "The answer is:"}])


async def test_an_error_that_says_nothing_reaches_claude() -> None:
    response = {"functionResponse": {"name": "look", "response": {"error": ""}}}
    contents = [
        {"role": "user", "parts": [{"text": "Look."}]},
        {"role": "model", "parts": [{"functionCall": {"name": "look", "args": {}}}]},
        {"role": "user", "parts": [response]},
    ]
    async with proxied(provider={"dialect": "anthropic"}) as proxy:
        url = proxy.url + "/v1beta/models/m:generateContent"
        async with proxy.session.post(url, json={"contents": contents}):
            pass
        [told] = proxy.upstream.calls[0].json["messages"][2]["content"]
    assert (told["content"], told["is_error"]) == ("(no result)", True)


async def test_many_turns_with_calls_cost_little() -> None:
    """Each part is kept a few times, not once for each turn after it."""
    call = CallPart(id="", name="look", arguments="{}")
    turns = [Message(role="assistant", parts=(call,)) for _ in range(10_000)]
    begun = process_time()
    first, results, _ = name_results([*turns, Message(role="user", parts=(TextPart(text="Hi"),))])
    assert len(first.parts) == len(results.parts) == 10_000
    assert process_time() - begun < 2


async def test_a_resumed_session_of_gemini_cli_repeats_no_results() -> None:
    calls = [{"functionCall": {"id": id, "name": "look", "args": {}}} for id in "12"]
    results = [
        {"functionResponse": {"id": id, "name": "look", "response": {"output": id}}} for id in "12"
    ]
    contents = [
        {"role": "user", "parts": [{"text": "Look."}]},
        {"role": "model", "parts": calls},
        {"role": "user", "parts": [*results, *results]},
        {"role": "model", "parts": [{"text": "Yes."}]},
        {"role": "user", "parts": [{"text": "Go on."}]},
    ]
    async with proxied() as proxy:
        url = proxy.url + "/v1beta/models/m:generateContent"
        async with proxy.session.post(url, json={"contents": contents}) as response:
            assert (await reply_of(response)).status == 200
        sent = [summary(each) for each in proxy.upstream.calls[0].json["messages"]]
    assert sent == ["user Look.", "calls 1 2", "1 1", "2 2", "assistant Yes.", "user Go on."]


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
async def test_long_ids_of_calls_are_shortened(dialect: str) -> None:
    """OpenAI takes 40 characters in Chat Completions, and 64 in Responses."""
    history = [ASKED, call(LONG), call(LONG + "y"), result(LONG + "y", "b"), result(LONG, "a")]
    async with proxied(provider={"dialect": dialect}) as proxy:
        body = {"model": "m", "input": history, "store": False}
        async with proxy.session.post(proxy.url + "/v1/responses", json=body):
            pass
        messages = proxy.upstream.calls[0].json["messages"]
    if dialect == "openai":
        ids = [each["id"] for each in messages[1]["tool_calls"]]
        results = [each["tool_call_id"] for each in messages[2:]]
    else:
        ids = [each["id"] for each in messages[1]["content"]]
        results = [each["tool_use_id"] for each in messages[2]["content"]]
    assert results == ids[::-1]
    assert len(set(ids)) == 2
    assert all(len(id) <= 40 for id in ids)
