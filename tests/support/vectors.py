"""A provider of vectors that a test controls, and requests for vectors."""

from __future__ import annotations

import base64
import json
import struct
from typing import TYPE_CHECKING, Any

from support.scripted import lifespan, whole_body

if TYPE_CHECKING:
    import asyncio

DIMENSION = 4


def vector(item: Any, model: str) -> list[float]:
    """Return the vector of an item, which differs for each model."""
    seed = sum(json.dumps(item).encode()) + sum(model.encode()) * 1000
    return [1 / (seed + step + 1) for step in range(DIMENSION)]


def packed(numbers: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()


class VectorProvider:
    """Answers ``/v1/embeddings``. ``drops`` is the number of missing items.

    ``status`` overrides the answer. ``hold`` is awaited before the body, and ``breaks`` ends the
    connection in the middle of it.
    """

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.drops = 0
        self.status = 200
        self.breaks = False
        self.reverses = False
        self.hold: asyncio.Event | None = None
        self.more: dict[str, Any] = {}
        """More fields of each item, beside its vector."""
        self.names = False
        """Give each answer an id, as Mistral does."""

    @property
    def items(self) -> list[Any]:
        """What each call asked for."""
        return [each["input"] for each in self.asked]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return await lifespan(receive, send)
        body = await whole_body(receive)
        self.asked.append(asked := json.loads(body))
        self.keys.append(dict(scope["headers"]).get(b"authorization", b"").decode())
        if self.hold is not None:
            await self.hold.wait()
        if self.status != 200:
            error = {"error": {"message": "no", "type": "t", "param": None, "code": "c"}}
            return await _respond(send, self.status, json.dumps(error).encode())
        answer = json.dumps(self._answer(asked)).encode()
        if self.breaks:
            headers = [(b"content-length", b"%d" % len(answer))]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": answer[:50], "more_body": True})
            raise ConnectionError
        return await _respond(send, 200, answer)

    def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        items = asked["input"]
        if isinstance(items, str) or isinstance(items[0], int):
            items = [items]
        form = packed if asked.get("encoding_format") == "base64" else list
        data = [
            {"object": "embedding", "index": n, "embedding": form(vector(item, asked["model"]))}
            | self.more
            for n, item in enumerate(items)
        ]
        tokens = len(json.dumps(items))
        named = {"id": f"emb-{len(self.asked)}"} if self.names else {}
        return named | {
            "object": "list",
            "data": data[:: -1 if self.reverses else 1][self.drops :],
            "model": asked["model"] + "-001",
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }


async def _respond(send: Any, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"set-cookie", b"edge=1")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
