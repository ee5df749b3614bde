"""The faults of one provider: a retry, a 5xx in the caller's dialect, or an error in the stream."""

from __future__ import annotations

import json
import ssl
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
import trustme

from headstart.lab.simulator import Oracle
from headstart.lab.simulator.faults import (
    Cut,
    Empty,
    ErrorFrame,
    Gzip,
    InvalidEvent,
    LongLine,
    NoDone,
    Stall,
    Status,
)
from support.leaks import requests_leave_memory
from support.proxied import CHAT, Reply
from support.scripted import ScriptedUpstream
from support.serving import bind_free_port, serving
from support.sidecar import PROMPT, Sidecar, headers_of, sidecar
from support.simulated import chat

if TYPE_CHECKING:
    from pathlib import Path

    from headstart.lab.simulator.faults import Fault

pytestmark = pytest.mark.anyio

EXACT = {"mode": "exact-only"}
ANSWER = Oracle().truth(PROMPT).text


def code_of(reply: Reply) -> tuple[int, str]:
    """Return status and code of an error in the caller's dialect."""
    error = json.loads(reply.body)["error"]
    assert error["type"] == "server_error"
    assert error["message"]
    return reply.status, error["code"]


def events_of(reply: Reply) -> list[Any]:
    """Return the events of a stream, decoded; ``[DONE]`` stays text."""
    lines = [line[6:] for line in reply.body.split(b"\n") if line.startswith(b"data: ")]
    return [line.decode() if line == b"[DONE]" else json.loads(line) for line in lines]


def text_of(events: list[Any]) -> str:
    chunks = [event for event in events if isinstance(event, dict) and event.get("choices")]
    return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)


async def assert_healthy(gateway: Sidecar, *, stream: bool = False) -> None:
    """The same request, unharmed, is a miss (nothing was stored), then a hit."""
    for verdict in ("MISS", "HIT"):
        reply = await gateway.ask(stream=stream)
        assert (reply.status, reply.headers["x-cache"]) == (200, verdict)
        said = (
            text_of(events_of(reply))
            if stream
            else json.loads(reply.body)["choices"][0]["message"]["content"]
        )
        assert said == ANSWER


def closed_port() -> str:
    with bind_free_port() as bound:
        return f"http://127.0.0.1:{bound.getsockname()[1]}"


async def assert_unreachable(base_url: str) -> str:
    """Return the message of the errors."""
    broken = {"name": "broken", "base_url": base_url, "models": {"broken": "broken"}}
    async with sidecar(cache=EXACT, others=(broken,)) as gateway:
        for stream in (False, True, False):
            reply = await gateway.ask(model="broken", stream=stream)
            assert code_of(reply) == (502, "upstream_unreachable")
        await assert_healthy(gateway)
    return str(json.loads(reply.body)["error"]["message"])


async def test_a_provider_that_refuses_connections_is_502() -> None:
    await assert_unreachable(closed_port())


async def test_a_provider_whose_name_does_not_resolve_is_502() -> None:
    await assert_unreachable("http://provider.invalid")


async def test_a_provider_that_speaks_no_tls_is_502() -> None:
    async with serving(ScriptedUpstream()) as plain:
        await assert_unreachable(plain.replace("http:", "https:"))


async def test_a_provider_with_a_certificate_of_a_stranger_is_502_until_its_ca_is_named(
    tmp_path: Path,
) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    key_file, chain_file, ca_file = (tmp_path / name for name in ("key", "chain", "ca"))
    certificate.private_key_pem.write_to_path(key_file)
    authority.cert_pem.write_to_path(ca_file)
    for blob in certificate.cert_chain_pems:
        blob.write_to_path(chain_file, append=True)
    async with serving(
        ScriptedUpstream(), ssl_certfile=str(chain_file), ssl_keyfile=str(key_file)
    ) as secure:
        said = await assert_unreachable(secure)
        assert "certificate not accepted: unable to get local issuer certificate; for" in said
        trusted = {"base_url": secure, "ca_file": str(ca_file)}
        async with sidecar(cache=EXACT, upstream=trusted) as gateway:
            assert (await gateway.ask()).status == 200


