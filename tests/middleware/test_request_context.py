"""A request's own state, and the call that it becomes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.middleware.endpoints import MatchedEndpoint
from headstart.middleware.request_context import RequestContext

if TYPE_CHECKING:
    from headstart.types import Message


async def receive() -> Message:
    raise NotImplementedError


async def send(message: Message) -> None:
    raise NotImplementedError


def chat_context(**scope: Any) -> RequestContext:
    scope = {"method": "POST", "path": "/chat", "query_string": b"", "headers": []} | scope
    endpoint = MatchedEndpoint("/chat", OPENAI_CHAT)
    return RequestContext("01H", endpoint, b"/chat", scope, receive, send)


def test_a_request_that_is_booked_later_took_no_longer() -> None:
    context = chat_context()
    context.started -= 2.0
    context.total_s = context.elapsed()
    context.started -= 10.0
    row = context.served(1000.0)
    assert row.total_s == pytest.approx(2.0, abs=1.0)
    assert row.at == pytest.approx(988.0, abs=1.0)


def test_a_call_names_the_route_that_its_request_takes() -> None:
    context = chat_context()
    context.body = b"{}"
    assert context.call(editable=True).route_or_endpoint == "/chat"
    context.prepared = replace(context.prepared, route="voice")
    call = context.call(editable=True)
    assert (call.route, call.endpoint, call.route_or_endpoint) == ("voice", "/chat", "voice")


def test_what_an_app_writes_for_a_call_without_a_client_stays_with_it() -> None:
    pool = object()
    context = chat_context(state={"pool": pool})
    asked = context.without_client("01J")
    asked.scope["path"] = "/below/the/mount"
    asked.scope["state"]["user"] = "ann"
    assert context.scope["path"] == "/chat"
    assert context.scope["state"] == {"pool": pool}
    assert asked.scope["state"]["pool"] is pool
