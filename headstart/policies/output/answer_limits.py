"""Limits on answers: which answers may be limited, and the limits, learned by route and model."""

from __future__ import annotations

import math
import re
import zlib
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headstart.policies.routing.measures import Bins, Quantiles

if TYPE_CHECKING:
    from headstart.canonical_request import CanonicalRequest
    from headstart.settings import MaxOutput
    from headstart.types import Finished

MOST_CONTINUATIONS = 2
_NEARLY = 0.9
"""An answer that our limit cut has at least this share of it: providers count differently."""
_FIELDS = ("prediction", "web_search_options", "modalities", "audio")
"""Request fields whose answer is more than text, or that providers refuse together with a limit."""
_LOOKED_AT = 2000
"""Number of characters at the end of an answer that are searched for repetitions."""
_LOOPING = 0.12
"""Deflate makes a text that repeats itself smaller than this share; prose keeps half of its size,
a table a quarter."""
_LOOPING_SHARE = 0.25
"""Share of the limit that an answer which repeats itself gets for its end."""
_CONTEXT = re.compile(rb"context[ _](?:length|window)", re.IGNORECASE)
_LIMIT_REFUSED = re.compile(
    rb"max_\w*tokens|maxOutputTokens|context[ _]length|context window", re.IGNORECASE
)


def refuse_limit(asked: CanonicalRequest) -> str | None:
    """Return the reason why an answer must not be limited, or None.

    A limit of the client is not changed. Only plain text can be continued, so nothing else gets a
    limit: no arguments of tools, no JSON, no second choice.
    """
    if asked.max_tokens is not None:
        return "client-limit"
    if asked.choices != 1 or asked.logprobs:
        return "choices"
    if asked.tools:
        return "tools"
    if not asked.wants_text:
        return "format"
    if not asked.messages or asked.messages[-1].role != "user":
        return "no-question"
    return next((name for name in _FIELDS if asked.extra.get(name)), None)


def cut_by(limit: int, finish: Finished | None, tokens: int | None) -> bool:
    """Tell whether our limit ended an answer. ``tokens`` is its length, where it was reported.

    The model or the size of its context may have ended the answer before.
    """
    if finish is None or finish.reason != "length" or "context" in (finish.native or ""):
        return False
    return tokens is None or tokens >= _NEARLY * limit


def next_limit(continuation: int, limit: int, last: int | None, text: str) -> int | None:
    """Return the limit of a continuation of ``text``; the first is number 1. None: no limit.

    The last continuation gets far more (``last``, as ``Lengths.last_limit`` returns it), since a
    long answer has to end well. An answer that repeats itself gets few more tokens: limits are
    there to stop it.
    """
    if not text:
        return None
    if loops(text):
        return max(1, round(_LOOPING_SHARE * limit))
    if continuation < MOST_CONTINUATIONS:
        return limit
    return None if last is None else max(limit, last)


def loops(text: str) -> bool:
    """Tell whether a text repeats itself over and over at its end."""
    end = text[-_LOOKED_AT:].encode("utf-8", "surrogatepass")
    return len(text) >= _LOOKED_AT and len(zlib.compress(end, 6)) < _LOOPING * len(end)


def mentions_context(body: bytes) -> bool:
    """Tell whether an error answer names the context, which was too small for this very prompt."""
    return _CONTEXT.search(body) is not None


def refuses_limits(status: int, body: bytes) -> bool:
    """Tell whether an error answer objects to the limit, not to the request."""
    return status in (400, 422) and _LIMIT_REFUSED.search(body) is not None


FORMAT = 1
ENOUGH = 500
"""Number of answers that it takes to draw a limit from them: five lie beyond their p99."""
GUARD_SHARE = 0.99
GUARD_FACTOR = 1.5
TIGHT_SHARE = 0.95
LAST_FACTOR = 8
"""The last continuation of an answer ends at so many times the p99."""
LEAST_LIMIT = 64
"""A shorter limit saves nothing."""
_HALF_LIFE = 5000.0
"""Number of answers after which an old one counts half."""
_TOKENS = 1e-3
"""Scale of tokens: ``Quantiles`` reaches from 0.001 to 600, here from one token to 600,000."""
_MOST_KEYS = 256


class LengthKey(NamedTuple):
    """The answers of one model on one route."""

    route: str
    model: str


class _SavedLengths(msgspec.Struct, array_like=True):
    key: LengthKey
    seen: int
    bins: Bins


class _LengthsSnapshot(msgspec.Struct):
    format: int
    lengths: list[_SavedLengths]


class _LearnedLengths:
    __slots__ = ("lengths", "refused", "seen")

    def __init__(self) -> None:
        self.lengths = Quantiles(_HALF_LIFE)
        self.seen = 0
        self.refused = False


class Lengths:
    """Lengths of answers in tokens, reasoning included. Keys that are long unused are forgotten."""

    def __init__(self) -> None:
        self._learned: OrderedDict[LengthKey, _LearnedLengths] = OrderedDict()

    def add(self, key: LengthKey, tokens: int) -> None:
        """Learn the length of an answer that came to its own end; no limit cut it."""
        learned = self._of(key)
        learned.seen += 1
        learned.lengths.add(tokens * _TOKENS, learned.seen)

    def refuse(self, key: LengthKey) -> None:
        """Give these answers no limit until the next start: an upstream refused one."""
        self._of(key).refused = True

    def limit(self, key: LengthKey, budget: MaxOutput) -> int | None:
        """Return the limit of an answer; None: no limit, or too few answers are known."""
        learned = self._learned.get(key)
        if learned is not None and learned.refused:
            return None
        if isinstance(budget, int):
            return budget
        if budget == "off" or learned is None or learned.seen < ENOUGH:
            return None
        share, factor = (TIGHT_SHARE, 1.0) if budget == "tight" else (GUARD_SHARE, GUARD_FACTOR)
        length = learned.lengths.quantile(share) or 0.0
        return max(LEAST_LIMIT, math.ceil(factor * length / _TOKENS))

    def last_limit(self, key: LengthKey) -> int | None:
        """Return the length that only answers without end exceed; None: too few are known."""
        learned = self._learned.get(key)
        if learned is None or learned.seen < ENOUGH:
            return None
        length = learned.lengths.quantile(GUARD_SHARE) or 0.0
        return max(LEAST_LIMIT, math.ceil(LAST_FACTOR * length / _TOKENS))

    def saved(self) -> bytes:
        """Return a snapshot of the lengths."""
        rows = [
            _SavedLengths(key, each.seen, each.lengths.saved(each.seen))
            for key, each in self._learned.items()
            if each.seen
        ]
        return msgspec.msgpack.encode(_LengthsSnapshot(FORMAT, rows))

    def load(self, data: bytes) -> bool:
        """Restore a snapshot; return False if it has another version."""
        try:
            snapshot = msgspec.msgpack.decode(data, type=_LengthsSnapshot)
            learned = {each.key: _restored(each) for each in snapshot.lengths}
        except (msgspec.DecodeError, ValueError):  # such as another layout
            return False
        if snapshot.format != FORMAT:
            return False
        self._learned.update(learned)
        return True

    def _of(self, key: LengthKey) -> _LearnedLengths:
        learned = self._learned.get(key)
        if learned is None:
            learned = self._learned[key] = _LearnedLengths()
            if len(self._learned) > _MOST_KEYS:
                self._learned.popitem(last=False)
        else:
            self._learned.move_to_end(key)
        return learned


def _restored(saved: _SavedLengths) -> _LearnedLengths:
    learned = _LearnedLengths()
    learned.seen = saved.seen
    learned.lengths.load(saved.bins, saved.seen)
    return learned
