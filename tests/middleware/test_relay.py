"""Relayed requests on raw sockets: exact bytes, leaving clients, limits, broken connections."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

from headstart.config.loading import load_settings
from headstart.middleware.asgi import not_found
from headstart.middleware.endpoints import has_dot_segment
from headstart.middleware.http_protocol import BoundedHeadProtocol
from headstart.middleware.observers import Observers
from headstart.middleware.upstreams.http import HTTPUpstream, _WatchedConnection
from headstart.mount import build_gateway
from headstart.settings import UpstreamSettings
from support.fakes import Recorder
from support.patience import until
from support.proxied import proxied
from support.raw_upstream import OK, RawUpstream, ask_raw, open_raw, raw_upstream
from support.relaying import relay_to, says
from support.serving import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from headstart.middleware.admin_front import EngineParts
    from headstart.types import ASGIApp

pytestmark = pytest.mark.anyio

CLIMBS = [
    "..", ".", "%2e%2e", "%2E%2e", ".%2e", "%2e.", "%2e", "%252e%252e", "..%2fx", "..%5cx",
    "x%2f..", "..\\x", "x\\..", "..;a=b", "%2e%2e;", "%ef%bc%8e%ef%bc%8e", "%c0%ae%c0%ae",
    "%2e%2e%20", ".%00.", "%25252e%25252e", "%2e%2e%c0%afx", "..%c1%9cx", "%09..",
    "%e0%80%ae%e0%80%ae", "%f0%80%80%ae.", "%25c0%25ae.", "%u002e%u002e", "%U002E.", "..%u002fx",
    "..%23", "..%3f", "..%3Fa=b", ".%23x", "..%00", "..%C2%AD", "%e2%80%8b..", "..%ff", ".%80.",
    "..%EF%B8%8F", "..%E2%88%95x", "x%EF%BC%8F..", "..%E2%81%84x", "..%e0%80%afx", "%u2215..",
    "%E2%80%A5", "..%EF%BC%9Bx",
]  # fmt: skip
"""Segments that some server reads as one that leads out of the path."""
PLAIN = [
    "...", "a..b", "..a", "v1.2", "gpt-4.1", "a%2Fb", "a%252Fb", "models%2Fx", "~", "%c3%a9",
    "a;b=..", ".well-known", "..-..", "file-abc.jsonl",
    "%E6%96%87.%E4%BB%B6", "%E6%96%87.", "..%C3%A9", "a%23..", "a%3f..", "...%23", "%F0%9F%99%82.",
    "%u0061.b", "100%25", "%ff", "a%00..",
]  # fmt: skip


class Gate:
    """A gateway before a raw upstream."""

    def __init__(self, url: str, app: ASGIApp, parts: list[EngineParts]) -> None:
        self.url, self.app, self.parts = url, app, parts

    @property
    def relays(self) -> int:
        return self.parts[0].relays.active

    async def open(self, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await open_raw(self.url, request)

    async def ask(self, request: bytes) -> bytes:
        return await ask_raw(self.url, request)


@contextlib.asynccontextmanager
async def relaying(
    upstream: RawUpstream, path: str = "", routes: Sequence[dict[str, Any]] = (), **server: Any
) -> AsyncIterator[Gate]:
    async with raw_upstream(upstream) as base:
        dotted = {f"server.{name}": value for name, value in server.items()}
        dotted |= {"cache.store": "memory:", "cache.mode": "exact-only"}
        dotted["upstream"] = [{"name": "raw", "base_url": base + path}]
        dotted["route"] = list(routes)
        settings = await asyncio.to_thread(load_settings, None, {}, dotted)
        parts: list[EngineParts] = []
        app = build_gateway(
            settings, not_found, observers=Observers([Recorder()]), on_start=parts.append
        )
        async with serving(app, http=BoundedHeadProtocol) as url:
            yield Gate(url, app, parts)


def request(
    target: str = "/v1/x", method: str = "GET", headers: str = "", body: bytes = b""
) -> bytes:
    head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n"
    return head.encode("latin-1") + body


@pytest.mark.parametrize("body", [b"x", b"\x00\xff" * 50_000])
async def test_a_body_with_a_length_goes_up_with_that_length_and_not_in_chunks(body: bytes) -> None:
    upstream = RawUpstream()
    async with relaying(upstream) as gate:
        answer = await gate.ask(
            request("/v1/files", "POST", f"Content-Length: {len(body)}\r\n", body)
        )
    assert answer.startswith(b"HTTP/1.1 200")
    assert upstream.header(b"content-length") == [b"%d" % len(body)]
    assert upstream.header(b"transfer-encoding") == []
    assert upstream.body() == body


async def test_a_body_in_chunks_goes_up_in_chunks() -> None:
    upstream = RawUpstream()
    body = b"3\r\nabc\r\n0\r\n\r\n"
    async with relaying(upstream) as gate:
        await gate.ask(request("/v1/files", "POST", "Transfer-Encoding: chunked\r\n", body))
    assert upstream.header(b"content-length") == []
    assert upstream.body() == body


@pytest.mark.parametrize(
    "target",
    [
        "/v1/a%2Fb%2f%7e~%20?x=%2B+%c3%a9&y=[]{}|\\^`\"'<>&&=&z=a%zz&k=a;b",
        "/v1//a///b/?",
        "/v1/%E9;v=1,2@:$!*()",
        *(f"/v1/{segment}/y" for segment in PLAIN),
    ],
)
async def test_path_and_query_go_up_as_they_came(target: str) -> None:
    upstream = RawUpstream()
    async with relaying(upstream) as gate:
        answer = await gate.ask(request(target))
    assert answer.startswith(b"HTTP/1.1 200")
    assert upstream.targets == [target.encode("latin-1").removesuffix(b"?")]


@pytest.mark.parametrize(
    ("given", "sent"),
    [("é?", "é?".encode()), ("é".encode("latin-1"), b"%E9"), (b"\xff\xfe", b"%FF%FE")],
)
async def test_bytes_that_only_some_servers_let_through_keep_their_meaning(
    given: str | bytes, sent: bytes
) -> None:
    """Our own server answers them with 400."""
    raw = given.encode() if isinstance(given, str) else given
    upstream = HTTPUpstream(UpstreamSettings(name="raw", base_url="http://localhost"))
    query = upstream.url(b"/v1/" + raw.rstrip(b"?"), raw).raw_query_string
    assert query.encode() == sent


@pytest.mark.parametrize("segment", CLIMBS)
@pytest.mark.parametrize("form", ["/v1/{}/y", "/v1/{}", "/v1/a/{}/{}/../../y", "/v1beta/{}/y"])
async def test_a_path_that_climbs_is_refused_in_every_spelling(segment: str, form: str) -> None:
    assert has_dot_segment(form.format(segment, segment).encode("latin-1"))


@pytest.mark.parametrize("segment", PLAIN)
async def test_dots_within_a_segment_are_not_a_dot_segment(segment: str) -> None:
    assert not has_dot_segment(f"/v1/{segment}/y".encode("latin-1"))


@pytest.mark.parametrize(
    "target",
    ["/v1/../../tenantB/x", "/v1/%2e%2e/%2e%2e/x", "/v1/..%5cx", "/v1beta/models/..%2fx:embed",
     "/v1beta/models/..%2fx:generateContent"],
)  # fmt: skip
async def test_a_path_that_climbs_never_reaches_the_upstream(target: str) -> None:
    upstream = RawUpstream()
    async with relaying(upstream, "/tenantA/v1") as gate:
        answer = await gate.ask(request(target, "POST", "Content-Length: 2\r\n", b"{}"))
    assert answer.startswith(b"HTTP/1.1 400")
    assert "segment" in json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]
    assert upstream.requests == []


async def test_every_connection_header_names_what_is_not_sent_on() -> None:
    upstream = RawUpstream()
    named = (
        "Connection: X-One, x-two\r\nX-One: 1\r\nX-Two: 2\r\nConnection: X-Three\r\nX-Three: 3\r\n"
    )
    async with relaying(upstream) as gate:
        await gate.ask(request(headers=named + "X-Four: 4\r\n"))
    assert upstream.header(b"x-four") == [b"4"]
    assert [upstream.header(name) for name in (b"x-one", b"x-two", b"x-three")] == [[], [], []]


async def test_a_client_that_leaves_before_the_headers_ends_the_call() -> None:
    upstream = RawUpstream(answer=None)
    async with relaying(upstream) as gate:
        _, writer = await gate.open(request())
        await until(lambda: len(upstream.requests) == 1)
        writer.close()
        await until(lambda: gate.relays == 0)
        await until(lambda: upstream.open == 0)


async def test_a_client_that_leaves_while_it_sends_ends_the_call() -> None:
    upstream = RawUpstream(answer=None)
    async with relaying(upstream) as gate:
        _, writer = await gate.open(request("/v1/f", "POST", "Content-Length: 9\r\n", b"half"))
        await until(lambda: len(upstream.requests) == 1)
        writer.close()
        await until(lambda: gate.relays == 0)
        await until(lambda: upstream.open == 0)


async def test_a_client_that_leaves_with_its_last_byte_asks_nobody() -> None:
    """The time limit of the route begins after the body. It must not undo that the call ends."""
    upstream = RawUpstream(answer=None)
    body = b'{"model":"m"}'
    messages = [{"type": "http.request", "body": body}, {"type": "http.disconnect"}]
    route = {"name": "r", "match": {"model": "m"}, "deadline_s": 0.5}
    async with relaying(upstream, routes=[route]) as gate:

        async def receive() -> Any:
            return messages.pop(0)

        async def send(_: Any) -> None:
            pass

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/x",
            "raw_path": b"/v1/x",
            "query_string": b"",
            "headers": [
                (b"host", b"localhost"),
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(body)),
            ],
            "client": ("127.0.0.1", 1),
        }
        await gate.app(scope, receive, send)
    assert upstream.requests == []


async def test_abandoned_relays_leave_chat_its_places() -> None:
    upstream = RawUpstream(answer=None)
    async with relaying(upstream, max_relays=8, max_queue=40, max_concurrency=2) as gate:
        stays = [await gate.open(request(f"/v1/slow/{number}")) for number in range(40)]
        await until(lambda: len(upstream.requests) == 8)
        upstream.answer = OK
        chat = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
        answer = await gate.ask(
            request("/v1/chat/completions", "POST", f"Content-Length: {len(chat)}\r\n", chat)
        )
        assert b"\r\ncache-status: headstart; fwd=miss" in answer
        upstream.answer = None
        for _, writer in stays:
            writer.close()
        await until(lambda: gate.relays == 0)
        assert len(upstream.requests) < 20  # most of those that waited for a place were never sent


async def test_past_both_limits_a_relay_is_refused_and_told_the_setting() -> None:
    upstream = RawUpstream(answer=None)
    async with relaying(upstream, max_relays=1, max_queue=0) as gate:
        _, writer = await gate.open(request())
        await until(lambda: len(upstream.requests) == 1)
        answer = await gate.ask(request())
        writer.close()
        await until(lambda: gate.relays == 0)
    assert answer.startswith(b"HTTP/1.1 429")
    assert b"server.max_relays" in answer


@pytest.mark.parametrize("headers", ["", "X-Headstart-Deadline-Ms: 50\r\n"])
async def test_a_relay_ends_at_its_deadline_before_headers(headers: str) -> None:
    upstream = RawUpstream(answer=None)
    async with relaying(upstream, deadline_s=600 if headers else 0.05) as gate:
        answer = await gate.ask(request(headers=headers))
        assert answer.startswith(b"HTTP/1.1 504")
        assert b"server.deadline_s" in answer
        await until(lambda: upstream.open == 0)


async def test_a_relay_ends_at_its_deadline_within_the_answer() -> None:
    upstream = RawUpstream(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf")
    async with relaying(upstream, deadline_s=1.0) as gate:
        answer = await gate.ask(request())
        assert answer.endswith(b"\r\n\r\nhalf")
        await until(lambda: upstream.open == 0)


@pytest.mark.parametrize(
    ("answer", "ends"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf", b"\r\n\r\nhalf"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n", b"4\r\nhalf\r\n"),
    ],
)
async def test_an_answer_that_breaks_off_breaks_off_for_the_client_in_one_line_of_log(
    answer: bytes, ends: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    upstream = RawUpstream(answer, breaks_off=True)
    with caplog.at_level(logging.INFO):
        async with relaying(upstream) as gate:
            seen = await gate.ask(request())
    assert seen.startswith(b"HTTP/1.1 200")
    assert seen.endswith(ends)
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [(record.name, record.exc_info) for record in told] == [("headstart", None)]
    assert "upstream raw failed" in told[0].getMessage()


async def test_an_upstream_that_stops_reading_keeps_no_connection_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[_WatchedConnection] = []
    take = _WatchedConnection.connection_made

    def connection_made(self: _WatchedConnection, transport: asyncio.BaseTransport) -> None:
        made.append(self)
        take(self, transport)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(60)  # reads no more, so that not all can be sent
        finally:
            writer.transport.abort()

    monkeypatch.setattr(_WatchedConnection, "connection_made", connection_made)
    upstream = RawUpstream()
    upstream.serve = serve  # type: ignore[method-assign]
    size = 50 * 2**20
    async with relaying(upstream, deadline_s=0.5) as gate:
        head = request(method="POST", headers=f"Content-Length: {size}\r\n")
        reader, writer = await gate.open(head)
        writer.write(bytes(size))
        answer = await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()
        assert answer.startswith(b"HTTP/1.1 504")
        assert len(made) == 1
        closed = made[0].closed
        await until(lambda: closed is None or closed.done())


async def test_a_body_that_turns_into_garbage_breaks_off_at_once() -> None:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head)
        await asyncio.sleep(0.05)  # a segment of its own
        writer.write(b"no chunk\r\n")
        await reader.read()
        writer.close()

    upstream = RawUpstream()
    upstream.serve = serve  # type: ignore[method-assign]
    async with relaying(upstream) as gate:
        seen = await gate.ask(request())
    assert seen.endswith(b"4\r\nhalf\r\n")


@pytest.mark.parametrize(
    "head",
    [
        b"600 Odd\r\n",
        b"000 Odd\r\n",
        b"101 Switching Protocols\r\nupgrade: foo\r\nconnection: upgrade\r\n",
        b"200 OK\r\nx-odd: a\x01b\r\n",
    ],
)
async def test_an_answer_that_no_server_could_send_on_is_a_502(head: bytes) -> None:
    upstream = RawUpstream(b"HTTP/1.1 %bcontent-length: 0\r\n\r\n" % head)
    async with relaying(upstream) as gate:
        answer = await gate.ask(request())
    assert answer.startswith(b"HTTP/1.1 502")
    assert b"upstream_protocol_error" in answer


async def test_a_stored_copy_that_is_still_good_is_relayed_as_a_304(
    caplog: pytest.LogCaptureFixture,
) -> None:
    upstream = RawUpstream(b'HTTP/1.1 304 Not Modified\r\ncontent-length: 10\r\netag: "a"\r\n\r\n')
    async with relaying(upstream) as gate:
        answer = await gate.ask(request(headers='If-None-Match: "a"\r\n'))
    assert answer.startswith(b"HTTP/1.1 304")
    assert b'\r\netag: "a"' in answer
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


FORGED = (
    b"cache-status: headstart; hit; detail=exact\r\nx-cache: HIT\r\n"
    b"x-headstart-similarity: 0.99\r\nx-headstart-veto: none\r\nx-headstart-upstream: other\r\n"
    b"x-headstart-cost: 9\r\nx-headstart-request-id: forged\r\nx-headstart-tokens-saved: 7\r\n"
    b"x-real: 1\r\n"
)


@pytest.mark.parametrize(
    ("sent", "got"),
    [
        (b"", "no-cache, no-transform"),
        (b"cache-control: no-store\r\n", "no-store, no-transform"),
        (b"cache-control: no-transform, private\r\n", "no-transform, private"),
        (
            b"cache-control: no-store\r\ncache-control: private\r\n",
            "no-store, private, no-transform",
        ),
        (b"cache-control: no-transform\r\ncache-control: private\r\n", "no-transform, private"),
    ],
)
async def test_a_relayed_stream_tells_proxies_not_to_collect_it(sent: bytes, got: str) -> None:
    stream = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 9\r\n"
    async with relay_to(RawUpstream(stream + sent + b"\r\ndata: a\n\n"), routes=()) as gate:
        answer = await ask_raw(gate.url, request())
    head, _, body = answer.partition(b"\r\n\r\n")
    pairs = [line.split(": ") for line in head.decode().split("\r\n")[1:]]
    assert ", ".join(value for name, value in pairs if name == "cache-control") == got
    assert ["x-accel-buffering", "no"] in pairs
    assert body == b"data: a\n\n"


async def test_other_relayed_answers_keep_their_headers() -> None:
    plain = says("200 OK", headers=b"cache-control: max-age=5\r\n")
    async with relay_to(RawUpstream(plain), routes=()) as gate:
        _, headers, _ = await gate.ask()
    assert headers["cache-control"] == "max-age=5"
    assert "x-accel-buffering" not in headers


async def test_our_own_headers_do_not_pass_from_a_relayed_upstream() -> None:
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nage: 60\r\n" + FORGED + b"\r\n{}"
    async with relaying(RawUpstream(answer)) as gate:
        head, _, body = (await gate.ask(request())).partition(b"\r\n\r\n")
    names = [line.partition(b":")[0].lower() for line in head.split(b"\r\n")[1:]]
    assert body == b"{}"
    ours = [name for name in names if name.startswith((b"x-headstart-", b"cache-", b"x-cache"))]
    assert sorted(ours) == [b"cache-status", b"x-headstart-request-id", b"x-headstart-upstream"]
    assert b"x-headstart-upstream: raw\r\n" in head + b"\r\n"
    assert {b"x-real", b"age"} <= set(names)  # an upstream's own cache may say how old it is


@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize("stream", [False, True])
async def test_our_own_headers_do_not_pass_from_a_chat_upstream(status: int, stream: bool) -> None:
    async with proxied() as proxy:
        proxy.upstream.status = status
        proxy.upstream.headers = [
            (name, value)
            for name, _, value in (line.partition(b": ") for line in FORGED.split(b"\r\n")[:-1])
        ] + [(b"age", b"60")]
        if status == 400:
            proxy.upstream.body = b'{"error":{"message":"no","type":"invalid_request_error"}}'
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": stream}
        key = {"authorization": "Bearer k"}
        url = proxy.url + "/v1/chat/completions"
        async with proxy.session.post(url, json=body, headers=key) as reply:
            await reply.read()
            headers = reply.headers
    own = {"X-Headstart-Request-Id", "X-Headstart-Upstream", "X-Headstart-Transforms"}
    assert {name.title() for name in headers if name.lower().startswith("x-headstart-")} <= own
    for name in ("cache-status", "x-cache", "x-headstart-request-id", "x-headstart-upstream"):
        values = headers.getall(name)
        assert len(values) == 1
        assert values[0] not in ("HIT", "forged", "other")
    assert "age" not in headers
    assert headers["x-real"] == "1"
