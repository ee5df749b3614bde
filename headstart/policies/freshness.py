"""How long answers stay fresh, by the words of their questions and by Cache-Control (RFC 9111).

Questions: only English words are known. The patterns find what a reader would see at a glance.

Cache-Control: answers follow the rules for a shared cache. The owner has named each cached path, so
some rules are laxer or stricter here; ``docs/endpoints.md`` says which, and why.
``x-headstart-compress`` is read together with the directives of a request.
"""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headstart.errors import InvalidRequest
from headstart.settings import COMPRESSION_MODES, CompressionMode
from headstart.types import Frozen, Headers, read_vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


# --- lifetimes by question -----------------------------------------------------------------------

MOST_CHARACTERS = 600
"""Longest text that is read whole. Of a longer one only the two ends are read, where questions
usually are."""


class QuestionClass(StrEnum):
    """How fast the answer to a question ages."""

    LIVE = "live"
    """The answer ages within minutes: weather, prices, scores, opening hours now."""
    DATED = "dated"
    """The answer ages within hours or days: the latest of something, events of this week."""
    STABLE = "stable"


_STABLE = QuestionClass.STABLE

_APART = bytes(code if chr(code).isalnum() else ord(" ") for code in range(128)).ljust(256)
"""Replaces every ASCII character that is not a letter or digit by a space."""


class _Words(NamedTuple):
    """The words of a class of questions."""

    kind: QuestionClass
    signs: frozenset[bytes]
    """Without one of these words, ``pattern`` matches no text."""
    pattern: re.Pattern[str]


def _class_words(kind: QuestionClass, questions: str) -> _Words:
    """Read a list of questions, where each line is "signs: pattern"."""
    rows = [line.split(": ", 1) for line in questions.splitlines() if line]
    signs = " ".join(signs for signs, _ in rows)
    patterns = "|".join(pattern for _, pattern in rows)
    return _Words(
        kind, frozenset(signs.encode().split()), re.compile(rf"(?<!\w)(?:{patterns})(?!\w)")
    )


_VOCABULARY = read_vocabulary(__name__)
_TABLE = (
    _class_words(QuestionClass.LIVE, _VOCABULARY["live_questions"]),
    _class_words(QuestionClass.DATED, _VOCABULARY["dated_questions"]),
)
_SIGNS = _TABLE[0].signs | _TABLE[1].signs


def question_class(text: str) -> QuestionClass:
    """Return how fast the answer to a question ages, judged by its words."""
    if len(text) > MOST_CHARACTERS:
        half = MOST_CHARACTERS // 2
        text = f"{text[:half]}\n{text[-half:]}"
    # Case-sensitive patterns are twice as fast.
    text = text.replace("\u2019", "'").lower()
    # In other texts, signs outside ASCII may separate words, too.
    words = text.encode().translate(_APART).split() if text.isascii() else None
    if words is not None and _SIGNS.isdisjoint(words):
        return _STABLE
    for kind, signs, pattern in _TABLE:
        if (words is None or not signs.isdisjoint(words)) and pattern.search(text):
            return kind
    return _STABLE


class Lifetime(msgspec.Struct, frozen=True, gc=False):
    """The lifetime of the answer to one question."""

    kind: QuestionClass = QuestionClass.STABLE
    """How fast the answer ages."""
    seconds: float | None = None
    """The longest lifetime of an answer, whether it is stored now or was stored before.

    None: it never ends.
    """


FOREVER = Lifetime()


class Lifetimes(Frozen):
    """The lifetime of answers in seconds: of all answers, and of each ageing class."""

    ttl_s: float | None = None
    by_class: Mapping[QuestionClass, float] = {}

    def of(self, question: str, route_s: float | None = None, part: str = "") -> Lifetime:
        """Return the lifetime of the answer to a question. ``route_s`` replaces ``ttl_s``.

        ``part`` is the question in a long text, of which only the two ends are read.
        """
        kind = question_class(question)
        if part:
            kind = min(kind, question_class(part), key=list(QuestionClass).index)
        ttl_s = self.ttl_s if route_s is None else route_s
        class_s = self.by_class.get(kind)
        if ttl_s is None or class_s is None:
            return Lifetime(kind, class_s if ttl_s is None else ttl_s)
        return Lifetime(kind, min(ttl_s, class_s))


# --- directives of requests ----------------------------------------------------------------------

_COMPRESSED = "compressed:"
MOST_SECONDS = 2**31
"""A number of seconds that is too large counts as this (RFC 9111, section 1.2.2)."""
_DIGITS = len(str(MOST_SECONDS))


