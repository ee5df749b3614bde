"""A cache for LangChain: ``set_llm_cache(HeadstartCache())``.

LangChain looks up and stores in two calls. Here both are the same chat request to a small app
behind the middleware: the first one with ``only-if-cached``, the second one to an app that answers
with the text from LangChain's model. So hits are decided in the usual way, with guards and the
learned rule.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Unpack
from uuid import uuid4

import msgspec

from headstart.clients import LocalServer
from headstart.errors import MissingExtra
from headstart.mount import CacheOptions, HeadstartMiddleware
from headstart.types import Latest, Receive, Scope, Send

try:
    from langchain_core.caches import BaseCache
    from langchain_core.messages import AIMessage, convert_to_openai_messages, messages_from_dict
    from langchain_core.outputs import ChatGeneration, Generation
except ImportError as error:
    raise MissingExtra("langchain", "HeadstartCache") from error

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from langchain_core.messages import BaseMessage

    from headstart.settings import Settings

_ANSWER = "x-langchain-answer"
"""The header that names the answer that is to be stored."""
MOST_ANSWERS = 64
"""Most answers on their way to the store."""
TIMEOUT_S = 30.0
"""Longest wait for the server in this process."""


class HeadstartCache(BaseCache):
    """Answers repeated and reworded prompts of LangChain's models.

    ``settings`` and ``cache`` are those of ``HeadstartMiddleware``; answers are kept in memory
    unless they name a store. Only single answers of plain text are kept. ``close`` stops its
    thread; so does the end of the program.
    """

    def __init__(
        self, settings: Settings | Path | str | None = None, **cache: Unpack[CacheOptions]
    ) -> None:
        self._settings = settings
        self._cache: CacheOptions = {**cache, "ignore_headers": [_ANSWER]}
        self._answers: Latest[str, str] = Latest(MOST_ANSWERS)
        """Answers on their way to the store."""
        self._server = self._open()

    def lookup(self, prompt: str, llm_string: str) -> list[Generation] | None:
        """Return the answer to an equal or reworded prompt of a model, or None."""
        body = self._ask(_request(prompt, llm_string), {"cache-control": "only-if-cached"})
        if body is None:
            return None
        text = str(msgspec.json.decode(body)["choices"][0]["message"]["content"])
        if _messages(prompt) is None:
            return [Generation(text=text)]
        return [ChatGeneration(message=AIMessage(content=text))]

    def update(self, prompt: str, llm_string: str, return_val: Sequence[Generation]) -> None:
        """Keep the answer of a model."""
        text = _text_of(return_val)
        if text is None:
            return
        id = uuid4().hex
        self._answers[id] = text
        body = _request(prompt, llm_string)
        self._ask(body, {_ANSWER: id})
        # A hit did not take the answer: the new answer replaces the entry.
        if self._answers.pop(id, None) is not None:
            self._answers[id] = text
            self._ask(body, {_ANSWER: id, "cache-control": "no-cache"})
            self._answers.pop(id, None)

    def clear(self, **kwargs: Any) -> None:  # noqa: ARG002 - LangChain's signature
        """Forget the answers in memory."""
        self._server.close()
        self._server = self._open()

    def close(self) -> None:
        """Stop the server and its thread. Answers in memory are lost."""
        self._server.close()

    def _open(self) -> LocalServer:
        app = HeadstartMiddleware(
            self._answer, self._settings, scope=lambda _: "langchain", **self._cache
        )
        return LocalServer(app)

    def _ask(self, body: bytes, headers: dict[str, str]) -> bytes | None:
        """Return the answer to a chat request; None without an answer, for any reason."""
        url = f"{self._server.url}/v1/chat/completions"
        headers = {"content-type": "application/json", **headers}
        request = urllib.request.Request(url, body, headers)  # noqa: S310 - our own server
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:  # noqa: S310
                found: bytes = reply.read()
                return found
        except urllib.error.HTTPError as error:  # 504 is a miss
            error.close()
        except OSError:
            pass
        return None

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request with the text that ``update`` got."""
        if scope["type"] == "lifespan":
            return await _lifespan(receive, send)
        named = dict(scope["headers"]).get(_ANSWER.encode(), b"").decode()
        text = self._answers.pop(named, None)
        status = 404 if text is None else 200
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        body = msgspec.json.encode(
            {"id": "langchain", "object": "chat.completion", "created": 0, "model": "langchain",
             "choices": [choice]}
        )  # fmt: skip
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class _WrittenMessage(msgspec.Struct):
    """A message as LangChain writes it into the prompt of a cache."""

    kwargs: dict[str, Any]


def _messages(prompt: str) -> list[BaseMessage] | None:
    """Return the messages of a chat model's prompt; None for prompts of other models."""
    try:
        kept = [each.kwargs for each in msgspec.json.decode(prompt, type=list[_WrittenMessage])]
        return messages_from_dict([{"type": each["type"], "data": each} for each in kept])
    except (msgspec.DecodeError, KeyError, ValueError):
        return None


def _request(prompt: str, llm_string: str) -> bytes:
    """Return a chat request with the prompt.

    Its model name identifies the model and all parameters.
    """
    messages = _messages(prompt)
    said = [{"role": "user", "content": prompt}]
    if messages:
        said = convert_to_openai_messages(messages)
    model = sha256(llm_string.encode()).hexdigest()
    return msgspec.json.encode({"model": model, "messages": said})


def _text_of(answers: Sequence[Generation]) -> str | None:
    """Return the text of a single answer; None if it is more than text."""
    if len(answers) != 1:
        return None
    answer = answers[0]
    message = answer.message if isinstance(answer, ChatGeneration) else None
    if isinstance(message, AIMessage) and (message.tool_calls or message.invalid_tool_calls):
        return None
    if message is not None and not isinstance(message.content, str):
        return None
    return str(answer.text) or None


async def _lifespan(receive: Receive, send: Send) -> None:
    for phase in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{phase}.complete"})
