"""What web pages can do at a real sidecar: nothing, unless the operator allows it."""

from __future__ import annotations

import asyncio
import json

import pytest

from headstart import HeadstartMiddleware, gateway
from headstart.config.loading import load_settings
from support.raw_upstream import RawUpstream, ask_raw, raw_upstream, sidecar_before
from support.scripted import ScriptedUpstream
from support.serving import serving

pytestmark = pytest.mark.anyio

DOCUMENT = {
    "id": "x", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "The secret answer."},
                 "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}  # fmt: skip
ANSWER = json.dumps(DOCUMENT).encode()
CHAT = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
CONTENTS = b'{"contents":[{"role":"user","parts":[{"text":"hi"}]}]}'
HTML = b"<script>fetch('/_headstart/cache?texts=1')</script>"
PATHS = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/messages"),
    ("POST", "/v1beta/models/m:generateContent"),
    ("GET", "/v1/files"),
    ("DELETE", "/v1/files/x"),
    ("POST", "/v1/fine_tuning/jobs"),
    ("OPTIONS", "/v1/chat/completions"),
]
PAGES = [
    "Host: evil.example\r\n",
    "Host: evil.example\r\nOrigin: http://evil.example\r\nSec-Fetch-Site: same-origin\r\n",
    "Host: 127.0.0.1\r\nOrigin: https://evil.example\r\nSec-Fetch-Site: cross-site\r\n",
    "Host: 127.0.0.1\r\nOrigin: https://evil.example\r\nContent-Type: text/plain\r\n",
    "Host: 127.0.0.1\r\nOrigin: null\r\nContent-Type: application/x-www-form-urlencoded\r\n",
    "Host: 127.0.0.1\r\nSec-Fetch-Site: cross-site\r\n",
    "Host: localhost:1\r\nOrigin: http://localhost:3000\r\nSec-Fetch-Site: same-site\r\n",
]


def answering(body: bytes, kind: bytes = b"application/json", more: bytes = b"") -> bytes:
    length = b"content-length: %d\r\n" % len(body)
    return b"HTTP/1.1 200 OK\r\ncontent-type: " + kind + b"\r\n" + length + more + b"\r\n" + body


def request(method: str, path: str, headers: str, body: bytes = CHAT) -> bytes:
    has_body = method == "POST"
    length = f"Content-Length: {len(body)}\r\n" if has_body else ""
    head = f"{method} {path} HTTP/1.1\r\nConnection: close\r\n{headers}{length}\r\n"
    return head.encode() + (body if has_body else b"")


def headers_of(answer: bytes, name: bytes) -> list[bytes]:
    lines = answer.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]
    pairs = (line.partition(b": ") for line in lines)
    return [value for found, _, value in pairs if found.lower() == name]


@pytest.mark.parametrize(("method", "path"), PATHS)
@pytest.mark.parametrize("page", PAGES)
async def test_no_page_spends_the_operators_key(method: str, path: str, page: str) -> None:
    upstream = RawUpstream(answering(ANSWER))
    async with sidecar_before(upstream) as url:
        answer = await ask_raw(url, request(method, path, page))
    assert answer.startswith(b"HTTP/1.1 403")
    assert b"server.client_keys" in answer
    assert upstream.requests == []


@pytest.mark.parametrize("page", PAGES)
async def test_no_page_reads_what_is_cached(page: str) -> None:
    async with sidecar_before(RawUpstream(answering(ANSWER))) as url:
        native = request("POST", "/v1/chat/completions", "Host: localhost\r\n")
        await ask_raw(url, native)
        assert b"cache-status: headstart; hit" in await ask_raw(url, native)
        for more in ("", "Cache-Control: only-if-cached\r\n"):
            answer = await ask_raw(url, request("POST", "/v1/chat/completions", page + more))
            assert answer.startswith(b"HTTP/1.1 403")
            assert b"secret" not in answer