class Directives(Frozen):
    """The limits that a caller sets. The default sets none."""

    no_store: bool = False
    """Do not store the answer, and do not join the calls of others."""
    no_cache: bool = False
    """Do not answer from the cache; the fresh answer may be stored."""
    max_age_s: int | None = None
    """The age of the oldest stored answer that the caller accepts."""
    only_if_cached: bool = False
    """Answer from the cache or with 504, never from an upstream."""
    compress: CompressionMode | None = None
    """The strongest compression of the prompt that the caller accepts; None: as configured."""

    def refuses(self, transforms: Iterable[str]) -> bool:
        """Tell whether these transforms compressed the prompt more than the caller accepts."""
        if self.compress is None:
            return False
        allowed = COMPRESSION_MODES[: COMPRESSION_MODES.index(self.compress) + 1]
        done = [each for each in transforms if each.startswith(_COMPRESSED)]
        return any(each.removeprefix(_COMPRESSED) not in allowed for each in done)


_ALLOW_ALL = Directives()


def parse_directives(headers: Headers) -> Directives:
    """Read every ``cache-control`` header, and ``x-headstart-compress``.

    Unknown directives are ignored, unknown modes of compression raise InvalidRequest.

    An invalid ``max-age`` counts as 0, as RFC 9111 demands: a miss is better than an answer that is
    too old for the caller.
    """
    values = [value for name, value in headers if name == b"cache-control"]
    compress = requested_compression(headers)
    if not values:
        return _ALLOW_ALL if compress is None else Directives(compress=compress)
    found = dict(_split_directive(item) for item in b",".join(values).split(b","))
    return Directives(
        no_store=b"no-store" in found,
        no_cache=b"no-cache" in found,
        max_age_s=delta_seconds(found[b"max-age"]) if b"max-age" in found else None,
        only_if_cached=b"only-if-cached" in found,
        compress=compress,
    )


def requested_compression(headers: Headers) -> CompressionMode | None:
    """Return the mode that ``x-headstart-compress`` allows, if any. Raises InvalidRequest."""
    asked: CompressionMode | None = None
    for name, value in headers:
        if name == b"x-headstart-compress":
            mode = value.strip().lower().decode("latin-1")
            if mode not in COMPRESSION_MODES:
                known = ", ".join(COMPRESSION_MODES)
                raise InvalidRequest(f"x-headstart-compress: use one of {known}")
            asked = stricter(mode, asked)
    return asked


def stricter(mode: CompressionMode, other: CompressionMode | None) -> CompressionMode:
    """Return the mode that changes less."""
    return mode if other is None else min(mode, other, key=COMPRESSION_MODES.index)


def compressed_transform(mode: CompressionMode) -> str:
    """Return the transform that says by which mode a prompt was compressed."""
    return _COMPRESSED + mode


def _split_directive(item: bytes) -> tuple[bytes, bytes]:
    name, _, value = item.partition(b"=")
    return name.strip().lower(), value.strip().strip(b'"')


def delta_seconds(value: bytes) -> int:
    """Return the seconds; a number that is too large counts as ``MOST_SECONDS``."""
    if not value.isdigit():
        return 0
    digits = value.lstrip(b"0")
    return min(int(digits or b"0"), MOST_SECONDS) if len(digits) <= _DIGITS else MOST_SECONDS


# --- headers of answers --------------------------------------------------------------------------

_STORED_UNDATED = frozenset((200, 201, 203))
"""Statuses of whole answers, which are stored even if they do not say how long they are fresh."""
_NO_CONTENT = frozenset((204, 205))
_NEVER = frozenset((206, 226))
"""Statuses of a part of an answer (206), and of changes to an answer that the client has (226)."""
_REFUSING = frozenset((b"no-store", b"no-cache", b"private"))
_EVENTS = re.compile(rb"\s*text/event-stream", re.IGNORECASE)
_DIRECTIVE = re.compile(rb'([^\s,=;"]+)(?:\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]*)))?')


_LITELLM_KEY = b"x-litellm-cache-key"
"""A header that LiteLLM's proxy sends with hits alone."""
_OF_CACHES = frozenset((
    _LITELLM_KEY, b"cache-status", b"cf-aig-cache-status", b"helicone-cache", b"x-cache",
    b"x-litellm-cache-hit", b"x-portkey-cache-status",
))  # fmt: skip
"""Headers in which caches of HTTP (RFC 9211) and of LLM gateways tell where an answer came from."""
_HIT = re.compile(rb"(?:\b|_)(?:hit|true)\b", re.IGNORECASE)


