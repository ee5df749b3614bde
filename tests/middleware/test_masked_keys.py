"""A provider that quotes the operator's key in an error does not show it to callers."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from typing import Any

import pytest

from headstart.middleware.upstreams.outgoing import MaskedBody
from support.patience import until
from support.raw_upstream import RawUpstream
from support.relaying import relay_to, says

pytestmark = pytest.mark.anyio

KEY = "sk-operator-4711"
ERROR = json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}", "code": "x"}})
CHAT = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]})
OWN: dict[str, Any] = {"api_key_env": "PROVIDER_KEY"}


@pytest.mark.parametrize("status", ["400 Bad Request", "401 Unauthorized", "500 Oops"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/images/generations", "/v1/messages"])
async def test_no_error_shows_the_operators_key(
    path: str, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROVIDER_KEY", KEY)
    upstream = RawUpstream(says(status, ERROR.encode(), b"x-key: Bearer %b\r\n" % KEY.encode()))
    async with relay_to(upstream, routes=(), options=(OWN,)) as gate:
        found, headers, body = await gate.ask(path, CHAT.encode())
        assert found >= 400
        assert upstream.header(b"authorization") == [f"Bearer {KEY}".encode()]
    assert KEY not in f"{headers}{body!r}"
    assert b"Incorrect API key provided: ****" in body


async def test_a_callers_own_key_is_shown_as_the_provider_says_it() -> None:
    upstream = RawUpstream(says("401 Unauthorized", ERROR.encode()))
    async with relay_to(upstream, routes=()) as gate:
        _, _, body = await gate.ask("/v1/images/generations", CHAT.encode())
    assert body == ERROR.encode()


ENCODED = {
    "gzip": gzip.compress(ERROR.encode()),
    "deflate": zlib.compress(ERROR.encode()),
    "br": b"\x0b\x02\x80abc\x03",
}


@pytest.mark.parametrize("encoding", ENCODED)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/images/generations"])
async def test_no_compressed_error_shows_it(
    path: str, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROVIDER_KEY", KEY)
    extra = b"content-encoding: %b\r\n" % encoding.encode()
    upstream = RawUpstream(says("401 Unauthorized", ENCODED[encoding], extra))
    asked = "Accept-Encoding: br, gzip, zstd\r\n"
    async with relay_to(upstream, routes=(), options=(OWN,)) as gate:
        found, headers, body = await gate.ask(path, CHAT.encode(), headers=asked)
        assert upstream.header(b"accept-encoding") in ([b"gzip"], [b"identity"])
    assert found == 401
    assert "content-encoding" not in headers
    assert ENCODED[encoding] not in body
    assert encoding == "br" or b"Incorrect API key provided: ****" in body


@pytest.mark.parametrize("before", [b"", b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_no_error_inside_a_stream_shows_it(
    path: str, before: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROVIDER_KEY", KEY)
    events = before + b"data: %b\n\n" % ERROR.encode()
    upstream = RawUpstream(says("200 OK", events, b"content-type: text/event-stream\r\n"))
    async with relay_to(upstream, routes=(), options=(OWN,)) as gate:
        body = json.dumps({**json.loads(CHAT), "stream": True, "max_tokens": 9})
        _, headers, answer = await gate.ask(path, body.encode())
    assert KEY not in f"{headers}{answer!r}"
    assert b"Incorrect API key provided: ****" in answer


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/audio/speech"])
@pytest.mark.parametrize("cut", [1, 9, len(KEY) - 1])
async def test_no_answer_shows_it_in_a_header_or_over_two_reads(
    path: str, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROVIDER_KEY", KEY)
    extra = b"content-type: text/event-stream\r\nx-sent: Bearer %b\r\n" % KEY.encode()
    events = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\ndata: %b\n\n' % ERROR.encode()
    whole = says("200 OK", events, extra)
    at = whole.rindex(KEY.encode()) + cut
    upstream = RawUpstream(None)

    async def speak() -> None:
        await until(lambda: upstream.requests)
        await asyncio.sleep(0.05)
        upstream.speak(whole[:at])
        upstream.answer = whole  # to a call that replaces the broken one
        await asyncio.sleep(0.1)  # the first part is read alone
        upstream.speak(whole[at:])

    async with relay_to(upstream, routes=(), options=(OWN,)) as gate:
        body = json.dumps({**json.loads(CHAT), "stream": True}).encode()
        async with asyncio.TaskGroup() as group:
            group.create_task(speak())
            _, headers, answer = await gate.ask(path, body)
    assert KEY not in f"{headers}{answer!r}"
    assert b"Incorrect API key provided: %b" % (b"*" * len(KEY)) in answer


class Arriving:
    """A body that arrives in pieces."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces

    def at_eof(self) -> bool:
        return not self.pieces

    async def read(self, _: int) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""


SECRETS = (b"abcabd", b"bcabdefg")


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("text", [b"x abcabd y", b"abcabcabd", b"abcab", b"bcabdef", b"bcabdefg"])
async def test_a_body_in_pieces_is_masked_as_the_whole_body_is(text: bytes, size: int) -> None:
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    content: Any = Arriving(pieces)
    body, read = MaskedBody(content, SECRETS), b""
    while data := await body.read(100):
        read += data
    assert body.at_eof()
    for secret in SECRETS:
        text = text.replace(secret, b"*" * len(secret))
    assert read == text
