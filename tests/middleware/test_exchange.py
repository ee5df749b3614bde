"""A request's own state, and the call that it becomes."""

from __future__ import annotations

from typing import TYPE_CHECKING

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


def test_a_call_names_the_route_that_its_request_takes() -> None:
    scope = {"method": "POST", "path": "/chat", "query_string": b"", "headers": []}
    exchange = Exchange("01H", Route("/chat", OpenAIChat()), scope, receive, send)
    exchange.body = Body(b"{}", complete=True)
    assert exchange.call(editable=True).place == "/chat"
    exchange.rule = "voice"
    call = exchange.call(editable=True)
    assert (call.route, call.endpoint, call.place) == ("voice", "/chat", "voice")