async def test_a_provider_that_asks_for_a_certificate_is_502_until_one_is_set(
    tmp_path: Path,
) -> None:
    authority = trustme.CA()
    server, own = authority.issue_cert("127.0.0.1"), authority.issue_cert("headstart")
    server_file, own_file, ca_file = (tmp_path / name for name in ("server", "own", "ca"))
    server.private_key_and_cert_chain_pem.write_to_path(server_file)
    own.private_key_and_cert_chain_pem.write_to_path(own_file)
    authority.cert_pem.write_to_path(ca_file)
    async with serving(
        ScriptedUpstream(),
        ssl_certfile=str(server_file),
        ssl_ca_certs=str(ca_file),
        ssl_cert_reqs=ssl.CERT_REQUIRED,
    ) as secure:
        trusted = {"base_url": secure, "ca_file": str(ca_file)}
        async with sidecar(cache=EXACT, upstream=trusted) as gateway:
            assert code_of(await gateway.ask()) == (502, "upstream_unreachable")
        shown = trusted | {"client_cert_file": str(own_file)}
        async with sidecar(cache=EXACT, upstream=shown) as gateway:
            assert (await gateway.ask()).status == 200


BEFORE_THE_HEAD = {
    "reset": (Cut(), 502, "upstream_unreachable"),
    "closed": (Cut(how="close"), 502, "upstream_unreachable"),
    "stall": (Stall(), 504, "upstream_timeout"),
}
IN_TIME = {"x-headstart-deadline-ms": "400"}
"""A whole answer takes as long as it takes: only the caller's own limit ends the wait for it."""


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fault", "status", "code"), BEFORE_THE_HEAD.values(), ids=BEFORE_THE_HEAD)
async def test_a_provider_that_fails_before_its_status_line(
    fault: Fault, status: int, code: str, stream: bool
) -> None:
    async with sidecar(cache=EXACT, upstream={"first_token_s": 0.3}) as gateway:
        headers = IN_TIME if isinstance(fault, Stall) and not stream else None
        reply = await gateway.ask(fault=fault, stream=stream, headers=headers)
        assert code_of(reply) == (status, code)
        await assert_healthy(gateway, stream=stream)


IN_THE_BODY = {
    "reset": (Cut(after=0), 502, "upstream_protocol_error"),
    "closed": (Cut(after=0, how="close"), 502, "upstream_protocol_error"),
    "too-short": (Cut(after=0, how="end"), 502, "upstream_protocol_error"),
    "stall": (Stall(after=0), 504, "upstream_timeout"),
    "empty": (Empty(), 502, "upstream_protocol_error"),
    "error-inside-200": (ErrorFrame(), 502, "server_error"),
    "not-json": (InvalidEvent(), 502, "upstream_protocol_error"),
}


@pytest.mark.parametrize(("fault", "status", "code"), IN_THE_BODY.values(), ids=IN_THE_BODY)
async def test_a_provider_that_fails_within_a_json_answer(
    fault: Fault, status: int, code: str
) -> None:
    slow = {"first_token_s": 0.3, "read_s": 0.3}
    async with sidecar(cache=EXACT, upstream=slow) as gateway:
        headers = IN_TIME if isinstance(fault, Stall) else None
        assert code_of(await gateway.ask(fault=fault, headers=headers)) == (status, code)
        await assert_healthy(gateway)


IN_THE_STREAM = {
    "reset": (Cut, {}, 502, "upstream_protocol_error"),
    "closed": (Cut, {"how": "close"}, 502, "upstream_protocol_error"),
    "truncated": (Cut, {"how": "end"}, 502, "upstream_protocol_error"),
    "stall": (Stall, {}, 504, "upstream_timeout"),
    "error": (ErrorFrame, {}, 502, "server_error"),
    "named-error": (ErrorFrame, {"named": True}, 502, "server_error"),
    "not-json": (InvalidEvent, {}, 502, "upstream_protocol_error"),
    "endless-line": (LongLine, {"bytes": 9 << 20}, 502, "upstream_protocol_error"),
}
SLOW = {"first_token_s": 2.0, "stall_s": 2.0}


