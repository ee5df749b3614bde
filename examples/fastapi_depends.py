"""Logins checked by a dependency: the cache is asked after them, in the route's own function.

A hit skips the function below ``@after_checks``, and nothing else: ``current_user`` and the body's
validation run on every request. A login that is revoked gets 401, never a stored answer.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel

from headstart import Endpoint, HeadstartMiddleware, after_checks

SESSIONS = {"token-of-ann": "ann", "token-of-bob": "bob"}
bearer = HTTPBearer()

app = FastAPI()
app.add_middleware(
    HeadstartMiddleware,
    endpoints=[Endpoint("/ask", prompt="question", after_checks=True)],
)


def current_user(given: Annotated[HTTPAuthorizationCredentials, Depends(bearer)]) -> str:
    """Return who is asking, or refuse."""
    if given.credentials not in SESSIONS:
        raise HTTPException(401, "log in first")
    return SESSIONS[given.credentials]


class Ask(BaseModel):
    """A question."""

    question: str


@app.post("/ask")
@after_checks
async def ask(body: Ask, user: Annotated[str, Depends(current_user)]) -> dict[str, str]:
    """Answer slowly and expensively: call your model here."""
    return {"answer": f"{user} asked: {body.question}"}
