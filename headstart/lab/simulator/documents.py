"""The simulated calls that are no chat: embeddings, rerank and moderations."""

from __future__ import annotations

import base64
import re
from array import array
from hashlib import shake_256
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Callable

_WORD = re.compile(r"\w+")
_CHARACTERS = 4
"""The number of characters of a simulated prompt token."""
_HARMFUL = {
    "violence": frozenset(("attack", "hurt", "kill", "murder", "stab")),
    "self-harm": frozenset(("suicide",)),
    "harassment": frozenset(("idiot", "moron", "stupid")),
}


class AnsweredDocument(NamedTuple):
    endpoint: str
    model: str
    prompt_tokens: int
    body: bytes


class EmbeddingsBody(Frozen):
    """A decoded ``POST /v1/embeddings`` body."""

    model: str
    input: str | tuple[str | int | tuple[int, ...], ...]
    encoding_format: str = "float"
    dimensions: int = 256


class ModerationsBody(Frozen):
    """A decoded ``POST /v1/moderations`` body."""

    input: str | tuple[str | dict[str, Any], ...]
    model: str = "omni-moderation-latest"


class RerankBody(Frozen):
    """A decoded body of ``POST /v1/rerank`` or ``/v2/rerank``."""

    query: str
    documents: tuple[str | dict[str, Any], ...]
    model: str = ""
    top_n: int | None = None
    return_documents: bool = False


def answer_document(path: bytes, body: bytes, id: str) -> AnsweredDocument | None:
    """Return the answer of such a path; None for any other. Raises msgspec.DecodeError."""
    answer = _PATHS.get(path)
    return None if answer is None else answer(body, id)


def _embeddings(body: bytes, id: str) -> AnsweredDocument:  # noqa: ARG001 - has none
    """Return unit vectors without meaning. The vector of an item depends on the item alone."""
    wanted = msgspec.json.decode(body, type=EmbeddingsBody)
    items = _items(wanted.input)
    tokens = sum(len(item) if isinstance(item, tuple) else _tokens(item) for item in items)
    answer = {
        "object": "list",
        "data": [
            {"object": "embedding", "index": place, "embedding": _embed(item, wanted)}
            for place, item in enumerate(items)
        ],
        "model": wanted.model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    return AnsweredDocument("embeddings", wanted.model, tokens, msgspec.json.encode(answer))


def _items(given: str | tuple[Any, ...]) -> tuple[str | tuple[int, ...], ...]:
    """Return the items of an input: one for a text or for a flat list of tokens."""
    if isinstance(given, str):
        return (given,)
    if given and all(isinstance(each, int) for each in given):
        return (given,)
    if not given or any(isinstance(each, int) for each in given):
        raise msgspec.ValidationError("'$.input' is invalid.")
    return given


def _embed(item: str | tuple[int, ...], wanted: EmbeddingsBody) -> list[float] | str:
    text = item if isinstance(item, str) else repr(item)
    raw = array("h", shake_256(text.encode()).digest(2 * wanted.dimensions))
    norm = sum(value * value for value in raw) ** 0.5 or 1.0
    vector = array("f", (value / norm for value in raw))
    if wanted.encoding_format == "base64":
        return base64.b64encode(vector.tobytes()).decode()
    return vector.tolist()


def _moderations(body: bytes, id: str) -> AnsweredDocument:
    """Flag texts with a word of the list; each category's score is 0.99 then, else 0.01."""
    wanted = msgspec.json.decode(body, type=ModerationsBody)
    inputs = (wanted.input,) if isinstance(wanted.input, str) else wanted.input
    texts = [each if isinstance(each, str) else str(each.get("text", "")) for each in inputs]
    answer = {
        "id": "modr-" + id,
        "model": wanted.model,
        "results": [_judge(_words(text)) for text in texts],
    }
    return AnsweredDocument("moderations", wanted.model, 0, msgspec.json.encode(answer))


def _judge(words: frozenset[str]) -> dict[str, Any]:
    found = {name: not words.isdisjoint(listed) for name, listed in _HARMFUL.items()}
    return {
        "flagged": any(found.values()),
        "categories": found,
        "category_scores": {name: 0.99 if is_found else 0.01 for name, is_found in found.items()},
    }


def _rerank(body: bytes, id: str) -> AnsweredDocument:
    """Order documents by the share of the query's words that they have."""
    wanted = msgspec.json.decode(body, type=RerankBody)
    asked = _words(wanted.query)
    texts = [
        each if isinstance(each, str) else str(each.get("text", "")) for each in wanted.documents
    ]
    scores = [len(asked & _words(text)) / max(1, len(asked)) for text in texts]
    order = sorted(range(len(texts)), key=lambda place: -scores[place])[: wanted.top_n]
    results = [
        {"index": place, "relevance_score": scores[place]}
        | ({"document": {"text": texts[place]}} if wanted.return_documents else {})
        for place in order
    ]
    tokens = sum(map(_tokens, (wanted.query, *texts)))
    answer = {
        "id": id,
        "model": wanted.model,
        "results": results,
        "meta": {"billed_units": {"search_units": 1}},
        "usage": {"total_tokens": tokens},
    }
    return AnsweredDocument("rerank", wanted.model, tokens, msgspec.json.encode(answer))


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.lower()))


def _tokens(text: str) -> int:
    return -(-len(text) // _CHARACTERS)


_PATHS: dict[bytes, Callable[[bytes, str], AnsweredDocument]] = {
    b"/v1/embeddings": _embeddings,
    b"/v1/moderations": _moderations,
    b"/v1/rerank": _rerank,
    b"/v2/rerank": _rerank,
}