async def test_a_refusal_is_in_the_callers_dialect() -> None:
    async with sidecar_before(RawUpstream()) as url:
        evil = "Host: evil.example\r\n"
        anthropic = await ask_raw(url, request("POST", "/v1/messages", evil))
        gemini = await ask_raw(url, request("POST", "/v1beta/models/m:generateContent", evil))
    assert json.loads(anthropic.partition(b"\r\n\r\n")[2])["error"]["type"] == "permission_error"
    assert json.loads(gemini.partition(b"\r\n\r\n")[2])["error"]["status"] == "PERMISSION_DENIED"


@pytest.mark.parametrize(
    "headers",
    [
        "Host: 127.0.0.1:8080\r\nContent-Type: application/x-www-form-urlencoded\r\n",
        "Host: localhost\r\nSec-Fetch-Mode: cors\r\nUser-Agent: node\r\n",
        "Host: [::1]:8080\r\n",
        "Host: 127.0.0.1\r\nSec-Fetch-Site: none\r\n",
    ],
)
@pytest.mark.parametrize(("method", "path"), PATHS)
async def test_other_clients_go_on_as_before(method: str, path: str, headers: str) -> None:
    upstream = RawUpstream(answering(ANSWER))
    async with sidecar_before(upstream) as url:
        body = CONTENTS if "beta" in path else CHAT
        await ask_raw(url, request(method, path, headers, body))
    assert len(upstream.requests) >= 1


async def test_named_hosts_and_origins_come_in_and_such_a_page_may_read() -> None:
    upstream = RawUpstream(answering(ANSWER, more=b"access-control-allow-origin: *\r\n"))
    rules = {
        "allowed_hosts": ["host.docker.internal"],
        "allowed_origins": ["http://localhost:3000"],
    }
    page = "Host: host.docker.internal:8080\r\nOrigin: http://localhost:3000\r\n"
    asks = "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: x-a,x-b\r\n"
    async with sidecar_before(upstream, **rules) as url:
        preflight = await ask_raw(url, request("OPTIONS", "/v1/chat/completions", page + asks))
        assert upstream.requests == []
        miss = await ask_raw(url, request("POST", "/v1/chat/completions", page))
        relayed = await ask_raw(url, request("GET", "/v1/models", page))
        other = page.replace("3000", "3001")
        refused = await ask_raw(url, request("OPTIONS", "/v1/chat/completions", other + asks))
    assert preflight.startswith(b"HTTP/1.1 204")
    assert headers_of(preflight, b"access-control-allow-methods") == [b"POST"]
    assert headers_of(preflight, b"access-control-allow-headers") == [b"x-a,x-b"]
    for answer in (preflight, miss, relayed):
        assert headers_of(answer, b"access-control-allow-origin") == [b"http://localhost:3000"]
    assert refused.startswith(b"HTTP/1.1 403")
    assert headers_of(refused, b"access-control-allow-origin") == []


async def test_with_client_keys_the_key_decides_whatever_the_host() -> None:
    page = "Host: llm.example\r\nOrigin: https://app.example\r\nAuthorization: Bearer k\r\n"
    async with sidecar_before(RawUpstream(answering(ANSWER)), client_keys=["k"]) as url:
        answer = await ask_raw(url, request("POST", "/v1/chat/completions", page))
        without = await ask_raw(url, request("POST", "/v1/chat/completions", page[:-3] + "\r\n"))
    assert answer.startswith(b"HTTP/1.1 200")
    assert without.startswith(b"HTTP/1.1 401")


@pytest.mark.parametrize(("method", "path"), [PATHS[0], ("GET", "/v1/files/f/content")])
async def test_a_page_from_a_provider_cannot_run_scripts(method: str, path: str) -> None:
    theirs = b"content-security-policy: script-src *\r\nx-content-type-options: none\r\n"
    async with sidecar_before(RawUpstream(answering(HTML, b"text/html", theirs))) as url:
        answer = await ask_raw(url, request(method, path, "Host: localhost\r\n"))
        refused = await ask_raw(url, request(method, path, "Host: evil.example\r\n"))
    for each in (answer, refused):
        assert headers_of(each, b"content-security-policy") == [b"default-src 'none'; sandbox"]
        assert headers_of(each, b"x-content-type-options") == [b"nosniff"]


