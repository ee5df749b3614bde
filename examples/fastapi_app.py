"""The middleware around a FastAPI app: three lines, and repeats of ``/ask`` come from the cache.

    uvicorn examples.fastapi_app:app

    curl -i localhost:8000/ask -H 'authorization: Bearer me' \\
        -H 'content-type: application/json' -d '{"question": "What is a semantic cache?"}'

Ask twice: the second answer says ``x-cache: HIT`` and the function below does not run.
"""

from __future__ import annotations

from fastapi import FastAPI
from pydantic import BaseModel

from headstart import Endpoint, HeadstartMiddleware

app = FastAPI()
app.add_middleware(HeadstartMiddleware, endpoints=[Endpoint("/ask", prompt="question")])


class Ask(BaseModel):
    """A question."""

    question: str


@app.post("/ask")
async def ask(body: Ask) -> dict[str, str]:
    """Answer slowly and expensively: call your model here."""
    return {"answer": f"You asked: {body.question}"}
