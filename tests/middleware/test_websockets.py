"""Relayed WebSockets, with a real library at both ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import ssl
from typing import TYPE_CHECKING, Any

import openai
import pytest
import trustme
from websockets.exceptions import ConnectionClosed, InvalidStatus

from support.patience import PATIENCE_S, until
from support.raw_upstream import RawUpstream, open_raw, raw_upstream
from support.scripted import ScriptedUpstream
from support.serving import bind_free_port, serving
from support.websocket_provider import Provider, before

if TYPE_CHECKING:
    from pathlib import Path

    from websockets.asyncio.server import ServerConnection

pytestmark = pytest.mark.anyio

UPGRADE = (
    b"GET /v1/realtime HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
    b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
KEY = {"Authorization": "Bearer of-the-caller"}


async def silent(socket: ServerConnection) -> None:
    await socket.wait_closed()


def closing(code: int, reason: str = "", last: str | None = None) -> Any:
    """A provider's side that says one word more, and closes."""

    async def talk(socket: ServerConnection) -> None:
        if last is not None:
            await socket.send(last)
        await socket.close(code, reason)

    return talk


async def test_texts_and_bytes_pass_both_ways_as_they_are() -> None:
    provider = Provider()
    async with before(provider) as gate, gate.connect("/v1/responses?a=%2Fb&c=") as socket:
        for message in ("grüße", "", b"\x00\xff", b"", "x" * 70_000):
            await socket.send(message)
            assert await socket.recv() == message
        await socket.close()
        await until(lambda: len(gate.booked) == 1)
    assert provider.requests[0].path == "/v1/responses?a=%2Fb&c="


async def test_a_websocket_of_azure_is_one_of_openai() -> None:
    provider = Provider()
    path = "/openai/realtime?api-version=2024-10-01-preview&deployment=gpt-realtime"
    async with before(provider) as gate, gate.connect(path) as socket:
        await socket.send("hello")
        assert await socket.recv() == "hello"
    assert provider.requests[0].path == "/v1/realtime?model=gpt-realtime"


async def test_a_message_of_a_megabyte_passes_both_ways() -> None:
    text, data = "ä" * 500_000, os.urandom(1_000_000)
    async with before(Provider()) as gate, gate.connect(max_size=None) as socket:
        await socket.send(text)
        assert await socket.recv() == text
        await socket.send(data)
        assert await socket.recv() == data


async def test_parts_of_a_message_arrive_as_one() -> None:
    async with before(Provider()) as gate, gate.connect() as socket:
        await socket.send(["one ", "two ", "three"])
        assert await socket.recv() == "one two three"


async def test_a_subprotocol_that_the_provider_chose_is_the_clients() -> None:
    provider = Provider(subprotocols=["realtime"])
    async with before(provider) as gate, gate.connect(subprotocols=["x", "realtime"]) as socket:
        assert socket.subprotocol == "realtime"
    offered = provider.requests[0].headers["Sec-WebSocket-Protocol"]
    assert [each.strip() for each in offered.split(",")] == ["x", "realtime"]


async def test_the_answer_to_the_handshake_names_request_and_upstream() -> None:
    async with before(Provider()) as gate:
        async with gate.connect() as socket:
            assert socket.response is not None
            headers = socket.response.headers
        assert headers["x-headstart-upstream"] == "sim"
        await until(lambda: len(gate.booked) == 1)
        assert headers["x-headstart-request-id"] == gate.booked[0].id


@pytest.mark.parametrize(
    ("code", "reason"), [(1000, "bye"), (1008, "späť"), (4321, ""), (3000, "x")]
)
async def test_the_clients_close_code_and_reason_reach_the_provider(code: int, reason: str) -> None:
    provider = Provider()
    async with before(provider) as gate:
        socket = await gate.connect()
        await socket.close(code, reason)
        await until(lambda: len(provider.ended) == 1)
        await until(lambda: gate.open == 0)
    assert provider.ended == [(code, reason)]


@pytest.mark.parametrize(
    ("code", "reason"), [(1000, "bye"), (1011, "späť"), (4321, ""), (1013, "x")]
)
async def test_the_providers_close_code_and_reason_reach_the_client_behind_its_last_words(
    code: int, reason: str
) -> None:
    provider = Provider(closing(code, reason, "last words"))
    async with before(provider) as gate, gate.connect() as socket:
        assert await socket.recv() == "last words"
        with pytest.raises(ConnectionClosed):
            await socket.recv()
        assert (socket.close_code, socket.close_reason) == (code, reason)
        await until(lambda: gate.open == 0)
        assert gate.booked[0].socket is not None
        assert gate.booked[0].socket.close_code == code
    assert provider.ended == [(code, reason)]