def is_from_cache(headers: Headers) -> bool:
    """Tell whether an answer comes from a cache between Headstart and the model.

    Such an answer may belong to another prompt, and audits would compare it with itself.
    """
    for name, value in headers:  # a generator would take three times as long
        if name in _OF_CACHES and (name == _LITELLM_KEY or _HIT.search(value) is not None):
            return True
    return False


class StorageVerdict(msgspec.Struct, frozen=True, gc=False):
    """The reason why an answer must not be stored, or the seconds for which it is fresh."""

    refusal: str | None = None
    fresh_s: float | None = None
    """None: the answer does not say."""


def judge_response(
    status: int, headers: Headers, *, keyed: Callable[[bytes], bool], custom: bool, now: float
) -> StorageVerdict:
    """Judge an app's answer before its body has come.

    ``keyed`` tells whether a request header, in lower case, is in the key or the scope.
    ``custom``: it answers a path that has no dialect; a dialect's answers have status 200.
    ``now`` is in Unix seconds.
    """
    directives = _directives(headers)
    fresh_s = _fresh_s(headers, directives, now)
    refusal = (
        _refuse_status(status, directives, fresh_s, custom=custom)
        or _refuse_headers(headers, keyed)
        or _refuse_directives(headers, directives)
    )
    if refusal is None and fresh_s is not None and fresh_s <= 0:
        refusal = "expired"
    return StorageVerdict(refusal) if refusal is not None else StorageVerdict(None, fresh_s)


def _refuse_status(
    status: int, directives: Mapping[bytes, list[bytes]], fresh_s: float | None, *, custom: bool
) -> str | None:
    if not custom:
        return None if status == 200 else "status"
    if status in _NO_CONTENT:
        return "no-content"
    if status in _STORED_UNDATED:
        return None
    explicit = fresh_s is not None or b"public" in directives
    if not 200 <= status < 300 or status in _NEVER or not explicit:
        return "status"
    # The app may ask caches not to store a status that they do not understand.
    return "cache-control" if b"must-understand" in directives else None


def _refuse_headers(headers: Headers, keyed: Callable[[bytes], bool]) -> str | None:
    for name, value in headers:
        if name == b"set-cookie":
            return "set-cookie"
        if name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            return "content-encoding"
        if name == b"vary":
            varies = {word.strip().lower() for word in value.split(b",")}
            # The app is asked for a plain answer, so that all get the same encoding.
            if b"*" in varies or not all(map(keyed, varies - {b"", b"accept-encoding"})):
                return "vary"
    return None


def _refuse_directives(headers: Headers, directives: Mapping[bytes, list[bytes]]) -> str | None:
    refusing = directives.keys() & _REFUSING
    if refusing == {b"no-cache"} and _is_event_stream(headers) and not any(directives[b"no-cache"]):
        return None  # FastAPI, Litestar and others write it on every event stream
    if refusing:
        return "cache-control"
    if not directives and any(n == b"pragma" and b"no-cache" in v.lower() for n, v in headers):
        return "cache-control"  # ``pragma: no-cache``, the form of HTTP/1.0
    return None


def _is_event_stream(headers: Headers) -> bool:
    return any(n == b"content-type" and _EVENTS.match(v) for n, v in headers)


def _directives(headers: Headers) -> dict[bytes, list[bytes]]:
    """Return the directives of ``Cache-Control`` with the values of each."""
    found: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        if name == b"cache-control":
            for directive in _DIRECTIVE.finditer(value):
                given = directive[2] if directive[2] is not None else directive[3]
                found.setdefault(directive[1].lower(), []).append(given or b"")
    return found


def _fresh_s(headers: Headers, directives: Mapping[bytes, list[bytes]], now: float) -> float | None:
    """Return how long the answer is fresh from now on; None if it does not say (section 4.2).

    An answer with a value that cannot be read is stale. Of two different values the smaller counts.
    """
    dates = (http_date(value.decode("latin-1")) for name, value in headers if name == b"date")
    made_at = next((date for date in dates if date is not None), now)
    ages = [delta_seconds(value.strip()) for name, value in headers if name == b"age"]
    age_s = max([0.0, now - made_at, *ages])  # section 4.2.3
    for name in (b"s-maxage", b"max-age"):
        if name in directives:
            return min(map(delta_seconds, directives[name])) - age_s
    expires = [http_date(value.decode("latin-1")) for name, value in headers if name == b"expires"]
    if not expires:
        return None
    ends = [0.0 if end is None else end for end in expires]
    return min(ends) - made_at - age_s


@lru_cache(maxsize=16)  # The date of each answer is read, and is the same for a second.
def http_date(text: str) -> float | None:
    """Return an HTTP date in Unix seconds; None if the text is not a date."""
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
