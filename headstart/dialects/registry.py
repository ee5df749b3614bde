"""All dialects, by their names, and the answers that two of them share.

A new dialect has its line here. Requests of two dialects may have one cache key
(``KeyForm.shared``). The answer to one of them then serves the other one, if that loses nothing: it
is text, and says nothing beside it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from headstart.dialects.anthropic_messages import ANTHROPIC_MESSAGES
from headstart.dialects.bedrock_converse import BEDROCK_CONVERSE
from headstart.dialects.cohere_chat import COHERE_CHAT
from headstart.dialects.gemini_generate import GEMINI_GENERATE
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.dialects.openai_completions import OPENAI_COMPLETIONS
from headstart.dialects.openai_responses import OPENAI_RESPONSES
from headstart.types import Choice, Completion, Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headstart.dialects.dialect import Dialect, UpstreamDialect
    from headstart.dialects.request_form import RequestForm
    from headstart.settings import DialectName
    from headstart.types import ChatRequest, Entry, Headers


TRANSLATED = "translated:"
"""The beginning of the transform of an answer whose provider speaks another dialect."""
_ENDINGS = frozenset({"stop", "length"})
"""The reasons to finish that every dialect can say."""


def refuse_in_dialect(request: ChatRequest, entry: Entry) -> str | None:
    """Return why an entry cannot be told in the dialect of a request, or None."""
    answer, target = entry.answer, DIALECTS.get(request.dialect)
    if target is None or entry.dialect == target.name or not isinstance(answer, Completion):
        return None
    source = DIALECTS.get(entry.dialect)
    if source is None:  # it was stored when dialects shared no keys
        return None if target.key.shared is None else "other-api:unknown"
    lost = source.beside_text(answer)
    if any(name.startswith(TRANSLATED) for name in entry.transforms):
        lost = "translated"  # it may have lost something then
    if lost is None and answer.usage and source.tokens(answer.usage).reasoning:
        lost = "reasoning"  # only some dialects tell it
    if lost is None:
        lost = _beside_one_text(answer)
    return None if lost is None else f"other-api:{lost}"


def _beside_one_text(answer: Completion) -> str | None:
    if len(answer.choices) != 1:
        return "choices"
    choice = answer.choices[0]
    if choice.logprobs:
        return "logprobs"
    if choice.finish not in _ENDINGS or choice.native_finish not in (None, choice.finish):
        return "finish-reason"
    if any(choice.extra.values()) or any(choice.beside.values()):
        return "fields"
    return None if [*map(type, choice.parts)] == [Text] else "parts"


def in_dialect(entry: Entry, name: str) -> Completion:
    """Return the answer of an entry for clients of a dialect, if ``refuse_in_dialect`` allows it.

    Raises TypeError for a raw answer.
    """
    answer = entry.answer
    if not isinstance(answer, Completion):
        raise TypeError(f"entry {entry.id} holds a raw answer, which is sent as it is")
    if entry.dialect in ("", name):
        return answer
    source, target, choice = DIALECTS[entry.dialect], DIALECTS[name], answer.choices[0]
    usage = None if answer.usage is None else target.usage(source.tokens(answer.usage))
    plain = Choice(index=0, parts=choice.parts, finish=choice.finish)
    return replace(answer, choices=(plain,), usage=usage, fingerprint=None, extra={})


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