async def test_a_provider_that_dies_is_an_error_that_clients_recover_from() -> None:
    async def die(socket: ServerConnection) -> None:
        await socket.recv()
        socket.transport.abort()

    async with before(Provider(die)) as gate, gate.connect() as socket:
        await socket.send("go")
        with pytest.raises(ConnectionClosed):
            await socket.recv()
        assert socket.close_code == 1011


async def test_a_client_that_dies_ends_the_providers_side_at_once() -> None:
    provider = Provider()
    async with before(provider) as gate:
        socket = await gate.connect()
        await socket.send("x")
        await socket.recv()
        socket.transport.abort()
        await until(lambda: len(provider.ended) == 1)
        await until(lambda: gate.open == 0)
    assert provider.ended[0][0] == 1001


async def test_a_client_that_dies_in_the_handshake_leaves_nothing_behind() -> None:
    provider = Provider(delay_s=0.3)
    async with before(provider) as gate:
        _, writer = await open_raw(gate.url, UPGRADE)
        await until(lambda: len(provider.requests) == 1)
        assert gate.open == 1
        writer.close()
        await until(lambda: gate.open == 0)
        assert provider.sockets == []


@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 500, 503])
async def test_a_providers_refusal_passes_with_its_status_and_body(status: int) -> None:
    async with before(Provider(refuses=status)) as gate:
        with pytest.raises(InvalidStatus) as refused:
            await gate.connect()
        await until(lambda: len(gate.booked) == 1)
    response = refused.value.response
    assert response.status_code == status
    assert response.body == b'{"error":{"message":"no"}}'
    assert response.headers["x-request-id"] == "req_provider"
    assert gate.booked[0].status == status


async def test_a_refusal_with_a_status_that_http_does_not_have_is_a_502() -> None:
    odd = RawUpstream(b"HTTP/1.1 999 Odd\r\ncontent-length: 0\r\n\r\n")
    async with raw_upstream(odd) as at, before(Provider(), at=at) as gate:
        with pytest.raises(InvalidStatus) as refused:
            await gate.connect()
        await until(lambda: len(gate.booked) == 1)
    assert refused.value.response.status_code == 502
    assert gate.booked[0].error == "upstream_protocol_error"
    (attempt,) = gate.booked[0].attempts
    assert attempt.error == "protocol"
    assert "999" in str(attempt.reason)


async def test_a_redirect_is_not_followed() -> None:
    provider = Provider(refuses=307)
    async with before(provider, own_key=True) as gate:
        reader, writer = await open_raw(gate.url, UPGRADE)
        async with asyncio.timeout(PATIENCE_S):
            answer = await reader.readuntil(b"\r\n\r\n")
        writer.close()
    assert len(provider.requests) == 1
    assert answer.startswith(b"HTTP/1.1 307")


async def test_a_provider_that_is_away_is_a_502() -> None:
    with bind_free_port() as bound:
        gone = f"http://127.0.0.1:{bound.getsockname()[1]}"
    async with before(Provider(), at=gone) as gate:
        with pytest.raises(InvalidStatus) as refused:
            await gate.connect()
    assert refused.value.response.status_code == 502
    assert b"upstream_unreachable" in (refused.value.response.body or b"")


@pytest.mark.parametrize(
    ("base", "asked", "sent"),
    [
        ("", "/v1/realtime", "/v1/realtime"),
        ("/openai/v1", "/v1/realtime", "/openai/v1/realtime"),
        ("/v1beta", "/ws/google.ai.v1beta.Service.Bidi", "/ws/google.ai.v1beta.Service.Bidi"),
        ("/proxy/v1beta", "/ws/google.ai.v1.Service.Bidi", "/proxy/ws/google.ai.v1.Service.Bidi"),
    ],
)
async def test_the_base_url_stands_before_the_path(base: str, asked: str, sent: str) -> None:
    provider = Provider()
    dialect = "gemini" if asked.startswith("/ws/") else "openai"
    async with (
        before(provider, path=base, dialect=dialect) as gate,
        gate.connect(asked) as socket,
    ):
        await socket.send("x")
        assert await socket.recv() == "x"
    assert provider.requests[0].path == sent


