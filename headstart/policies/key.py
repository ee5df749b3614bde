"""Cache keys: who may share an answer, and which answers are comparable.

A key is SHA-256 over canonical JSON of the client's original request. ``docs/cache-key.md``
tells the rules and their reasons; ``fields.py`` holds the table of body fields.
"""

from __future__ import annotations

import hmac
from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec

from headstart.policies.canonical import CANONICAL, canonical_messages
from headstart.policies.canonical_gemini import gemini_body, gemini_messages, gemini_target
from headstart.policies.conversations import split_conversation
from headstart.policies.fields import DIALECTS, STRING_IS_ONE_TEXT, Use
from headstart.policies.questions import cut
from headstart.types import CacheKey, Frozen, Headers

if TYPE_CHECKING:
    from collections.abc import Collection

    from headstart.policies.questions import Question
    from headstart.types import ChatRequest, Turn

_FORMAT = 1
"""Raise it whenever the same request would get a different key; old entries then never match."""

PROTOCOL_HEADERS = frozenset(
    {
        b"anthropic-version",
        b"anthropic-beta",
        b"anthropic-user-profile-id",
        b"anthropic-workspace-id",
        b"openai-organization",
        b"openai-project",
        b"x-goog-fieldmask",
    }
)
"""Headers that change what the same body means."""

_encode = msgspec.json.Encoder(order="sorted").encode


class KeyContext(Frozen, frozen=True, kw_only=True):
    """What a key binds beside the body: where the request goes and how it is read there."""

    dialect: str
    path: bytes
    upstream: str
    """Identity of the upstream or the wrapped app that would answer."""
    query_string: bytes = b""
    headers: Headers = ()
    """Headers that change the answer, as ``keyed_headers`` picks them."""
    wrapped_app: bool = False
    """The answer comes from the user's own app, which may read ``metadata``: it is keyed."""


def scope_of(
    secret: bytes,
    *,
    credential: bytes | None,
    subdivision: str | None = None,
    user: str | None = None,
) -> str:
    """Return who may share answers, as a hex digest that does not reveal the credential.

    ``secret`` belongs to the store, so scopes of two stores never compare. ``subdivision``
    (``x-headstart-scope``) and ``user`` only ever narrow the scope.
    """
    material = _encode((_FORMAT, credential, subdivision, user))
    return hmac.digest(secret, material, "sha256").hex()


def keyed_headers(headers: Headers, configured: Collection[bytes] = ()) -> Headers:
    """Return the headers that belong in a key, sorted by name. ``configured`` is lower case."""
    return tuple(
        sorted(
            (pair for pair in headers if pair[0] in PROTOCOL_HEADERS or pair[0] in configured),
            key=lambda pair: pair[0],
        )
    )


def chat_key(
    request: ChatRequest,
    *,
    scope: str,
    context: KeyContext,
    question: Question | None = None,
    semantic: bool = True,
) -> CacheKey:
    """Return the key of a chat request.

    ``partition`` binds everything except the last user text, or except the ``question`` in it,
    and ``exact`` binds that too. Without ``request.query`` both bind the whole request. Unless
    ``semantic``, only equal conversations share answers and none is split for comparison. Raises
    nothing on odd shapes: what it does not understand is keyed as it came.
    """
    query_string = _without_credential(context.query_string)
    if query_string is not context.query_string:
        context = msgspec.structs.replace(context, query_string=query_string)
    omitted = _omitted(context.dialect, wrapped_app=context.wrapped_app)
    body = {name: value for name, value in request.document.items() if name not in omitted}
    if context.dialect == "gemini-generate":
        path, query_string = gemini_target(context.path, context.query_string)
        context = msgspec.structs.replace(context, path=path, query_string=query_string)
        settings = gemini_body(body)
        messages = settings.pop("contents", None)
        body = {"settings": settings}
    else:
        for name, canonical in CANONICAL.items():
            if name in body:
                body[name] = canonical(body[name])
        messages = body.get("messages")
    asked: Any = None
    alike: dict[str, Any] | None = None
    history: tuple[Turn, ...] = ()
    if isinstance(messages, list) and messages:
        messages = _canonical(messages, context.dialect)
        if request.query is not None:
            talk = split_conversation(messages) if semantic and question is None else None
            messages[-1], asked = _without_text(messages[-1])
            if talk is not None:
                history = talk.history
                alike = {**body, "messages": [*talk.fixed, "...", messages[-1]]}
        body["messages"] = messages
    key = _key(scope, context, body, asked, request.query, question)
    if alike is None:
        return key
    conversation = _key(scope, context, alike, asked, request.query, question).partition
    return msgspec.structs.replace(key, conversation=conversation, history=history)


def raw_key(
    document: object,
    *,
    query: str | None,
    scope: str,
    context: KeyContext,
    question: Question | None = None,
) -> CacheKey:
    """Return the key of a custom endpoint's request.

    ``document`` is the decoded body without its prompt when ``query`` holds that prompt, else the
    whole body; of the prompt, ``question`` alone is compared by meaning if given. No field is
    left out, nor any part of the query: only the endpoint's owner knows what they mean.
    """
    return _key(scope, context, document, query, query, question)


def variant(key: CacheKey, number: int) -> CacheKey:
    """Return the key of one of several stored variants of a sampled answer.

    The partition differs too, so an unfilled variant is not answered by another one's entry.
    """
    suffix = f"#{number}"
    conversation = key.conversation
    return msgspec.structs.replace(
        key,
        partition=_digest(key.partition + suffix),
        exact=_digest(key.exact + suffix),
        conversation=None if conversation is None else _digest(conversation + suffix),
    )


def _key(
    scope: str,
    context: KeyContext,
    body: object,
    asked: Any,
    query: str | None,
    question: Question | None,
) -> CacheKey:
    """Key ``body`` and the last user text ``asked``, in parts as it came or in one as ``query``."""
    material: tuple[object, ...] = (
        _FORMAT,
        scope,
        context.dialect,
        context.path,
        context.query_string,
        context.upstream,
        context.headers,
        query is None,
        body,
    )
    if question is not None and query is not None:
        material = (*material, cut(asked, question))
        asked = query = question.text
    partition = sha256(_encode(material)).hexdigest()
    exact = sha256(partition.encode() + _encode(asked)).hexdigest()
    return CacheKey(scope=scope, partition=partition, exact=exact, query=query)


def _canonical(messages: list[Any], dialect: str) -> list[Any]:
    if dialect == "gemini-generate":
        return gemini_messages(messages)
    return canonical_messages(messages, string_is_one_text=dialect in STRING_IS_ONE_TEXT)


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


@cache
def _omitted(dialect: str, *, wrapped_app: bool) -> frozenset[str]:
    fields = DIALECTS.get(dialect, {})
    omitted = frozenset(name for name, use in fields.items() if use is not Use.KEYED)
    return omitted - {"metadata"} if wrapped_app else omitted


def _without_text(message: object) -> tuple[object, object]:
    """Split a message of text alone into what remains and its text, else return it whole."""
    match message:
        case {"content": str(text), **rest}:
            return rest, text
        case {"content": list(parts), **rest} if all(isinstance(part, dict) for part in parts):
            skeleton = [{**part, "text": None} for part in parts]
            return {**rest, "content": skeleton}, [part.get("text") for part in parts]
        case _:
            return message, None


def _without_credential(query_string: bytes) -> bytes:
    """Drop ``key=``, Gemini's credential, which the scope already binds."""
    if b"key=" not in query_string:
        return query_string
    return b"&".join(pair for pair in query_string.split(b"&") if not pair.startswith(b"key="))
