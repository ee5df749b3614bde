"""Limited and short answers through the whole proxy: requests, answers, stored answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headstart.observe import Served
from headstart.policies.output.answer_limits import directive
from support.proxied import Reply, proxied
from support.scripted import Received, ScriptedUpstream, chunk

pytestmark = pytest.mark.anyio

QUESTION = "Why does the moon move the sea?"
WORDS = [f" word{number}" for number in range(30)]
LIMIT = 12


class Limited(ScriptedUpstream):
    """Says ``WORDS``, one a token, as far as it may; asked to go on, it does to the letter."""

    def __init__(self, *, continues: bool = True) -> None:
        super().__init__()
        self.continues = continues

    async def _answer(self, call: Received, send: Any) -> None:
        asked = call.json
        said = sum(len(turn["content"].split()) for turn in asked["messages"]
                   if turn["role"] == "assistant")  # fmt: skip
        if said and not self.continues:
            self.status, self.body = 500, b'{"error":{"message":"no"}}'
        limit = asked.get("max_completion_tokens", 1000)
        words = WORDS[said : said + limit]
        finish = "stop" if said + len(words) == len(WORDS) else "length"
        usage = {"prompt_tokens": 30, "completion_tokens": len(words), "total_tokens": 42}
        if asked.get("stream"):
            chunks = [chunk({"content": word}) for word in words]
            last = {"id": "up-1", "object": "chat.completion.chunk", "created": 1, "model": "m",
                    "choices": [], "usage": usage}  # fmt: skip
            body = b"".join([chunk({"role": "assistant", "content": ""}), *chunks,
                             chunk({}, finish)])  # fmt: skip
            body += b"data: " + json.dumps(last).encode() + b"\n\ndata: [DONE]\n\n"
            kind = b"text/event-stream"
        else:
            message = {"role": "assistant", "content": "".join(words)}
            choice = {"index": 0, "message": message, "finish_reason": finish}
            whole = {"id": "up-1", "object": "chat.completion", "created": 1, "model": "m"}
            body = json.dumps({**whole, "choices": [choice], "usage": usage}).encode()
            kind = b"application/json"
        if self.status != 200:
            body, kind = self.body or b"", b"application/json"
        headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def text_of(reply: Reply) -> tuple[str, list[str]]:
    """Return the text that a client reads, and why it ended."""
    if not reply.headers["content-type"].startswith("text/event-stream"):
        (choice,) = json.loads(reply.body)["choices"]
        return choice["message"]["content"], [choice["finish_reason"]]
    lines = [line[6:] for line in reply.body.split(b"\n") if line.startswith(b"data: {")]
    choices = [each for line in lines for each in json.loads(line).get("choices", ())]
    words = [each["delta"].get("content") or "" for each in choices]
    return "".join(words), [each["finish_reason"] for each in choices if each["finish_reason"]]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_gets_the_whole_of_an_answer_that_a_limit_cut(*, stream: bool) -> None:
    async with proxied(Limited(), output={"max_tokens": LIMIT}) as proxy:
        reply = await proxy.ask(QUESTION, stream=stream)
        again = await proxy.ask(QUESTION, stream=stream)
        calls = len(proxy.upstream.calls)
        await proxy.until(Served, 2)
        row = proxy.served[0]
    assert text_of(reply) == ("".join(WORDS), ["stop"])
    assert text_of(again) == text_of(reply)
    told = reply.headers["x-headstart-transforms"].split(",")
    assert "guard" in told
    assert stream or "continued" in told, "the headers of a stream tell what was known by then"
    assert calls == 6, "an answer with a seam is not kept"
    assert [each.role.value for each in row.attempts] == ["first", "continue", "continue"]
    assert row.completion_tokens == len(WORDS)
    assert [each.kind for each in row.shaped] == ["guard"]


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_that_cannot_be_continued_is_an_error_and_not_stored(
    *, stream: bool
) -> None:
    async with proxied(Limited(continues=False), output={"max_tokens": LIMIT}) as proxy:
        reply = await proxy.ask(QUESTION, stream=stream)
        await proxy.until(Served, 1)
        row = proxy.served[0]
    assert b"our limit of 12 tokens" in reply.body
    assert b'"length"' not in reply.body
    assert b"[DONE]" not in reply.body
    assert row.error is not None
    assert not row.stored


async def test_a_clients_own_limit_stands() -> None:
    async with proxied(Limited(), output={"max_tokens": LIMIT}) as proxy:
        reply = await proxy.ask(QUESTION, max_completion_tokens=20)
        (call,) = proxy.upstream.calls
    assert text_of(reply) == ("".join(WORDS[:20]), ["length"])
    assert call.json["max_completion_tokens"] == 20


async def test_an_answer_within_its_limit_is_kept_for_all() -> None:
    async with proxied(Limited(), output={"max_tokens": 100}) as proxy:
        await proxy.ask(QUESTION)
        await proxy.stored(1)
        again = await proxy.ask(QUESTION)
    assert "detail=exact" in again.verdict


async def test_a_route_asks_for_short_answers_and_the_others_are_not_served_them() -> None:
    routes = ({"name": "short", "match": {"header": {"x-short": "*"}}, "concise": 2},)
    short = {"x-short": "1"}
    output = {"holdout": 0.0}
    cache = {"ignore_headers": ["x-short"]}  # it tells routes apart, not callers
    async with proxied(Limited(), routes=routes, output=output, cache=cache) as proxy:
        first = await proxy.ask(QUESTION, headers=short)
        await proxy.stored(1)
        same = await proxy.ask(QUESTION, headers=short)
        other = await proxy.ask(QUESTION)
        sent = [call.json["messages"] for call in proxy.upstream.calls]
    system = {"role": "system", "content": directive(2, examples=False)}
    assert [messages[0] == system for messages in sent] == [True, False]
    assert "concise:2" in first.headers["x-headstart-transforms"]
    assert "detail=exact" in same.verdict
    assert "detail=concise" in other.verdict