async def test_a_provider_behind_tls_is_reached_if_its_authority_is_trusted(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    ca_file = tmp_path / "ca"
    authority.cert_pem.write_to_path(ca_file)
    async with Provider(ssl=context).serving() as plain:
        secure = plain.replace("http:", "https:")
        async with before(Provider(), at=secure) as gate:
            with pytest.raises(InvalidStatus) as refused:
                await gate.connect()
        assert refused.value.response.status_code == 502
        async with (
            before(Provider(), at=secure, ca_file=str(ca_file)) as gate,
            gate.connect() as socket,
        ):
            await socket.send("x")
            assert await socket.recv() == "x"


@pytest.mark.parametrize("refuses", [0, 429, 503])
async def test_a_route_asks_its_next_upstream_when_one_fails(refuses: int) -> None:
    first, second = Provider(refuses=refuses), Provider()
    async with first.serving() as failing:
        with bind_free_port() as bound:
            gone = f"http://127.0.0.1:{bound.getsockname()[1]}"
        more: Any = {
            "others": [{"name": "first", "base_url": failing if refuses else gone}],
            "routes": [{"name": "r", "strategy": "fallback", "upstreams": ["first", "sim"]}],
        }
        async with before(second, **more) as gate, gate.connect() as socket:
            await socket.send("x")
            assert await socket.recv() == "x"
    assert len(first.requests) == (1 if refuses else 0)


async def test_a_refusal_that_the_caller_caused_is_final() -> None:
    first, second = Provider(refuses=401), Provider()
    async with first.serving() as refusing:
        more: Any = {
            "others": [{"name": "first", "base_url": refusing}],
            "routes": [{"name": "r", "strategy": "fallback", "upstreams": ["first", "sim"]}],
        }
        async with before(second, **more) as gate:
            with pytest.raises(InvalidStatus) as refused:
                await gate.connect()
    assert (refused.value.response.status_code, second.requests) == (401, [])


async def test_an_upstream_gets_its_own_name_of_the_model_that_the_query_names() -> None:
    provider = Provider()
    async with before(provider, provider_settings={"models": {"m": "real/one"}}) as gate:
        for query in ("?model=m", "?a=model&model=m", "?model=other"):
            async with gate.connect("/v1/realtime" + query):
                pass
    assert [request.path.partition("?")[2] for request in provider.requests] == [
        "model=real%2Fone", "a=model&model=real%2Fone", "model=other",
    ]  # fmt: skip


async def test_an_upstream_gets_the_headers_of_its_settings_in_the_handshake() -> None:
    provider = Provider()
    own = {"headers": {"X-Team": "blue", "X-Other": "b"}}
    async with (
        before(provider, provider_settings=own) as gate,
        gate.connect(additional_headers={"X-Other": "a", "X-Mine": "c"}) as socket,
    ):
        await socket.send("x")
        assert await socket.recv() == "x"
    sent = provider.requests[0].headers
    assert [sent.get_all(name) for name in ("X-Team", "X-Other", "X-Mine")] == [
        ["blue"], ["b"], ["c"],
    ]  # fmt: skip


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_a_chat_ends_its_call_and_no_open_websocket(
    stream: bool,
) -> None:
    """The server tells both on the connections of one process."""
    provider, chats = Provider(), ScriptedUpstream()
    chats.head_hold = asyncio.Event()
    body = json.dumps({"model": "m", "messages": [], "stream": stream}).encode()
    asked = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX-Headstart-Route: chats\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    async with serving(chats) as chats_url:
        others = [{"name": "chats", "base_url": chats_url}]
        routes: list[dict[str, Any]] = [
            {"name": "sockets", "upstreams": ["sim"]},
            {"name": "chats", "upstreams": ["chats"], "match": {"model": "-"}},
        ]
        async with before(provider, others=others, routes=routes) as gate:
            async with gate.connect() as socket, gate.connect() as second:
                _, writer = await open_raw(gate.url, asked)
                await until(lambda: chats.calls)
                await second.close()
                assert not chats.calls[0].left.is_set()
                writer.close()
                async with asyncio.timeout(PATIENCE_S):
                    await chats.calls[0].left.wait()
                await socket.send("still here")
                assert await socket.recv() == "still here"
            await until(lambda: len(gate.booked) == 3)
    assert sorted(row.error or "" for row in gate.booked) == ["", "", "client-gone"]


@pytest.mark.parametrize("refuses", [401, 429])
async def test_a_key_that_is_refused_gives_way_to_the_next_one(
    refuses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_ONE", "one")
    monkeypatch.setenv("KEY_TWO", "two")
    provider = Provider(refuses=refuses, refused_key="Bearer one")
    both = {"api_key_env": ["KEY_ONE", "KEY_TWO"]}
    async with before(provider, provider_settings=both) as gate, gate.connect() as socket:
        await socket.send("x")
        assert await socket.recv() == "x"
    keys = [request.headers["Authorization"] for request in provider.requests]
    assert keys == ["Bearer one", "Bearer two"]
    assert [each.status for each in gate.booked[0].attempts] == [refuses]


async def test_the_callers_own_key_passes_where_the_operator_has_none() -> None:
    provider = Provider()
    async with before(provider) as gate, gate.connect(additional_headers=KEY):
        pass
    assert provider.requests[0].headers["Authorization"] == KEY["Authorization"]


async def test_the_operators_key_takes_the_place_of_every_secret_of_the_caller() -> None:
    provider = Provider(subprotocols=["realtime"])
    secrets = {**KEY, "OpenAI-Organization": "org-caller", "X-Api-Key": "of-the-caller"}
    protocols: Any = [
        "realtime", "openai-insecure-api-key.of-the-caller", "openai-organization.of-the-caller",
    ]  # fmt: skip
    async with (
        before(provider, own_key=True) as gate,
        gate.connect(
            "/v1/realtime?model=m&key=of-the-caller",
            additional_headers=secrets,
            subprotocols=protocols,
        ) as socket,
    ):
        assert socket.subprotocol == "realtime"
    [request] = provider.requests
    assert request.headers["Authorization"] == f"Bearer {os.environ['PATH']}"
    assert "of-the-caller" not in str(request.headers) + request.path
    assert "org-caller" not in str(request.headers)
    assert request.path == "/v1/realtime?model=m"


@pytest.mark.parametrize("given", [{}, KEY, {"X-Api-Key": "wrong"}])
async def test_a_wrong_client_key_is_a_401_and_never_reaches_the_provider(given: Any) -> None:
    provider = Provider()
    async with before(provider, own_key=True, client_keys=["right"]) as gate:
        with pytest.raises(InvalidStatus) as refused:
            await gate.connect(additional_headers=given)
    assert refused.value.response.status_code == 401
    assert b"invalid_api_key" in (refused.value.response.body or b"")
    assert provider.requests == []


@pytest.mark.parametrize("as_protocol", [False, True])
async def test_a_right_client_key_comes_in_also_as_a_browsers_subprotocol(
    as_protocol: bool,
) -> None:
    provider = Provider(subprotocols=["realtime"])
    protocols: Any = ["realtime", *(["openai-insecure-api-key.right"] if as_protocol else [])]
    headers = {} if as_protocol else {"Authorization": "Bearer right"}
    async with (
        before(provider, own_key=True, client_keys=["right"]) as gate,
        gate.connect(additional_headers=headers, subprotocols=protocols) as socket,
    ):
        await socket.send("x")
        assert await socket.recv() == "x"
    assert "right" not in str(provider.requests[0].headers)


@pytest.mark.parametrize("guarded", [False, True])
async def test_a_page_of_another_origin_is_a_403(guarded: bool) -> None:
    provider = Provider()
    async with before(provider, guarded=guarded, own_key=True) as gate:
        with pytest.raises(InvalidStatus) as refused:
            await gate.connect(origin="https://evil.example")
        async with gate.connect(origin=gate.url):
            pass
    assert refused.value.response.status_code == 403
    assert len(provider.requests) == 1


async def test_a_listed_origin_may_connect() -> None:
    listed = "https://app.example"
    async with before(Provider(), allowed_origins=[listed]) as gate, gate.connect(origin=listed):
        pass


@pytest.mark.parametrize(
    ("path", "status"),
    [("/v1/realtime", 403), ("/v1/responses", 101), ("/v1/../x", 400), ("/other", 404)],
)
async def test_paths_are_checked_as_those_of_requests(path: str, status: int) -> None:
    provider = Provider()
    async with before(provider, relay_paths=["/v1/responses"]) as gate:
        if status == 101:
            async with gate.connect(path):
                return
        with pytest.raises(InvalidStatus) as refused:
            await gate.connect(path)
    assert refused.value.response.status_code == status
    assert provider.requests == []


async def test_past_its_limit_a_websocket_is_a_429_that_names_the_setting() -> None:
    async with before(Provider(), max_websockets=1) as gate, gate.connect():
        with pytest.raises(InvalidStatus) as refused:
            await gate.connect()
    assert refused.value.response.status_code == 429
    assert b"server.max_websockets" in (refused.value.response.body or b"")


async def test_open_websockets_take_no_place_from_requests() -> None:
    limits: Any = {"max_websockets": 2, "max_relays": 1}
    async with before(Provider(), **limits) as gate, gate.connect(), gate.connect():
        assert (gate.open, gate.parts[0].relays.active) == (2, 0)


async def test_a_message_of_the_client_over_the_limit_ends_both_sides() -> None:
    provider = Provider()
    async with before(provider, max_body_bytes=1000) as gate, gate.connect() as socket:
        await socket.send("x" * 1001)
        with pytest.raises(ConnectionClosed):
            await socket.recv()
        assert socket.close_code == 1009
        await until(lambda: len(provider.ended) == 1)
    assert provider.ended[0][0] == 1009


async def test_a_message_of_the_provider_over_the_limit_ends_both_sides() -> None:
    async def talk(socket: ServerConnection) -> None:
        await socket.send("x" * 1001)
        await socket.wait_closed()

    provider = Provider(talk)
    async with before(provider, max_body_bytes=1000) as gate, gate.connect() as socket:
        with pytest.raises(ConnectionClosed):
            await socket.recv()
        assert socket.close_code == 1009
        await until(lambda: len(provider.ended) == 1)
    assert provider.ended[0][0] == 1009


async def test_a_websocket_without_messages_is_closed_and_told_the_setting() -> None:
    provider = Provider(silent)
    async with before(provider, websocket_idle_s=0.3) as gate, gate.connect() as socket:
        with pytest.raises(ConnectionClosed):
            await socket.recv()
        assert socket.close_code == 1001
        assert "websocket_idle_s" in (socket.close_reason or "")
        await until(lambda: len(provider.ended) == 1)
    assert provider.ended[0][0] == 1001


async def test_messages_keep_a_websocket_open_until_its_deadline() -> None:
    async def tick(socket: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            while True:
                await socket.send("tick")
                await asyncio.sleep(0.05)

    async with before(Provider(tick), websocket_idle_s=0.4, websocket_deadline_s=1.0) as gate:
        async with gate.connect() as socket:
            assert [message async for message in socket]
        assert socket.close_code == 1001
        assert "websocket_deadline_s" in (socket.close_reason or "")


async def test_a_slow_reader_holds_the_provider_back_and_loses_nothing() -> None:
    sent = 0
    most, piece = 400, "x" * 100_000

    async def flood(socket: ServerConnection) -> None:
        nonlocal sent
        with contextlib.suppress(ConnectionClosed):
            for _ in range(most):
                await socket.send(piece)
                sent += 1
            await socket.close()

    async with before(Provider(flood)) as gate, gate.connect(max_queue=1) as socket:
        await socket.recv()
        stood = -1
        while sent != stood:  # until nothing moves any more
            stood = sent
            await asyncio.sleep(0.3)
        assert stood < most // 2
        got = 1
        async for message in socket:
            assert message == piece
            got += 1
        assert got == most


async def test_a_provider_that_does_not_read_holds_the_client_back() -> None:
    reads = asyncio.Event()

    async def talk(socket: ServerConnection) -> None:
        await reads.wait()
        count = 0
        async for _ in socket:
            count += 1
            if count == most:
                await socket.send(str(count))

    most, piece, sent = 400, "x" * 100_000, 0
    async with before(Provider(talk, max_queue=1)) as gate, gate.connect() as socket:

        async def flood() -> None:
            nonlocal sent
            for _ in range(most):
                await socket.send(piece)
                sent += 1

        async with asyncio.TaskGroup() as group:
            group.create_task(flood())
            stood = -1
            while sent != stood:
                stood = sent
                await asyncio.sleep(0.3)
            assert stood < most // 2
            reads.set()
            assert await socket.recv() == str(most)


async def test_pings_are_answered_on_both_sides() -> None:
    provider = Provider()
    async with before(provider) as gate, gate.connect() as socket:
        async with asyncio.timeout(PATIENCE_S):
            await (await socket.ping())
            await (await provider.sockets[0].ping())


async def test_a_stop_closes_both_sides_with_a_code_that_says_so() -> None:
    provider = Provider()
    async with before(provider) as gate, gate.connect() as socket:
        await gate.app.aclose()
        with pytest.raises(ConnectionClosed):
            await socket.recv()
        assert (socket.close_code, gate.open) == (1012, 0)
        await until(lambda: len(provider.ended) == 1)
    assert provider.ended[0][0] == 1001


async def test_a_server_that_drains_takes_no_new_websocket_and_keeps_the_open_ones() -> None:
    async with before(Provider()) as gate, gate.connect() as socket:
        gate.app.draining = True
        with pytest.raises(InvalidStatus) as refused:
            await gate.connect()
        await socket.send("still")
        assert await socket.recv() == "still"
    assert refused.value.response.status_code == 503


async def test_a_websocket_is_in_the_books_with_messages_bytes_and_time() -> None:
    async with before(Provider()) as gate:
        async with gate.connect() as socket:
            for message in ("ä", b"123"):
                await socket.send(message)
                await socket.recv()
        await until(lambda: len(gate.booked) == 1)
    [row] = gate.booked
    assert (row.endpoint, row.outcome.value, row.status, row.upstream) == (
        "websocket",
        "relay",
        101,
        "sim",
    )
    assert row.socket is not None
    counted = row.socket
    assert (counted.messages_up, counted.bytes_up) == (2, 5)
    assert (counted.messages_down, counted.bytes_down) == (2, 5)
    assert 0 < row.total_s < 20


@pytest.mark.parametrize("api", ["responses", "realtime"])
async def test_openais_own_client_connects(api: str) -> None:
    asked: list[Any] = []
    failed = {"type": "error", "event_id": "e", "error": {"type": "t", "message": "m"}}

    async def talk(socket: ServerConnection) -> None:
        asked.append(json.loads(await socket.recv()))
        await socket.send(json.dumps({**failed, "sequence_number": 0, "code": "c"}))
        await socket.wait_closed()

    provider = Provider(talk)
    key = "of-the-caller"
    async with (
        before(provider, own_key=True) as gate,
        openai.AsyncOpenAI(base_url=gate.url + "/v1", api_key=key) as client,
    ):
        chosen: Any = client.realtime.connect(model="m") if api == "realtime" else None
        async with chosen or client.responses.connect() as connection:
            await connection.response.create()
            event = await connection.recv()
    assert event.type == "error"
    assert asked[0]["type"] == "response.create"
    assert provider.requests[0].path.startswith(f"/v1/{api}")
    assert key not in str(provider.requests[0].headers)


async def test_no_log_shows_a_key_or_a_message(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with before(Provider()) as gate:
            path = "/v1/realtime?key=caller-secret"
            logging.getLogger("websockets").setLevel(logging.WARNING)  # the test's own ends
            async with gate.connect(
                path, additional_headers={"Authorization": "Bearer caller-secret"}
            ) as socket:
                await socket.send("prompt-secret")
                await socket.recv()
    assert "caller-secret" not in caplog.text
    assert "prompt-secret" not in caplog.text


async def test_an_upgrade_behind_an_answer_under_way_is_no_websocket() -> None:
    provider = Provider(refuses=404, delay_s=0.3)
    plain = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with before(provider) as gate:
        reader, writer = await open_raw(gate.url, plain + UPGRADE)
        async with asyncio.timeout(PATIENCE_S):
            first = await reader.readuntil(b"}}")
            second = await reader.readuntil(b"}}")
        writer.close()
    assert first.startswith(b"HTTP/1.1 4")
    assert b"does not upgrade" in second


async def test_the_head_of_a_websocket_is_over_once_it_is_open() -> None:
    """The limit for heads does not close it."""
    async with before(Provider()) as gate:
        from headstart.middleware.http_protocol import BoundedHeadProtocol

        before_limit, BoundedHeadProtocol.head_timeout_s = BoundedHeadProtocol.head_timeout_s, 0.2
        try:
            async with gate.connect() as socket:
                await asyncio.sleep(0.5)
                await socket.send("x")
                assert await socket.recv() == "x"
        finally:
            BoundedHeadProtocol.head_timeout_s = before_limit


async def test_a_refusal_does_not_show_the_operators_key() -> None:
    key = os.environ["PATH"].encode()  # the support files take this variable for the key
    body = b'{"error":{"message":"bad key %b"}}' % key
    refusal = b"HTTP/1.1 401 No\r\nx-key: %b\r\ncontent-length: %d\r\n\r\n%b"
    odd = RawUpstream(refusal % (key, len(body), body))
    async with raw_upstream(odd) as at, before(Provider(), at=at, own_key=True) as gate:
        with pytest.raises(InvalidStatus) as refused:
            await gate.connect()
    response = refused.value.response
    assert response.body == body.replace(key, b"*" * len(key))
    assert key.decode() not in str(response.headers)
