"""Splits a long document or a list into many calls of a batch, and joins the answers in order.

Pure. A ``MappedRequest`` is one such request. Its calls come in levels: the calls of level 0 answer
the parts, and each call of a further level joins some answers of the level below. For example, a
document of four parts with the ``reduce`` prompt "Summarize these summaries" may need::

    level 0    part 1    part 2    part 3    part 4
    level 1    answers 1 and 2     answers 3 and 4
    level 2    the two answers of level 1

The last level has one call, whose answer is the answer to the request. Without ``reduce`` there is
only level 0, and its answers are written one after the other.

A document is cut at paragraphs; a paragraph that does not fit is cut at its sentences, and a
sentence that does not fit at words. Each item of a list is a part.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from headstart.attempts import Tokens, sum_tokens
from headstart.compression.passages import sentences
from headstart.compression.tokens import count_tokens
from headstart.dialects.registry import DIALECTS
from headstart.errors import ConfigError
from headstart.reply import Transcript
from headstart.types import Completion, Frozen, Text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from headstart.dialects.dialect import Dialect

CHUNK_TOKENS = 8000
"""The default number of tokens of a part."""
LEAST_GROUP = 2
"""The fewest answers that are joined by one call. Otherwise long answers would never become
fewer."""
JOINT = "\n\n"
"""The text between two answers."""
_PARAGRAPH = re.compile(r"\n[ \t\r]*\n\s*")
_WORD = re.compile(r"\s+|(?<=[\u3002\uff01\uff1f])")


class MapOptions(Frozen):
    """How documents are split, and how the answers are joined."""

    field: str
    """The field of a request that has the document."""
    reduce: str | None
    """The prompt for the calls that join answers; None: the answers are not joined by calls."""
    chunk_tokens: int
    """The most tokens of a part, and of the answers that one call joins."""


class MapStep(NamedTuple):
    """The place of a call among those for one document."""

    level: int
    """0: it answers a part of the document. Above: it joins answers of the level below."""
    number: int
    """Its place in the level, from 0."""


class StepError(Exception):
    """The answer to a part cannot be joined."""


# --- parts ----------------------------------------------------------------------------------------


def split_document(text: str, most: int, count: Callable[[str], int]) -> list[str]:
    """Return the parts of a text, each of at most ``most`` tokens. Joined, they are the text."""
    parts: list[str] = []
    taken: list[str] = []  # the pieces of the next part
    tokens = 0
    cuts = (partial(_cut_after, _PARAGRAPH), _sentences, partial(_cut_after, _WORD))
    for piece, size in _pieces(text, most, count, cuts):
        if taken and tokens + size > most:
            parts.append("".join(taken))
            taken, tokens = [], 0
        taken.append(piece)
        tokens += size
    return [*parts, "".join(taken)] if taken else parts


def _pieces(
    text: str,
    most: int,
    count: Callable[[str], int],
    cuts: tuple[Callable[[str], Iterable[str]], ...],
) -> Iterator[tuple[str, int]]:
    """Yield pieces that fit, with their tokens: as large as the coarsest cut allows.

    A word that does not fit is cut so that it fits even if each character is a token.
    """
    cut, *finer = cuts
    for piece in cut(text):
        size = count(piece)
        if size <= most:
            yield piece, size
        elif finer:
            yield from _pieces(piece, most, count, tuple(finer))
        else:
            for start in range(0, len(piece), most):
                short = piece[start : start + most]
                yield short, min(most, count(short))


def _sentences(text: str) -> Iterator[str]:
    return (text[start:end] for start, end in sentences(text))


def _cut_after(end: re.Pattern[str], text: str) -> Iterator[str]:
    """Cut a text behind each match of ``end``."""
    at = 0
    for found in end.finditer(text):
        if found.end() > at:
            yield text[at : found.end()]
        at = found.end()
    if at < len(text):
        yield text[at:]


def group_answers(texts: list[str], most: int, count: Callable[[str], int]) -> list[list[str]]:
    """Return answers in groups of at most ``most`` tokens, or of two answers if these have more."""
    groups: list[list[str]] = []
    tokens = 0
    for text in texts:
        size = count(text + JOINT)
        if groups and (tokens + size <= most or len(groups[-1]) < LEAST_GROUP):
            groups[-1].append(text)
            tokens += size
        else:
            groups.append([text])
            tokens = size
    return groups


# --- one document ---------------------------------------------------------------------------------


def read_document(value: object, field: str) -> str | tuple[str, ...]:
    """Return the text or the list in the field of a request. Raises ConfigError."""
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, list) and value:
        return tuple(
            item if isinstance(item, str) else msgspec.json.encode(item).decode() for item in value
        )
    raise ConfigError(f"{field}: --map needs a text or a list there, and not an empty one")


def check_request(path: str, body: dict[str, Any]) -> None:
    """Raise ConfigError for a request that has no place for a part."""
    _with_part(_dialect_of(path), body, "part")


def _with_part(dialect: Dialect, request: dict[str, Any], part: str) -> bytes:
    """Return the body of the call for a part: the request with the part in its last message."""
    try:
        found = dialect.form.with_last_text(request, part.strip("\r\n"))
    except (AttributeError, KeyError, TypeError, ValueError):
        found = None
    if found is None:
        raise ConfigError("--map: the request has no last message to which a part can be added")
    return msgspec.json.encode(found)


class MappedRequest:
    """The state of one request whose document is split.

    ``bodies`` are the calls of the present level. Give their answers to ``take``. When the level
    ``is_answered``, begin the next one. If there is none, ``joined`` is the whole answer.
    """

    def __init__(
        self, path: str, body: bytes, document: str | tuple[str, ...], options: MapOptions
    ) -> None:
        self._dialect = _dialect_of(path)
        self._request: dict[str, Any] = msgspec.json.decode(body)
        self._options = options
        self._is_list = not isinstance(document, str)
        self._tokens = Tokens()
        """The tokens of all calls."""
        self._base: Completion | None = None
        """The answer from which the whole answer takes all but its text and its tokens: the first
        one that came, or the latest one of a call that joined answers."""
        self._cut: str | None = None
        """Why an answer ended early; None: all are complete."""
        parts = (
            split_document(document, options.chunk_tokens, self._count)
            if isinstance(document, str)
            else document
        )
        self.level = 0
        self.bodies = [_with_part(self._dialect, self._request, part) for part in parts]
        self._texts: list[str | None] = [None] * len(parts)
        """The answers of the present level; None: not known yet."""

    def take(self, number: int, body: bytes, now: float) -> None:
        """Take the answer to a call of this level. Raises StepError."""
        transcript = Transcript()
        transcript.feed(self._dialect.decode_body(200, body))
        completion = transcript.completion(now)
        choice = completion.choices[0] if completion is not None and completion.choices else None
        text = "" if choice is None else choice.text
        if completion is None or choice is None or not text:
            raise StepError("the answer has no text")
        self._texts[number] = text
        used = transcript.tokens(self._dialect.tokens) or Tokens()
        self._tokens = sum_tokens((self._tokens, used))
        if self._base is None or self.level:
            self._base = completion
        if choice.finish == "length":
            self._cut = choice.native_finish or choice.finish

    @property
    def is_answered(self) -> bool:
        """All calls of this level have their answers."""
        return None not in self._texts

    def begin_next_level(self) -> bool:
        """Begin the level that joins the answers; return False if there is none."""
        options, texts = self._options, [each or "" for each in self._texts]
        if options.reduce is None or (self.level and len(texts) == 1):
            return False
        groups = group_answers(texts, options.chunk_tokens, self._count)
        self.level += 1
        self.bodies = [self._joining_call(group) for group in groups]
        self._texts = [None] * len(groups)
        return True

    def joined(self, id: str) -> bytes:
        """Return the answer to the whole request, with the tokens of all its calls."""
        base = self._base
        assert base is not None
        texts = [each or "" for each in self._texts]
        text = JOINT.join(texts)
        if self._is_list and self._options.reduce is None:
            text = msgspec.json.encode(texts).decode()
        choice = msgspec.structs.replace(
            base.choices[0], parts=(Text(text=text),), logprobs=None, extra={}
        )
        if self._cut is not None and self._options.reduce is None:
            choice = msgspec.structs.replace(choice, finish="length", native_finish=self._cut)
        answer = msgspec.structs.replace(
            base, choices=(choice,), usage=self._dialect.usage(self._tokens), extra={}
        )
        return self._dialect.write_body(answer, id, answer.created)

    def _joining_call(self, texts: Iterable[str]) -> bytes:
        """Return the body of the call that joins some answers. System text and settings stay."""
        form, request = self._dialect.form, self._request
        turns = request.get(form.field)
        system = [
            each
            for each in (turns if isinstance(turns, list) else ())
            if isinstance(each, dict) and each.get("role") in ("system", "developer")
        ]
        text = JOINT.join((self._options.reduce or "", *texts))
        return msgspec.json.encode({**request, form.field: [*system, form.turn("user", text)]})

    def _count(self, text: str) -> int:
        return count_tokens(text, str(self._request.get("model", ""))).tokens


def _dialect_of(path: str) -> Dialect:
    """Return the dialect of a path, if its requests are lists of messages. Raises ConfigError."""
    for dialect in DIALECTS.values():
        if path in dialect.paths and dialect.form.field in ("messages", "input"):
            return dialect
    known = "/v1/chat/completions, /v1/messages, /v1/responses"
    raise ConfigError(f"--map: requests of {path} cannot be split; known paths: {known}")
