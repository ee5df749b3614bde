"""Which answers may be limited, and what became of those that were. Pure."""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headstart.canonical_request import CanonicalRequest
    from headstart.types import Finished

MOST_CONTINUATIONS = 2
_NEARLY = 0.9
"""Share of our limit that an answer cut by it has at least; providers count in their own ways."""
_FIELDS = ("prediction", "web_search_options", "modalities", "audio")
"""Fields of requests whose answer is more than text, or that providers take without a limit."""
_LOOKED_AT = 2000
"""Characters of an answer's end."""
_LOOPING = 0.12
"""What deflate leaves of a text that repeats itself; of prose half, of a table a quarter."""
_LOOPING_SHARE = 0.25
"""Share of the limit that an answer gets to leave its circles."""
_CONTEXT = re.compile(rb"context[ _](?:length|window)", re.IGNORECASE)
_LIMIT_REFUSED = re.compile(
    rb"max_\w*tokens|maxOutputTokens|context[ _]length|context window", re.IGNORECASE
)


def refuse_limit(asked: CanonicalRequest) -> str | None:
    """Return why an answer must not be limited, or None.

    A limit that the client named stands. Only plain text can be continued, so nothing else is
    ever cut: no tool's arguments, no JSON, no second choice.
    """
    if asked.max_tokens is not None:
        return "client-limit"
    if asked.choices != 1 or asked.logprobs:
        return "choices"
    if asked.tools:
        return "tools"
    if asked.response_format is not None and asked.response_format.kind != "text":
        return "format"
    if not asked.messages or asked.messages[-1].role != "user":
        return "no-question"
    return next((name for name in _FIELDS if asked.extra.get(name)), None)


def cut_by(limit: int, finish: Finished | None, tokens: int | None) -> bool:
    """Was it our limit that ended an answer? ``tokens``: its length, as reported.

    An answer that a model or its context ended before is none of ours.
    """
    if finish is None or finish.reason != "length" or "context" in (finish.native or ""):
        return False
    return tokens is None or tokens >= _NEARLY * limit


def next_limit(continuation: int, limit: int, said: str) -> int | None:
    """Return the limit of an answer's continuation, the first being 1; None: it has none.

    The last one is free, since a long answer has to end well. One that runs in circles gets little
    more: that is what limits are there to stop.
    """
    if not said:
        return None
    if loops(said):
        return max(1, round(_LOOPING_SHARE * limit))
    return limit if continuation < MOST_CONTINUATIONS else None


def loops(text: str) -> bool:
    """Does a text repeat itself over and over at its end?"""
    end = text[-_LOOKED_AT:].encode("utf-8", "surrogatepass")
    return len(text) >= _LOOKED_AT and len(zlib.compress(end, 6)) < _LOOPING * len(end)


def speaks_of_context(body: bytes) -> bool:
    """Does an error answer speak of the context? Then it was too small for this very prompt."""
    return _CONTEXT.search(body) is not None


def refuses_limits(status: int, body: bytes) -> bool:
    """Does an error answer object to the limit, not to the request?"""
    return status in (400, 422) and _LIMIT_REFUSED.search(body) is not None
