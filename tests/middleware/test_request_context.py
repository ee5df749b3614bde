"""A request's own state, and the call that it becomes."""

from __future__ import annotations

from typing import TYPE_CHECKING

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


def test_a_request_that_is_booked_later_took_no_longer() -> None:
    scope = {"method": "POST", "path": "/chat", "query_string": b"", "headers": []}
    context = RequestContext(
        "01H", MatchedEndpoint("/chat", OPENAI_CHAT), b"/chat", scope, receive, send
    )
    context.started -= 2.0
    context.total_s = context.elapsed()
    context.started -= 10.0
    row = context.served(1000.0)
    assert row.total_s == pytest.approx(2.0, abs=1.0)
    assert row.at == pytest.approx(988.0, abs=1.0)


def test_a_call_names_the_route_that_its_request_takes() -> None:
    scope = {"method": "POST", "path": "/chat", "query_string": b"", "headers": []}
    context = RequestContext(
        "01H", MatchedEndpoint("/chat", OPENAI_CHAT), b"/chat", scope, receive, send
    )
    context.body = b"{}"
    assert context.call(editable=True).route_or_endpoint == "/chat"
    context.prepared = replace(context.prepared, route="voice")
    call = context.call(editable=True)
    assert (call.route, call.endpoint, call.route_or_endpoint) == ("voice", "/chat", "voice")