ABOUT_THE_ORIGIN = (
    b'Alt-Svc: h3=":443"\r\nClear-Site-Data: "*"\r\nNEL: {}\r\nReport-To: {}\r\n'
    b"Strict-Transport-Security: max-age=31536000; includeSubDomains\r\nx-theirs: stays\r\n"
)


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/v1/chat/completions"), ("GET", "/v1/files")]
)
async def test_what_a_provider_says_about_its_origin_is_not_about_ours(
    method: str, path: str
) -> None:
    async with sidecar_before(
        RawUpstream(answering(ANSWER, b"application/json", ABOUT_THE_ORIGIN))
    ) as url:
        answer = await ask_raw(url, request(method, path, "Host: localhost\r\n"))
    assert headers_of(answer, b"x-theirs") == [b"stays"]
    for name in (b"alt-svc", b"clear-site-data", b"nel", b"report-to"):
        assert headers_of(answer, name) == []
    assert headers_of(answer, b"strict-transport-security") == []


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/files"])
async def test_an_answer_has_one_date_and_one_server(path: str) -> None:
    """The server writes both. nginx warns of each answer that has one of them twice."""
    theirs = b"Date: Mon, 01 Jan 2024 00:00:00 GMT\r\nServer: theirs\r\n"
    asked = request("POST" if "chat" in path else "GET", path, "Host: localhost\r\n")
    provider = RawUpstream(answering(ANSWER, b"application/json", theirs))
    async with sidecar_before(provider) as url:
        miss_and_hit = [await ask_raw(url, asked) for _ in range(2)]
    for answer in miss_and_hit:
        (date,) = headers_of(answer, b"date")
        assert date != b"Mon, 01 Jan 2024 00:00:00 GMT"
        assert headers_of(answer, b"server") == [b"uvicorn"]


async def test_hits_and_streams_carry_the_same() -> None:
    async with sidecar_before(RawUpstream(answering(ANSWER))) as url:
        native = request("POST", "/v1/chat/completions", "Host: localhost\r\n")
        await ask_raw(url, native)
        hit = await ask_raw(url, native)
        body = CHAT.replace(b"}]}", b'}],"stream":true}')
        streamed = await ask_raw(
            url, request("POST", "/v1/chat/completions", "Host: localhost\r\n", body)
        )
    for each in (hit, streamed):
        assert b"cache-status: headstart; hit" in each
        assert headers_of(each, b"content-security-policy") == [b"default-src 'none'; sandbox"]


async def test_an_app_around_us_keeps_its_own_rules() -> None:
    """The middleware leaves the app's answers as they are; ``gateway()`` judges no host."""
    page = "Host: app.example\r\nOrigin: https://app.example\r\n"
    wrapped = HeadstartMiddleware(ScriptedUpstream())
    async with serving(wrapped) as url:
        answer = await ask_raw(url, request("POST", "/v1/chat/completions", page))
    assert answer.startswith(b"HTTP/1.1 200")
    assert headers_of(answer, b"content-security-policy") == []
    async with raw_upstream(RawUpstream(answering(ANSWER))) as base:
        settings = await asyncio.to_thread(
            load_settings,
            None,
            {},
            {"cache.store": "memory:", "upstream": [{"name": "raw", "base_url": base}]},
        )
        async with serving(gateway(settings)) as url:
            answer = await ask_raw(url, request("POST", "/v1/chat/completions", page))
    assert answer.startswith(b"HTTP/1.1 200")
    assert headers_of(answer, b"content-security-policy") == [b"default-src 'none'; sandbox"]
