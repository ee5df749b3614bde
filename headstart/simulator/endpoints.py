"""Which dialect a path speaks, and the endpoints that are no chats."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headstart.simulator.anthropic_messages import AnthropicMessages
from headstart.simulator.cohere import CohereChat
from headstart.simulator.gemini import Gemini
from headstart.simulator.gemini_request import GENERATES
from headstart.simulator.openai_chat import OpenAIChat, render_model, render_models
from headstart.simulator.short_replies import json_reply, unknown_url
from headstart.simulator.vectors import decode_embeddings, render_embeddings

if TYPE_CHECKING:
    from headstart.simulator.incoming import Incoming
    from headstart.simulator.reply import Reply
    from headstart.simulator.wire import Wire

OPENAI: Wire = OpenAIChat()
GEMINI: Wire = Gemini()
CHATS: dict[bytes, Wire] = {
    b"/v1/chat/completions": OPENAI,
    b"/v1/messages": AnthropicMessages(),
    b"/v2/chat": CohereChat(),
}
"""Dialects by path; Gemini's paths have the model in them."""

_MODELS_CREATED = 1_700_000_000


def chat_wire(incoming: Incoming) -> Wire | None:
    """Return the dialect in which a request asks for a chat, or None when it does not."""
    if incoming.method != "POST":
        return None
    if GENERATES.fullmatch(incoming.path):
        return GEMINI
    return CHATS.get(incoming.path)


def answer_other(incoming: Incoming, model: str) -> tuple[str, Reply]:
    """Return the endpoint's name for the books and its reply. Raises msgspec.DecodeError."""
    if incoming.path.startswith(b"/v1/echo"):
        return "echo", _echo(incoming)
    match incoming.method, incoming.path:
        case "POST", b"/v1/embeddings":
            body = render_embeddings(decode_embeddings(incoming.body))
            return "embeddings", json_reply(200, body)
        case "GET", b"/v1/models":
            return "models", json_reply(200, render_models([model], _MODELS_CREATED))
        case "GET", path if path == b"/v1/models/" + model.encode():
            return "models", json_reply(200, render_model(model, _MODELS_CREATED))
    return "unknown", unknown_url(OPENAI, incoming.method, incoming.path)


def _echo(incoming: Incoming) -> Reply:
    """Return the request as JSON; bytes are written as Latin-1, so nothing is lost."""
    echoed = {
        "method": incoming.method,
        "path": incoming.path.decode("latin-1"),
        "query": incoming.query.decode("latin-1"),
        "headers": [[k.decode("latin-1"), v.decode("latin-1")] for k, v in incoming.headers],
        "body": incoming.body.decode("latin-1"),
    }
    return json_reply(200, msgspec.json.encode(echoed))
