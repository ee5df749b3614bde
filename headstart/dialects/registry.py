"""All dialects, by their names. A new dialect has its line here."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from headstart.dialects.anthropic_messages import ANTHROPIC_MESSAGES
from headstart.dialects.bedrock_converse import BEDROCK_CONVERSE
from headstart.dialects.cohere_chat import COHERE_CHAT
from headstart.dialects.gemini_generate import GEMINI_GENERATE
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.dialects.openai_completions import OPENAI_COMPLETIONS
from headstart.dialects.openai_responses import OPENAI_RESPONSES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headstart.dialects.dialect import Dialect, UpstreamDialect
    from headstart.dialects.request_form import RequestForm
    from headstart.settings import DialectName
    from headstart.types import ChatRequest, Headers

_CLIENTS = (
    OPENAI_CHAT,
    OPENAI_RESPONSES,
    ANTHROPIC_MESSAGES,
    GEMINI_GENERATE,
    OPENAI_COMPLETIONS,
)

DIALECTS: Mapping[str, Dialect] = {each.name: each for each in _CLIENTS}
"""The dialects that clients may speak, by name."""

_UPSTREAMS = (COHERE_CHAT, BEDROCK_CONVERSE)

UPSTREAM_DIALECTS: Mapping[str, UpstreamDialect] = {
    **DIALECTS,
    **{each.name: each for each in _UPSTREAMS},
}
"""The dialects that upstreams may speak, by name."""

KEY_HEADERS = tuple(
    dict.fromkeys((*(each.key_header[0] for each in UPSTREAM_DIALECTS.values()), b"api-key"))
)
"""Headers in which the providers' own client libraries send a key, with Azure's."""

ACCOUNT_HEADERS = frozenset[bytes]().union(
    *(each.account_headers for each in UPSTREAM_DIALECTS.values())
)
"""Headers that name whom to bill for a caller's key."""

PROTOCOL_HEADERS = frozenset[bytes]().union(*(each.key.headers for each in _CLIENTS))
"""Headers that change the meaning of the same body."""

RELAYED_PREFIXES = tuple(dict.fromkeys(each.prefix for each in _CLIENTS))
"""The beginnings of the paths that go to providers."""

SOCKET_PREFIXES = (
    *RELAYED_PREFIXES,
    *(each.socket_prefix for each in _CLIENTS if each.socket_prefix is not None),
)
"""The beginnings of the paths of WebSockets that go to providers."""

TEXT_FIELDS = frozenset[str]().union(*(each.text_fields for each in UPSTREAM_DIALECTS.values()))
"""Names of the fields under which streams send text or reasoning."""

BY_SETTING: Mapping[str, UpstreamDialect] = {
    each.setting: each for each in UPSTREAM_DIALECTS.values()
}
"""The dialects that upstreams may speak, by the setting ``upstream.dialect``."""


def spoken_dialects(
    main: DialectName, further: Iterable[DialectName]
) -> tuple[UpstreamDialect, ...]:
    """Return the dialects whose requests an upstream gets untranslated, its main one first."""
    named = (main, *further, *BY_SETTING[main].includes)
    return tuple(BY_SETTING[each] for each in dict.fromkeys(named))


def form_of(request: ChatRequest) -> RequestForm:
    """Return the form of a request; one in no dialect is read as one of OpenAI's."""
    return DIALECTS.get(request.dialect, OPENAI_CHAT).form


def claiming(path: bytes, headers: Headers) -> Dialect:
    """Return the dialect of a request that is only relayed. Only the first takes any path."""
    return next(each for each in reversed(_CLIENTS) if each.claims(path, headers))


def with_retry_after(headers: Headers, body: bytes) -> Headers:
    """Return an error's headers with the wait that some providers name in its body alone."""
    if any(name == b"retry-after" for name, _ in headers):
        return headers
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return headers
    for dialect in UPSTREAM_DIALECTS.values():
        delay_s = dialect.retry_delay_s and dialect.retry_delay_s(document)
        if delay_s is not None:
            return (*headers, (b"retry-after", b"%d" % math.ceil(delay_s)))
    return headers
