"""A provider that quotes the operator's key in an error does not show it to callers."""

from __future__ import annotations

import json
from typing import Any

import pytest

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