@pytest.mark.parametrize(
    ("fault", "fields", "status", "code"), IN_THE_STREAM.values(), ids=IN_THE_STREAM
)
async def test_a_stream_that_fails_before_its_first_token_is_an_error_status(
    fault: type[Any], fields: dict[str, Any], status: int, code: str
) -> None:
    async with sidecar(cache=EXACT, upstream=SLOW) as gateway:
        reply = await gateway.ask(fault=fault(after=0, **fields), stream=True)
        assert code_of(reply) == (status, code)
        await assert_healthy(gateway, stream=True)


@pytest.mark.parametrize(
    ("fault", "fields", "status", "code"), IN_THE_STREAM.values(), ids=IN_THE_STREAM
)
async def test_a_stream_that_fails_later_ends_in_an_error_where_it_fails_anew(
    fault: type[Any],
    fields: dict[str, Any],
    status: int,
    code: str,
) -> None:
    async with sidecar(cache=EXACT, upstream=SLOW) as gateway:
        reply = await gateway.ask(fault=fault(after=5, **fields), stream=True)
        *before, last = events_of(reply)
        assert reply.status == 200
        assert code in (last["error"]["code"], last["error"]["type"])
        assert text_of(before)
        assert ANSWER.startswith(text_of(before))
        await assert_healthy(gateway, stream=True)


@pytest.mark.parametrize(
    ("fault", "ends"), [(Cut(after=5), False), (ErrorFrame(after=5), True)], ids=["cut", "told"]
)
async def test_a_body_ends_after_an_error_event_only_if_the_providers_body_did(
    fault: Fault, ends: bool
) -> None:
    """Some clients overlook the event, and would take the answer for whole."""
    async with sidecar(cache=EXACT, upstream=SLOW) as gateway:
        body = json.dumps(chat(PROMPT, stream=True)).encode()
        asking = gateway.session.post(gateway.url + CHAT, data=body, headers=headers_of(fault))
        seen = b""
        async with asking as response:
            with nullcontext() if ends else pytest.raises(aiohttp.ClientPayloadError):
                async for piece in response.content.iter_any():
                    seen += piece
        assert b'"error"' in seen.rstrip().rpartition(b"\n\n")[2]
        await assert_healthy(gateway, stream=True)


@pytest.mark.parametrize(
    ("fault", "fields", "status", "code"), IN_THE_STREAM.values(), ids=IN_THE_STREAM
)
async def test_a_stream_that_fails_once_is_whole_and_not_stored(
    fault: type[Any],
    fields: dict[str, Any],
    status: int,
    code: str,
) -> None:
    async with sidecar(cache=EXACT, upstream=SLOW) as gateway:
        reply = await gateway.ask(fault=fault(after=5, times=1, **fields), stream=True)
        assert text_of(events_of(reply)) == ANSWER
        assert events_of(reply)[-1] == "[DONE]"
        assert b"upstream" not in reply.body
        await assert_healthy(gateway, stream=True)


async def test_a_lone_done_is_not_an_answer() -> None:
    async with sidecar(cache=EXACT) as gateway:
        reply = await gateway.ask(fault=Empty(done=True), stream=True)
        assert text_of(events_of(reply)) == ""
        reply = await gateway.ask(fault=Empty(done=True, times=1), stream=True)
        assert text_of(events_of(reply)) == ANSWER


