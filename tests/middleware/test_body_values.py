"""How many JSON values a body may hold, counted before any of them is made."""

from __future__ import annotations

import contextlib
import json
import tracemalloc
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart import HeadstartMiddleware
from headstart.errors import RequestTooLarge
from headstart.middleware.endpoints import with_deployment
from headstart.middleware.prepare import LONGEST_NUMBER, ValueLimit
from headstart.settings import ServerSettings, Settings
from support.proxied import CHAT, proxied, reply_of
from support.serving import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headstart.types import Receive, Scope, Send

MEGABYTE = 2**20
LEAVES = st.none() | st.integers() | st.text('ab",[{}]\\: \n', max_size=5)
JSON = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text('a,"\\[', max_size=3), inner, max_size=4)
    ),
    max_leaves=20,
)


def values(document: Any) -> int:
    """Count the values of a document, itself among them."""
    if isinstance(document, dict):
        return 1 + sum(map(values, document.values()))
    return 1 + sum(map(values, document)) if isinstance(document, list) else 1


@given(JSON, st.sampled_from([None, 1]), st.booleans())
def test_values_are_counted_however_the_body_is_written(
    document: Any, indent: int | None, ascii_only: bool
) -> None:
    body = json.dumps(document, indent=indent, ensure_ascii=ascii_only).encode()
    count = values(document)
    assert ValueLimit(count).refusal(body) is None
    if count > 1:
        assert ValueLimit(count - 1).refusal(body) is not None


@given(JSON, st.binary(max_size=6))
def test_invalid_json_counts_as_much_as_its_valid_beginning(document: Any, junk: bytes) -> None:
    beginning = msgspec.json.encode([1, document, 2])[:-1]
    assert ValueLimit(values(document) + 2).refusal(beginning + junk) is not None


