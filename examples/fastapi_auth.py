"""Authentication around the cache: it runs on every request, also on hits.

A hit skips the app inside ``HeadstartMiddleware``, so the authentication must be outside of it. The
middleware that is added last is outermost. A revoked login gets 401, never a stored answer.
"""

from __future__ import annotations

from fastapi import FastAPI
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from headstart import Endpoint, HeadstartMiddleware

SESSIONS = {"token-of-ann": "ann", "token-of-bob": "bob"}


class Authentication:
    """Lets known tokens in and names the user in the scope."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse unknown tokens."""
        if scope["type"] == "http":
            token = Request(scope).headers.get("authorization", "").removeprefix("Bearer ")
            if token not in SESSIONS:
                await JSONResponse({"error": "log in first"}, 401)(scope, receive, send)
                return
            scope["user_name"] = SESSIONS[token]
        await self.app(scope, receive, send)


app = FastAPI()
app.add_middleware(
    HeadstartMiddleware,
    endpoints=[Endpoint("/ask", prompt="question")],
    scope=lambda scope: scope.get("user_name"),
)
app.add_middleware(Authentication)


class Ask(BaseModel):
    """A question."""

    question: str


@app.post("/ask")
async def ask(body: Ask) -> dict[str, str]:
    """Answer."""
    return {"answer": f"You asked: {body.question}"}
