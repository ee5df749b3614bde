"""Simulated embeddings: unit vectors that are a pure function of each text and mean nothing."""

from __future__ import annotations

import base64
from array import array
from hashlib import shake_256

import msgspec

from headstart.types import Frozen


class EmbeddingsBody(Frozen):
    """A decoded ``POST /v1/embeddings`` body."""

    model: str
    input: str | tuple[str, ...]
    encoding_format: str = "float"
    dimensions: int = 256


_embeddings_decoder = msgspec.json.Decoder(EmbeddingsBody)


def decode_embeddings(body: bytes) -> EmbeddingsBody:
    """Decode a request for embeddings. Raises msgspec.DecodeError."""
    return _embeddings_decoder.decode(body)


def render_embeddings(wanted: EmbeddingsBody) -> bytes:
    """Return unit vectors that are a pure function of each text and mean nothing."""
    texts = (wanted.input,) if isinstance(wanted.input, str) else wanted.input
    tokens = sum(-(-len(text) // 4) for text in texts)
    return msgspec.json.encode(
        {
            "object": "list",
            "data": [
                {"object": "embedding", "index": place, "embedding": _embed(text, wanted)}
                for place, text in enumerate(texts)
            ],
            "model": wanted.model,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
    )


def _embed(text: str, wanted: EmbeddingsBody) -> list[float] | str:
    raw = array("h", shake_256(text.encode()).digest(2 * wanted.dimensions))
    norm = sum(value * value for value in raw) ** 0.5 or 1.0
    vector = array("f", (value / norm for value in raw))
    if wanted.encoding_format == "base64":
        return base64.b64encode(vector.tobytes()).decode()
    return vector.tolist()