@pytest.mark.parametrize(
    "values",
    [b"[]," * (3 * MEGABYTE), b'"",' * (3 * MEGABYTE), b'{"a":[1,2]},' * MEGABYTE],
    ids=["lists", "strings", "objects"],
)
def test_nothing_is_made_of_a_body_with_millions_of_values(values: bytes) -> None:
    limit, body = ValueLimit(100_000), b'{"x":[%b0]}' % values
    tracemalloc.start()
    try:
        refusal = limit.refusal(body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refusal is not None
    assert peak < MEGABYTE


@pytest.mark.parametrize("text", ["a, b, [c], {", '\\",\\\\', "\\u002c,[", "\n\t,"])
def test_a_text_of_any_length_is_one_value(text: str) -> None:
    body = msgspec.json.encode({"x": text * MEGABYTE})
    assert ValueLimit(10).refusal(body) is None


NUMBERS = [
    b"9" * LONGEST_NUMBER,
    b"-" + b"1" * (LONGEST_NUMBER - 1),
    b"0." + b"3" * (LONGEST_NUMBER - 2),
    b"1" * 333 + b"." + b"2" * 333 + b"e+" + b"3" * 331,
    b"1E-" + b"0" * (LONGEST_NUMBER - 3),
]
PLACES = [b"%b", b'{"x":%b}', b'{"x":[1, "a,9",[], %b ]}', b"[%b,{}]", b'[[{"a":-1.5e3}],%b']


@pytest.mark.parametrize("number", NUMBERS, ids=range(len(NUMBERS)))
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("most", [20, 100_000])
def test_a_number_with_too_many_digits_is_refused(number: bytes, place: bytes, most: int) -> None:
    assert len(number) == LONGEST_NUMBER
    assert ValueLimit(most).refusal(place % number) is None
    refusal = ValueLimit(most).refusal(place % (number + b"0"))
    assert refusal is not None
    assert f"more than {LONGEST_NUMBER} characters" in refusal


@given(st.text('0123456789.eE+-",[\\ ', min_size=400), st.booleans())
def test_digits_in_a_text_are_no_number(text: str, as_key: bool) -> None:
    digits = text + "7" * 2000 + text
    body = msgspec.json.encode({digits: 1} if as_key else {"x": [1, digits, 2]})
    for most in (5, 100_000):
        assert ValueLimit(most).refusal(body) is None


class Memory:
    """The most memory that was taken, in bytes."""

    peak = 0


@contextlib.asynccontextmanager
async def measured_memory() -> AsyncIterator[Memory]:
    found = Memory()
    tracemalloc.start()
    try:
        yield found
        found.peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# --- on sockets ---------------------------------------------------------------------------------

MANY: dict[str, Any] = {"x": [[]] * 1000}
FEW: dict[str, Any] = {"server": {"max_body_values": 1000}}
REQUESTS: dict[str, Any] = {
    CHAT: {"model": "m", "messages": [], **MANY},
    "/v1/messages": {"model": "m", "messages": [], "max_tokens": 9, **MANY},
    "/v1beta/models/m:generateContent": {"contents": [], **MANY},
}
CODE = {
    CHAT: lambda error: error["code"],
    "/v1/messages": lambda error: error["type"],
    "/v1beta/models/m:generateContent": lambda error: error["code"],
}


@pytest.mark.anyio
async def test_a_request_of_too_many_values_is_refused_in_the_callers_dialect() -> None:
    async with proxied(**FEW) as proxy:
        for path, body in REQUESTS.items():
            async with proxy.session.post(
                proxy.url + path, json=body, headers={"authorization": "Bearer k"}
            ) as response:
                reply = await reply_of(response)
            assert reply.status == 413
            error = json.loads(reply.body)["error"]
            assert "server.max_body_values (1000)" in error["message"]
            assert CODE[path](error) in ("request_too_large", 413)
            long = json.dumps(body | {"x": 7}).replace("7", "7" * 4000)
            async with proxy.session.post(
                proxy.url + path, data=long, headers={"authorization": "Bearer k"}
            ) as response:
                reply = await reply_of(response)
            assert reply.status == 413
            assert "more than 1000 characters" in json.loads(reply.body)["error"]["message"]
        for text in ("a, [b], " * 10_000, "7" * 10_000):
            assert (await proxy.ask(text)).status == 200
        assert len(proxy.upstream.calls) == 2


@pytest.mark.anyio
@pytest.mark.parametrize(
    "body",
    [json.dumps(REQUESTS[CHAT]).encode(), b'{"model":"m","messages":[],"x":%b}' % (b"7" * 4000)],
    ids=["many", "long"],
)
async def test_a_wrapped_app_gets_such_a_request_as_it_came(body: bytes) -> None:
    seen: list[bytes] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        seen.append(body)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    settings = Settings(server=ServerSettings(max_body_values=1000))
    wrapped = HeadstartMiddleware(app, settings, mode="exact-only", store="memory:")
    async with serving(wrapped) as url, aiohttp.ClientSession() as session:
        for _ in range(2):
            async with session.post(url + CHAT, data=body) as response:
                reply = await reply_of(response)
            assert (reply.status, reply.body) == (200, b"ok")
            assert reply.verdict == "headstart; fwd=bypass; detail=body-too-large"
    await wrapped.aclose()
    assert seen == [body, body]


@pytest.mark.anyio
@pytest.mark.parametrize(
    "path",
    [
        "/v1/responses",
        "/v1/responses/compact",
        "/v1/messages/count_tokens",
        "/v1/live",
    ],
)
async def test_bodies_that_are_read_before_the_request_are_bounded_too(path: str) -> None:
    """Ids of answers, a prompt to count, the template of a draft."""
    lists = b"[%b0]" % (b"{}," * 100_000)
    names = b",".join(b'"k%d":0' % place for place in range(40_000))
    refers = b'"previous_response_id":"resp_a","model":"m","messages":[{"content":"{{draft}}"}]'
    body = b'{%b,"input":%b,%b}' % (refers, lists, names)
    if path == "/v1/live":
        body = b'{"request":%b}' % body
    async with (
        proxied(server={"max_body_values": 100}, live={"enabled": True}) as proxy,
        measured_memory() as memory,
        proxy.session.post(
            proxy.url + path, data=body, headers={"authorization": "Bearer k"}
        ) as response,
    ):
        reply = await reply_of(response)
        assert (reply.status, proxy.upstream.calls) == (413, [])
    assert b"server.max_body_values (100)" in reply.body
    assert memory.peak < 5 * len(body)


def test_the_body_for_a_deployment_is_bounded_before_it_is_decoded() -> None:
    with pytest.raises(RequestTooLarge):
        with_deployment(b'{"model":"a","x":[1,2,3]}', "m", ValueLimit(3).check)


@pytest.mark.anyio
async def test_a_name_of_a_model_is_bounded_in_every_dialect() -> None:
    """It would be kept in the books, the metrics and the log."""
    name = "m" * 3000
    async with proxied() as proxy:
        asked: list[tuple[str, dict[str, Any]]] = [
            (CHAT, {"messages": []}),
            ("/v1/messages", {"messages": [], "max_tokens": 9}),
            ("/v1/responses", {"input": "a"}),
            ("/v1/completions", {"prompt": "a"}),
            ("/v1/messages/count_tokens", {"messages": []}),
            (f"/v1beta/models/{name}:generateContent", {"contents": []}),
            (f"/v1beta/models/{name}:embedContent", {"content": {}}),
            (f"/openai/deployments/{name}/chat/completions", {"messages": []}),
            (f"/openai/deployments/{name}/images/generations", {"prompt": "a"}),
        ]
        for path, body in asked:
            async with proxy.session.post(
                proxy.url + path,
                json={"model": name, **body},
                headers={"authorization": "Bearer k"},
            ) as response:
                reply = await reply_of(response)
            assert (path, reply.status) == (path, 400)
            assert b"2048 characters" in reply.body
        assert proxy.upstream.calls == []
