"""Which upstream gets a relayed request: routes, models, health and fallback, on raw sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from headstart.decisions import Outcome
from headstart.middleware.relay import resource_of
from headstart.types import KEPT_BYTES, Upload
from support.patience import until
from support.raw_upstream import RawUpstream, ask_raw, open_raw
from support.relaying import EMBED, relay_to, request, says

if TYPE_CHECKING:
    from headstart.observe import Served

pytestmark = pytest.mark.anyio

CHAT = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'


ANSWER = says("200 OK", b'{"data":[]}')
BUSY = says("503 Service Unavailable", b'{"error":{"message":"busy"}}')


@pytest.mark.parametrize(
    ("target", "body", "method"),
    [
        ("/v1/audio/speech", EMBED, "POST"),
        ("/v1/files", b"", "GET"),
        ("/v1/files/x", b"", "DELETE"),
    ],
)
@pytest.mark.parametrize("down", [None, BUSY, says("429 Too Many Requests"), says("500 Oops")])
async def test_the_next_upstream_of_the_route_answers_when_the_first_fails(
    target: str, body: bytes, method: str, down: bytes | None
) -> None:
    first = None if down is None else RawUpstream(down)
    second = RawUpstream(ANSWER)
    async with relay_to(first, second) as gate:
        status, headers, answer = await gate.ask(target, body, method=method)
    assert (status, answer) == (200, b'{"data":[]}')
    assert headers["x-headstart-upstream"] == "b"
    assert second.body() == body
    assert [target.encode()] == second.targets


async def test_an_upstream_that_closes_without_an_answer_is_followed_by_the_next() -> None:
    first, second = RawUpstream(b"", breaks_off=True), RawUpstream(ANSWER)
    async with relay_to(first, second) as gate:
        assert (await gate.ask())[0] == 200
    assert len(first.requests) == 1


@pytest.mark.parametrize(
    "answer",
    [
        says("404 Not Found", b'{"error":{"message":"no such file"}}'),
        says("403 Forbidden", b'{"error":{"message":"not yours"}}'),
        says("400 Bad Request", b'{"error":{"message":"wrong"}}'),
        says("409 Conflict"),
        b"HTTP/1.1 307 Temporary Redirect\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n",
    ],
)
async def test_an_error_about_the_request_is_the_answer(answer: bytes) -> None:
    first, second = RawUpstream(answer), RawUpstream(ANSWER)
    async with relay_to(first, second) as gate:
        status, headers, body = await gate.ask("/v1/files/f", b"", method="GET")
    assert status == int(answer.split()[1])
    assert body == answer.partition(b"\r\n\r\n")[2]
    assert headers["x-headstart-upstream"] == "a"
    assert second.requests == []


@pytest.mark.parametrize(
    "path",
    [
        "/v1/v1/messages", "/v1/v1/chat/completions", "/messages",
        "/completion", "/generate", "/v2/models/m/generate", "/model/m/converse",
    ],
)  # fmt: skip
async def test_a_wrong_base_url_is_told(path: str) -> None:
    first, second = RawUpstream(ANSWER), RawUpstream(ANSWER)
    async with relay_to(first, second) as gate:
        status, _, body = await gate.ask(path)
    assert status == 404
    assert b"no such path: the base URL of OpenAI's clients ends in /v1" in body
    assert b"/v2/models/...) are not served: take a client of OpenAI" in body
    assert first.requests == second.requests == []


@pytest.mark.parametrize("path", ["/v2/chat", "/v2/embed"])
async def test_clients_of_cohere_are_told_in_their_form_what_there_is(path: str) -> None:
    async with relay_to(RawUpstream(ANSWER), RawUpstream(ANSWER)) as gate:
        status, _, body = await gate.ask(path)
    assert status == 404
    said = json.loads(body)["message"]
    assert "of the paths of Cohere's clients only /v2/rerank is served" in said


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/api/chat"), ("POST", "/api/embed"), ("GET", "/api/tags"), ("GET", "/api/version")],
)
async def test_clients_of_ollama_are_told_in_their_form_what_to_take(
    method: str, path: str
) -> None:
    async with relay_to(RawUpstream(ANSWER), RawUpstream(ANSWER)) as gate:
        status, _, body = await gate.ask(path, method=method)
    assert status == 404
    assert "Take a client of OpenAI" in json.loads(body)["error"]


@pytest.mark.parametrize(
    "path", ["/upload/v1beta/files", "/upload/v1/files?uploadType=x", "/v1alpha/auth_tokens"]
)
async def test_paths_of_googles_clients_go_to_its_upstream_with_their_headers(path: str) -> None:
    place = b"http://files.test/upload/v1beta/files?upload_id=1"
    chat, google = (
        RawUpstream(ANSWER),
        RawUpstream(says("200 OK", headers=b"x-goog-upload-url: " + place + b"\r\n")),
    )
    headers = "X-Goog-Upload-Command: start\r\nX-Goog-Api-Key: k\r\n"
    async with relay_to(chat, google, routes=(), options=({}, {"dialect": "gemini"})) as gate:
        status, answered, _ = await gate.ask(path, b'{"file":{}}', headers)
    assert (status, google.targets, chat.requests) == (200, [path.encode()], [])
    assert google.header(b"x-goog-upload-command") == [b"start"]
    assert google.header(b"x-goog-api-key") == [b"k"]
    assert answered["x-goog-upload-url"] == place.decode()


async def test_another_upstream_is_asked_for_a_model_that_the_first_does_not_have() -> None:
    unknown = b'{"error":{"message":"no","code":"model_not_found"}}'
    first, second = RawUpstream(says("404 Not Found", unknown)), RawUpstream(ANSWER)
    async with relay_to(first, second) as gate:
        assert (await gate.ask())[0] == 200
        assert (await gate.ask())[0] == 200
    assert len(first.requests) == 2  # callers may name any model, so that closes nothing


async def test_when_all_fail_the_first_ones_own_words_pass_byte_for_byte() -> None:
    first, second = RawUpstream(BUSY), RawUpstream(says("500 Oops"))
    async with relay_to(first, second) as gate:
        status, headers, body = await gate.ask()
    assert (status, body) == (503, b'{"error":{"message":"busy"}}')
    assert headers["x-headstart-upstream"] == "a"
    assert headers["x-should-retry"] == "false"


async def test_without_any_upstream_the_error_is_in_the_callers_dialect() -> None:
    options = ({"dialect": "anthropic"}, {"dialect": "anthropic"})
    async with relay_to(None, None, options=options) as gate:
        status, headers, body = await gate.ask("/v1/messages/batches")
    assert status == 502
    assert json.loads(body)["type"] == "error"
    assert "request-id" in headers


async def test_a_kept_body_goes_whole_to_the_next_upstream_while_the_rest_arrives() -> None:
    """The first one refuses when it has the beginning; the rest comes after that."""
    first, second = _EarlyRefusal(), RawUpstream(ANSWER)
    half = b"x" * 1000
    async with relay_to(first, second) as gate:
        head = request("/v1/files", b"y" * 2000).partition(b"\r\n\r\n")[0]
        head = head.replace(b"application/json", b"application/octet-stream")
        reader, writer = await open_raw(gate.url, head + b"\r\n\r\n" + half)
        await until(lambda: first.refused)
        writer.write(half)
        answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 200")
    assert second.body() == half + half
    assert second.header(b"content-length") == [b"2000"]


class _EarlyRefusal(RawUpstream):
    """Answers 503 when it has the first bytes of a body."""

    refused = False

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(1000)
        writer.write(BUSY)
        await writer.drain()
        self.refused = True
        await reader.read()


async def test_a_body_that_is_too_long_to_keep_goes_to_one_upstream_only() -> None:
    first, second = RawUpstream(BUSY), RawUpstream(ANSWER)
    body = b"x" * (KEPT_BYTES + 1)
    async with relay_to(first, second) as gate:
        status, _, _ = await gate.ask("/v1/files", body)
        assert status == 503
        assert second.requests == []
        first.answer = ANSWER
        assert (await gate.ask("/v1/files", body))[0] == 200
    assert first.body(1) == body


async def test_a_long_body_goes_to_the_next_upstream_if_nothing_of_it_was_sent() -> None:
    second = RawUpstream(ANSWER)
    body = b"x" * (KEPT_BYTES + 1)
    async with relay_to(None, second) as gate:
        assert (await gate.ask("/v1/files", body))[0] == 200
    assert second.body() == body


async def test_an_upstream_that_chat_found_down_is_not_asked_first() -> None:
    message = {"role": "assistant", "content": "hello"}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    document = {"object": "chat.completion", "model": "m", "created": 1, "choices": [choice]}
    first = RawUpstream(BUSY)
    second = RawUpstream(says("200 OK", json.dumps(document).encode()))
    async with relay_to(first, second) as gate:
        for number in range(6):
            prompt = CHAT.replace(b"hi", b"%d" % number)
            assert (await gate.ask("/v1/chat/completions", prompt))[0] == 200
        asked = len(first.requests)
        assert (await gate.ask())[0] == 200
    assert len(first.requests) == asked
    assert second.targets[-1] == b"/v1/audio/speech"


async def test_a_rate_limit_that_a_relayed_call_met_holds_for_the_next() -> None:
    limited = says("429 Too Many Requests", headers=b"retry-after: 60\r\n")
    first, second = RawUpstream(limited), RawUpstream(ANSWER)
    async with relay_to(first, second) as gate:
        for _ in range(3):
            assert (await gate.ask())[0] == 200
    assert len(first.requests) == 1


async def test_trouble_with_one_kind_of_path_keeps_no_other_from_the_first_upstream() -> None:
    limited = says("429 Too Many Requests", headers=b"retry-after: 60\r\n")
    first, second = RawUpstream(limited), RawUpstream(ANSWER)
    async with relay_to(first, second) as gate:
        assert (await gate.ask("/v1/batches", b"{}"))[1]["x-headstart-upstream"] == "b"
        first.answer = ANSWER
        assert (await gate.ask("/v1/batches", b"{}"))[1]["x-headstart-upstream"] == "b"
        assert (await gate.ask("/v1/files/f", b"", "", "GET"))[1]["x-headstart-upstream"] == "a"


async def test_a_single_upstream_that_fails_is_asked_each_time() -> None:
    upstream = RawUpstream(BUSY)
    async with relay_to(upstream, routes=()) as gate:
        for _ in range(8):
            assert (await gate.ask())[0] == 503
        upstream.answer = ANSWER
        assert (await gate.ask())[0] == 200
    assert len(upstream.requests) == 9


async def test_the_header_names_the_route_and_an_unknown_name_is_refused() -> None:
    first, second = RawUpstream(ANSWER), RawUpstream(ANSWER)
    routes = ({"name": "second", "match": {"path": "/none"}, "upstreams": ["b"]},)
    async with relay_to(first, second, routes=routes) as gate:
        assert (await gate.ask())[1]["x-headstart-upstream"] == "a"
        named = await gate.ask(headers="X-Headstart-Route: second\r\n")
        assert named[1]["x-headstart-upstream"] == "b"
        status, _, body = await gate.ask(headers="X-Headstart-Route: third\r\n")
    assert status == 400
    assert "third" in json.loads(body)["error"]["message"]
    assert second.header(b"x-headstart-route") == []


@pytest.mark.parametrize(
    "match", [{"path": "/v1/aud*"}, {"header": {"x-app": "search"}}, {"model": "embed*"}]
)
async def test_path_header_and_model_choose_the_route(match: dict[str, Any]) -> None:
    first, second = RawUpstream(ANSWER), RawUpstream(ANSWER)
    async with relay_to(
        first, second, routes=({"name": "r", "match": match, "upstreams": ["b"]},)
    ) as gate:
        found = await gate.ask(headers="X-App: search\r\n")
        other = await gate.ask("/v1/files", b'{"model":"other"}')
    assert found[1]["x-headstart-upstream"] == "b"
    assert other[1]["x-headstart-upstream"] == "a"
    assert second.body() == EMBED


async def test_an_alias_of_the_upstream_becomes_its_name_of_the_model() -> None:
    upstream = RawUpstream(ANSWER)
    options = ({"models": {"embed": "e-large"}},)
    async with relay_to(upstream, routes=(), options=options) as gate:
        _, edited, _ = await gate.ask()
        _, as_it_came, _ = await gate.ask("/v1/audio/speech", b'{"model": "other" }')
    assert json.loads(upstream.body()) == {"model": "e-large", "input": ["a"]}
    assert edited["x-headstart-transforms"] == "model"
    assert upstream.body(1) == b'{"model": "other" }'
    assert "x-headstart-transforms" not in as_it_came


@pytest.mark.parametrize("body", [b"no JSON", b"[1]", b"[" * 50_000, b'"\xff'])
async def test_a_body_that_is_not_a_json_object_is_sent_unchanged_whatever_the_path_names(
    body: bytes,
) -> None:
    upstream = RawUpstream(ANSWER)
    alias = {"models": {"gpt": "deployed"}}
    async with relay_to(upstream, routes=(), options=(alias,)) as gate:
        status, _, _ = await gate.ask("/openai/deployments/gpt/images/generations", body)
    assert status == 200
    assert upstream.body() == body


async def test_a_path_of_one_dialect_never_goes_to_an_upstream_of_another() -> None:
    chat, claude = RawUpstream(ANSWER), RawUpstream(ANSWER)
    options: tuple[dict[str, Any], ...] = ({}, {"dialect": "anthropic"})
    only = {"name": "chat", "match": {"header": {"x-app": "chat"}}, "upstreams": ["a"]}
    async with relay_to(chat, claude, routes=(only,), options=options) as gate:
        assert (await gate.ask("/v1/messages/batches"))[1]["x-headstart-upstream"] == "b"
        status, _, body = await gate.ask("/v1/messages/batches", headers="X-App: chat\r\n")
    assert status == 404
    assert 'dialect = "anthropic"' in json.loads(body)["error"]["message"]
    assert chat.requests == []


async def test_a_fallback_leaves_out_upstreams_of_another_dialect() -> None:
    chat = RawUpstream(ANSWER)
    async with relay_to(chat, None, options=({}, {"dialect": "anthropic"})) as gate:
        status, _, _ = await gate.ask("/v1/messages/batches")
    assert status == 502
    assert chat.requests == []


async def test_another_key_of_the_upstream_is_asked_before_the_next_upstream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KEY_ONE", "one")
    monkeypatch.setenv("KEY_TWO", "two")
    upstream = _ByKey()
    options = ({"api_key_env": ["KEY_ONE", "KEY_TWO"]},)
    async with relay_to(upstream, routes=(), options=options) as gate:
        status, headers, _ = await gate.ask(headers="Authorization: Bearer mine\r\n")
    assert (status, headers["x-headstart-upstream"]) == (200, "a#2")
    sent = [upstream.header(b"authorization", number) for number in (0, 1)]
    assert sent == [[b"Bearer one"], [b"Bearer two"]]


class _ByKey(RawUpstream):
    """Refuses the first key."""

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.answer = ANSWER if self.requests else says("401 Unauthorized")
        await super()._exchange(reader, writer)


async def test_a_route_has_its_own_deadline_for_relayed_requests() -> None:
    routes = ({"name": "r", "deadline_s": 0.05},)
    async with relay_to(RawUpstream(None), routes=routes) as gate:
        status, _, body = await gate.ask()
    assert status == 504
    assert "deadline_s" in json.loads(body)["error"]["message"]


async def test_an_upload_is_read_again_from_its_beginning_while_it_arrives() -> None:
    pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
    upload = Upload(pieces.get, kept_bytes=4)
    first = upload.read()
    pieces.put_nowait(b"ab")
    assert await anext(first) == b"ab"
    second = upload.read()
    pieces.put_nowait(b"cd")
    assert [await anext(second), await anext(second)] == [b"ab", b"cd"]
    assert upload.whole
    assert [piece async for piece in first] == []  # only the newest reader gets anything
    pieces.put_nowait(b"e")
    pieces.put_nowait(None)
    assert [piece async for piece in second] == [b"e"]
    assert (upload.whole, upload.size) == (False, 5)


async def test_each_relayed_request_is_a_row_of_the_books_with_its_attempts_and_bytes() -> None:
    first, second = RawUpstream(BUSY), RawUpstream(ANSWER)
    async with relay_to(first, second) as gate:
        await gate.ask("/v1/files/file-abc?purpose=x", EMBED, "Authorization: Bearer secret\r\n")
        store = gate.parts[0].store
        await until(lambda: len(gate.served) == 1)
        (row,) = gate.served
        rows: list[Served] = []
        while not rows:
            rows = [each async for each in store.read_books()]
            await asyncio.sleep(0.01)
    assert rows == [row]
    assert (row.outcome, row.endpoint, row.status) == (Outcome.RELAY, "/v1/files", 200)
    assert (row.upstream, row.route, row.model) == ("b", "both", "embed")
    assert (row.bytes_up, row.bytes_down) == (len(EMBED), len(b'{"data":[]}'))
    told = [(each.upstream, each.outcome, each.status, each.role) for each in row.attempts]
    assert told == [("a", "failed", 503, "first"), ("b", "won", 200, "fallback")]
    assert row.total_s > 0
    assert b"secret" not in (text := msgspec.json.encode(row))
    assert b"file-abc" not in text


@pytest.mark.parametrize(
    ("answer", "status", "error"),
    [
        (says("404 Not Found"), 404, None),
        (BUSY, 503, "upstream_error"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", 200, "upstream_protocol_error"),
    ],
)
async def test_the_books_say_how_a_relayed_request_ended(
    answer: bytes, status: int, error: str | None
) -> None:
    upstream = RawUpstream(answer, breaks_off=True)
    async with relay_to(upstream, routes=()) as gate:
        with contextlib.suppress(asyncio.IncompleteReadError):
            await ask_raw(gate.url, request())
        await until(lambda: len(gate.served) == 1)
    (row,) = gate.served
    assert (row.status, row.error, row.upstream) == (status, error, "a")


async def test_the_books_say_that_the_client_left_or_that_the_time_was_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    upstream = RawUpstream(None)
    async with relay_to(upstream, routes=()) as gate:
        _, writer = await open_raw(gate.url, request())
        await until(lambda: len(upstream.requests) == 1)
        writer.close()
        await until(lambda: len(gate.served) == 1)
        assert caplog.messages == []
        await gate.ask(headers="X-Headstart-Deadline-Ms: 300\r\n")
        await until(lambda: len(gate.served) == 2)
    left, late = gate.served
    assert (left.status, left.error, left.attempts[0].outcome) == (499, "client-gone", "abandoned")
    assert (late.status, late.error, late.attempts[0].error) == (504, "upstream_timeout", "timeout")
    assert caplog.messages == ["upstream a failed: timeout"]


@pytest.mark.parametrize(
    ("path", "named"),
    [
        (b"/v1/files/file-abc/content", "/v1/files"),
        (b"/v1/files", "/v1/files"),
        (b"/v1beta/models/gemini-x:embedContent", "/v1beta/models:embedContent"),
        (b"/upload/v1beta/files", "/upload/v1beta/files"),
        (b"/v1/models/ft:gpt:acme:mine:abc", "/v1/models"),
        (b"/v1/MyName", "other"),
        (b"/v1/%20", "other"),
        (b"/v1/" + b"a" * 40, "other"),
    ],
)
async def test_the_books_name_kinds_of_resources_alone(path: bytes, named: str) -> None:
    assert resource_of(path) == named
