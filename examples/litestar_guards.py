"""Logins checked by a guard: the cache is asked after it, in the handler's own function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from litestar import Litestar, post
from litestar.connection import ASGIConnection
from litestar.exceptions import NotAuthorizedException
from litestar.handlers import BaseRouteHandler
from litestar.params import JSONBody

from headstart import Endpoint, HeadstartMiddleware, after_checks

SESSIONS = {"token-of-ann": "ann", "token-of-bob": "bob"}


def logged_in(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
    """Refuse unknown tokens."""
    token = connection.headers.get("authorization", "").removeprefix("Bearer ")
    if token not in SESSIONS:
        raise NotAuthorizedException("log in first")


@dataclass
class Ask:
    """A question."""

    question: str


@post("/ask", guards=[logged_in], status_code=200)
@after_checks
async def ask(data: JSONBody[Ask]) -> dict[str, str]:
    """Answer slowly and expensively: call your model here."""
    return {"answer": f"You asked: {data.question}"}


app = HeadstartMiddleware(
    Litestar([ask]),
    endpoints=[Endpoint("/ask", prompt="question", after_checks=True)],
)
