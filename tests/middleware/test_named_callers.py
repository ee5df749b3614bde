"""The books have named callers by name, and never the key itself."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import pytest

from support.raw_upstream import RawUpstream, ask_raw, sidecar_before

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.anyio

ANSWER = json.dumps(
    {
        "id": "x", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello."},
                     "finish_reason": "stop"}],
    }
).encode()  # fmt: skip
REPLY = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(ANSWER)
) + ANSWER
KEYS = {"team-a": "key-of-a", "team-b": "key-of-b"}


def request(key: str, method: str = "POST", path: str = "/v1/chat/completions") -> bytes:
    body = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
    length = f"Content-Length: {len(body)}\r\n" if method == "POST" else ""
    head = f"{method} {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\nx-api-key: {key}\r\n"
    return f"{head}{length}\r\n".encode() + (body if method == "POST" else b"")


async def logged(
    caplog: pytest.LogCaptureFixture, keys: object, requests: Sequence[bytes]
) -> list[dict[str, object]]:
    caplog.set_level(logging.INFO, "headstart.access")
    upstream = RawUpstream(REPLY)
    async with sidecar_before(upstream, client_keys=keys, access_log="json") as url:
        for each in requests:
            await ask_raw(url, each)
    lines = [each.getMessage() for each in caplog.records if each.name == "headstart.access"]
    assert "key-of" not in "".join(lines)
    return [json.loads(line) for line in lines]


async def test_the_books_name_the_caller_of_hits_misses_and_relayed_requests(
    caplog: pytest.LogCaptureFixture,
) -> None:
    a, b = request("key-of-a"), request("key-of-b")
    files = request("key-of-b", "GET", "/v1/files")
    rows = await logged(caplog, KEYS, [a, a, b, files, request("wrong")])
    assert [(row["outcome"], row.get("caller"), row["status"]) for row in rows] == [
        ("miss", "team-a", 200),
        ("exact", "team-a", 200),
        ("miss", "team-b", 200),
        ("relay", "team-b", 200),
        ("miss", None, 401),
    ]


async def test_keys_without_names_have_no_caller(caplog: pytest.LogCaptureFixture) -> None:
    (row,) = await logged(caplog, ["key-of-a"], [request("key-of-a")])
    assert (row["status"], row.get("caller")) == (200, None)
