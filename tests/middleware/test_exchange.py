"""A request's own state, and the call that it becomes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headstart.middleware.body import Body
from headstart.middleware.dialects.openai_chat import OpenAIChat
from headstart.middleware.endpoints import Route
from headstart.middleware.exchange import Exchange

if TYPE_CHECKING:
    from headstart.middleware.asgi_types import Message


async def receive() -> Message:
    raise NotImplementedError


async def send(message: Message) -> None:
    raise NotImplementedError


def test_a_request_that_is_booked_later_took_no_longer() -> None:
    scope = {"method": "POST", "path": "/chat", "query_string": b"", "headers": []}
    exchange = Exchange("01H", Route("/chat", OpenAIChat()), scope, receive, send)
    exchange.started -= 2.0
    exchange.over()
    exchange.started -= 10.0
    row = exchange.served(1000.0)
    assert row.total_s == pytest.approx(2.0, abs=1.0)
    assert row.at == pytest.approx(988.0, abs=1.0)


def test_a_call_names_the_route_that_its_request_takes() -> None:
    scope = {"method": "POST", "path": "/chat", "query_string": b"", "headers": []}
    exchange = Exchange("01H", Route("/chat", OpenAIChat()), scope, receive, send)
    exchange.body = Body(b"{}", complete=True)
    assert exchange.call(editable=True).place == "/chat"
    exchange.rule = "voice"
    call = exchange.call(editable=True)
    assert (call.route, call.endpoint, call.place) == ("voice", "/chat", "voice")