@pytest.mark.parametrize("status", [500, 503, 529])
async def test_a_providers_own_error_passes(status: int) -> None:
    async with sidecar(cache=EXACT) as gateway:
        reply = await gateway.ask(fault=Status(status=status, body="<html>Oops</html>"))
        assert (reply.status, reply.body) == (status, b"<html>Oops</html>")
        await assert_healthy(gateway)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_line_of_a_mebibyte_is_an_answer_like_others(stream: bool) -> None:
    async with sidecar(cache=EXACT) as gateway:
        reply = await gateway.ask(fault=LongLine(), stream=stream)
        assert (reply.status, reply.headers["x-cache"]) == (200, "MISS")
        assert len(reply.body) > 1 << 20
        assert (await gateway.ask(stream=stream)).headers["x-cache"] == "HIT"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_compressed_answer_passes_whole_and_is_not_stored(stream: bool) -> None:
    async with sidecar(cache=EXACT) as gateway:
        async with gateway.session.post(
            gateway.url + "/v1/chat/completions",
            json={
                "model": "m",
                "messages": [{"role": "user", "content": PROMPT}],
                "stream": stream,
            },
            headers={"authorization": "Bearer sk-test", "x-sim-fault": Gzip().header()},
        ) as response:
            body = await response.read()  # aiohttp has unpacked it
        assert response.headers["content-encoding"] == "gzip"
        assert ANSWER.split()[0].encode() in body
        assert b"upstream_protocol_error" not in body
        await assert_healthy(gateway, stream=stream)


async def test_a_stream_without_its_terminal_event_is_whole_if_it_said_why_it_finished() -> None:
    async with sidecar(cache=EXACT) as gateway:
        reply = await gateway.ask(fault=NoDone(), stream=True)
        assert text_of(events_of(reply)) == ANSWER
        assert (await gateway.ask(stream=True)).headers["x-cache"] == "HIT"


async def test_a_provider_that_is_down_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with bind_free_port() as closed:
        url = "http://{}:{}".format(*closed.getsockname())
        async with sidecar(upstream={"base_url": url}, cache=EXACT) as gateway:
            replies = [await gateway.ask("a secret of mine") for _ in range(3)]
            async with gateway.session.get(gateway.url + "/v1/models") as relayed:
                await relayed.read()
            await gateway.finished(4)
    assert {reply.status for reply in replies} <= {502, 503}
    assert relayed.status == 502
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said[0] == "upstream sim failed: unreachable (no connection: Connection refused)"
    assert len(said) == len(set(said)) <= 3  # one for each cause, however many requests
    assert "secret" not in caplog.text
    assert "sk-test" not in caplog.text


async def test_a_relayed_server_error_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    upstream = ScriptedUpstream()
    upstream.status, upstream.body = 503, b"busy"
    async with serving(upstream) as url, sidecar(upstream={"base_url": url}) as gateway:
        for _ in range(2):
            async with gateway.session.get(gateway.url + "/v1/models") as relayed:
                await relayed.read()
    assert relayed.status == 503
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said == ["upstream sim failed: overloaded (status 503)"]


FAILURES = {
    "refused": Status(status=500),
    "not a request": Status(status=400),
    "reset": Cut(),
    "broken": Cut(after=1),
    "late": Stall(),
    "error event": ErrorFrame(after=1),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("fault", FAILURES.values(), ids=FAILURES)
async def test_a_failed_request_leaves_memory_at_its_end(fault: Fault, stream: bool) -> None:
    async with sidecar(cache=EXACT, upstream={"first_token_s": 0.3}) as gateway:
        await gateway.ask()
        with requests_leave_memory():
            for prompt in ("one", "two", "three"):
                await gateway.ask(prompt, fault=fault, stream=stream, headers=IN_TIME)
            await gateway.finished(4)


@pytest.mark.parametrize("strategy", ["fallback", "race", "hedge"])
async def test_a_request_that_a_second_provider_answers_leaves_memory(strategy: str) -> None:
    broken = {"name": "broken", "base_url": closed_port()}
    route = {"name": "two", "upstreams": ["broken", "sim"], "strategy": strategy}
    async with sidecar(cache=EXACT, others=(broken,), routes=(route,)) as gateway:
        await gateway.ask()
        with requests_leave_memory():
            for prompt in ("one", "two", "three"):
                assert (await gateway.ask(prompt)).status == 200
            await gateway.finished(4)
