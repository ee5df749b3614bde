"""Shortens the messages of a chat, one message after the other, without looking ahead.

The form in which message k is sent depends only on messages 1 to k and the configuration. So the
messages of one request are a prefix of those of the next request: the provider's prompt cache stays
useful, and all replicas make the same bytes without shared state.

``compress`` takes these steps:

1. With ``clear_history``: choose the old tool results to omit (``results_to_clear``).
2. For each message in its order, ``ConversationCompressor.read`` finds the spans that may be
   shortened: tool results, and documents in a message of the user.
3. Each span is shortened by its kind (``transforms.py``); a file only by step 4.
4. A file that is read again loses its unchanged lines (``FileReads``, with ``repeated_reads``).
5. A span is sent in its shorter form only if that pays (``is_worth``).

For example, the tool result ``[{"id": 1, "ok": true}, {"id": 2, "ok": true}, ...]`` becomes
``{"columns":["id","ok"],"rows":[[1,true],[2,true],...]}``, with a ``Span`` by which ``restore``
finds the way back.

**Files that a coding agent reads again:** a reference to the earlier message replaces the lines
that are unchanged since then. Only numbered listings of files get references, because their numbers
show which lines a reference means. An agent edits a file by quoting its lines, so each line must be
in the prompt: the lines of the earlier message stay. Some lines at both ends of a reference are
shown again, for an edit that begins before the reference and ends in it. The first read after an
edit of the file stays whole, and so does a short read, because the agent is about to change these
lines.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec

from headstart.attempts import CHARS_PER_TOKEN
from headstart.compression.lossless import json_within
from headstart.compression.passages import CLEARED, Passages, has_mark, without_marks
from headstart.compression.result import (
    RETRIEVE,
    TOOL_ROLES,
    Compression,
    Span,
    call_of,
    calls_in,
    cleared_text,
    indexed_texts,
    is_plain_text,
    only_text,
    read_message,
    recovery_mark,
    texts,
    with_text,
)
from headstart.compression.selection import (
    DocumentSpan,
    TextPurpose,
    find_documents,
    passes_results_on,
    shows_file,
    understand,
)
from headstart.compression.transforms import (
    COST_MS_PER_1K,
    AllowedTransforms,
    Shortened,
    shorten_text,
    unpadded,
)
from headstart.errors import ConfigError
from headstart.settings import COMPRESSION_MODES, CompressionMode, CompressionSettings
from headstart.types import Frozen, Memo, json_or_none

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headstart.compression.result import Dumpable


CODE_VERSION = "15"
"""The version of the transforms. Raise it whenever a transform writes other bytes."""
MIN_TEXT_CHARS = 200
"""A shorter text is not changed: a mark would be longer than the saving."""
LONGEST_TEXT = 1_000_000
"""A longer text is not changed, because a regular expression blocks all threads while it runs."""
LONGEST_PROMPT = 4_000_000
"""A prompt with more characters of text is not changed, because other prompts would wait for it."""
KEPT_RESULTS = 3
"""The latest tool results, which are never cleared."""
_MAX_REMAINDER = 0.95
"""A text of which a larger share of characters would be left is sent unchanged."""
_SPACES = re.compile("  +")
"""A run of spaces is about one token, whatever its length."""
_MIN_CLEARED_TOKENS = 1500
"""Fewer tokens are not cleared: the saving would be small, and each clearing has a price."""
_MIN_CLEARED_SHARE = 0.3
"""The tokens to clear must be at least this share of the tokens that the provider reads again."""
_SETTINGS = CompressionSettings()


class Profile(Frozen):
    """The price and speed of tokens at the provider, which decide whether a change pays."""

    version: str = "1"
    prefill_tokens_per_s: float = _SETTINGS.prefill_tokens_per_s
    """The default is the fastest published figure (4,000 to 33,000): slower providers gain more."""
    usd_per_million: float = 1.0
    """The price of prompt tokens. 0: tokens are free, and only time counts."""
    cached_share: float = _SETTINGS.cached_share
    """The price of a token from the provider's prefix cache, as a share of the full price."""
    cache_minimum: int = _SETTINGS.cache_minimum
    """The number of tokens below which the provider does not cache a prompt."""


_DEFAULT = Profile()


class CompressOptions(TypedDict):
    """Arguments of ``compress`` that follow from the settings and the request."""

    model: str
    profile: Profile
    clear_history: bool
    strip_comments: bool
    pointers: bool
    repeated_reads: bool


def compress(
    messages: Sequence[Mapping[str, Any] | Dumpable],
    *,
    model: str | None = None,
    mode: CompressionMode = "safe",
    profile: Profile = _DEFAULT,
    clear_history: bool = False,
    strip_comments: bool = False,
    pointers: bool = True,
    repeated_reads: bool = False,
    memo: Memo | None = None,
) -> Compression:
    """Return chat messages (OpenAI's form) that say the same in fewer tokens. Pure.

    Only tool results, and documents that are clearly marked in a user's message, are changed;
    ``docs/compression.md`` lists the protected texts. ``off`` changes nothing. ``safe`` makes only
    changes that ``restore`` undoes byte for byte. ``balanced`` also leaves out repeated passages,
    repeated log lines and HTML markup. ``aggressive`` also leaves out English sentences that do not
    concern the question. ``recoverable`` makes the changes of ``aggressive``, and names the id of
    each cut text, for ``Compression.retrieve``.

    ``clear_history`` also omits old tool results, many at a time. Only with this option may a later
    request send an earlier message in another form, where the saving pays for it.
    ``strip_comments`` also removes comments from Python that is not the content of a file, in all
    modes but ``safe``. Without ``pointers`` no message points to another one: the provider may
    remove the target later. ``repeated_reads`` replaces unchanged lines of files that are read
    again by references to the lines above. ``model`` names the tokenizer of the counts, and
    ``memo`` keeps results from earlier requests; neither changes a byte of the messages.

    Messages are dicts, or objects of the openai SDK, which become dicts as the SDK would send them.
    Raises ConfigError for an unknown mode, TypeError for a value that is no message.
    """
    if mode not in COMPRESSION_MODES:
        raise ConfigError(f"compression mode {mode!r} is none of {', '.join(COMPRESSION_MODES)}")
    memo = Memo() if memo is None else memo
    source = [read_message(each) for each in messages]
    cleared = _cleared(source) if clear_history and mode != "off" else frozenset()
    allowed = AllowedTransforms(
        mode,
        comments=strip_comments,
        pointers=pointers,
        repeated_reads=repeated_reads and pointers,
    )
    sent: list[dict[str, Any]] = []
    spans: list[Span] = []
    lengths = (len(text) for each in source for _, text in indexed_texts(each))
    shortens = mode != "off" and sum(lengths) <= LONGEST_PROMPT
    if shortens and (cleared or any(is_shortenable(each, memo) for each in source)):
        conversation = ConversationCompressor(allowed, profile, memo, cleared)
        for number, message in enumerate(source):
            shorter, new_spans = conversation.read(number, message)
            sent.append(shorter)
            spans += new_spans
    else:
        sent = [each if isinstance(each, dict) else dict(each) for each in source]
    return Compression(
        messages=sent,
        spans=tuple(spans),
        version=_version(allowed, profile, clear_history=clear_history),
        source=source,
        model=model or "",
    )


@lru_cache(maxsize=64)
def _version(allowed: AllowedTransforms, profile: Profile, *, clear_history: bool) -> str:
    configured = msgspec.json.encode(
        [CODE_VERSION, allowed, msgspec.structs.asdict(profile), clear_history]
    )
    return hashlib.sha256(configured).hexdigest()[:16]


@dataclass(slots=True)
class ConversationCompressor:
    """Shortens the messages of one conversation in their order, for one call of ``compress``."""

    allowed: AllowedTransforms
    profile: Profile
    memo: Memo
    cleared: frozenset[int]
    """The numbers of the messages whose text is omitted."""
    passages: Passages = field(init=False)
    """The texts so far, as they are sent: pointers lead to them."""
    reads: FileReads | None = field(init=False)
    """The files that were read; None: repeated reads stay whole."""
    sent_chars: int = 0
    """The characters of the prompt so far, which decide whether the provider caches it."""
    _purpose: TextPurpose = field(default_factory=TextPurpose)
    """The purpose of texts, as the user's words of this turn say, except the words in
    ``_words``."""
    _words: list[str] = field(default_factory=list)
    """The words of the user that ``_understood`` has not read yet."""
    _passes_results_on: bool = False
    """Whether the system text asks the model to pass on results of tools unchanged."""
    _last_role: object = None
    _calls: dict[object, tuple[str, str]] = field(default_factory=dict)
    """The name and the arguments of each tool call so far, by its id."""

    def __post_init__(self) -> None:
        self.passages = Passages(self.memo)
        self.reads = FileReads() if self.allowed.repeated_reads else None

    def read(self, number: int, message: Mapping[str, Any]) -> tuple[dict[str, Any], list[Span]]:
        """Return the message in the form in which it is sent, and the spans that were shortened."""
        places = _places_in(message, self.memo)
        self._learn(message, places)
        if number in self.cleared:
            return self._omit(number, message)
        sent = message if isinstance(message, dict) else dict(message)
        tool, arguments = call_of(message, self._calls) if places else ("", "")
        # With RETRIEVE the model asked for a text that was cut: it must not be cut again.
        if not places or tool == RETRIEVE:
            for _, text in indexed_texts(message):
                self._remember(text)
            return sent, []
        purpose = self._purpose_of(message, tool, arguments)
        spans: list[Span] = []
        for part, text in indexed_texts(message):
            new, found = self._shorten(text, places.get(part, []), purpose, arguments)
            if found:
                sent = with_text(sent, part, new)
                spans += [
                    msgspec.structs.replace(span, message=number, part=part) for span in found
                ]
        return sent, spans

    def _purpose_of(
        self, message: Mapping[str, Any], tool: str, arguments: str
    ) -> TextPurpose | None:
        """Return the purpose of the texts in a message; None for a file that the tool shows."""
        if message.get("role") not in TOOL_ROLES:
            return self._understood().beside()
        if self.memo.call(shows_file, tool, arguments):
            return None
        purpose = self._understood()
        verbatim = purpose.verbatim or self._passes_results_on
        return msgspec.structs.replace(purpose, call=arguments, verbatim=verbatim)

    def _learn(
        self, message: Mapping[str, Any], places: Mapping[int | None, list[DocumentSpan]]
    ) -> None:
        """Note the calls of a message, and the user's own words (those outside documents)."""
        role = message.get("role")
        if role == "user":
            if self._last_role != "user":  # a new turn of the user begins
                self._purpose, self._words = TextPurpose(), []
            for part, text in indexed_texts(message):
                self._words.append(_outside(text, places.get(part, [])))
        elif role in {"system", "developer"}:
            found = (self.memo.call(passes_results_on, text) for _, text in indexed_texts(message))
            self._passes_results_on |= any(found)
        for id, call in calls_in(message):
            self._calls[id] = call
            self.sent_chars += len(call[1])
            if self.reads is not None:
                self.reads.note_call(*call)
        self._last_role = role

    def _understood(self) -> TextPurpose:
        """Return the purpose of texts that follows from the user's words of this turn."""
        if self._words:
            words, self._words = without_marks("\n".join(self._words)), []
            self._purpose = self._purpose.then(self.memo.call(understand, words))
        return self._purpose

    def _omit(self, number: int, message: Mapping[str, Any]) -> tuple[dict[str, Any], list[Span]]:
        """Return an old tool result as a mark, and its span."""
        ((part, text),) = indexed_texts(message)
        sent = cleared_text(text) if self.allowed.recoverable else CLEARED
        span = Span(
            start=0,
            end=len(sent),
            source_start=0,
            source_end=len(text),
            transforms=("history",),
            message=number,
            part=part,
        )
        return with_text(message, part, self._remember(sent)), [span]

    def _shorten(
        self, text: str, places: Sequence[DocumentSpan], purpose: TextPurpose | None, arguments: str
    ) -> tuple[str, Sequence[Span]]:
        """Shorten a text in these places. Later texts may point to the result.

        ``purpose`` is None for a listing of a file. Then only the blanks before line numbers may be
        removed, and lines that were sent before. ``arguments`` are those of the call whose result
        the text is.
        """
        out: list[str] = []
        spans: list[Span] = []
        at = length = 0
        for place in places:
            out.append(self._remember(text[at : place.start]))
            short = self._shorten_document(text[place.start : place.end], purpose, arguments)
            out.append(self._remember(short.text))
            length += place.start - at
            if short.applied:
                span = Span(
                    start=length,
                    end=length + len(short.text),
                    source_start=place.start,
                    source_end=place.end,
                    transforms=short.applied,
                    layout=short.layout,
                )
                spans.append(span)
            length += len(short.text)
            at = place.end
        out.append(self._remember(text[at:]))
        return "".join(out), spans

    def _shorten_document(
        self, source: str, purpose: TextPurpose | None, arguments: str
    ) -> Shortened:
        """Return the shortened text if it pays, else the same text."""
        if len(source) < MIN_TEXT_CHARS:
            return Shortened(text=source)
        if purpose is None:
            short = self._shorten_file(source, arguments)
        else:
            short = shorten_text(source, purpose, self.allowed, self.passages, self.memo)
        if self.allowed.recoverable and short.applied and short.layout is None:
            text = f"{short.text.rstrip()}\n{recovery_mark(source)}"
            short = msgspec.structs.replace(short, text=text)
        cost_ms = sum(COST_MS_PER_1K[transform] for transform in short.applied)
        before, after = len(source), len(short.text)
        if short.applied == ("space",):
            before, after = (len(_SPACES.sub(" ", text)) for text in (source, short.text))
        worth = is_worth(
            before=before,
            after=after,
            sent=self.sent_chars,
            cost_ms=cost_ms * len(source) / CHARS_PER_TOKEN / 1000,
            profile=self.profile,
        )
        return short if worth else Shortened(text=source)

    def _shorten_file(self, source: str, arguments: str) -> Shortened:
        """Return a listing of a file without padding, and without lines that were sent before."""
        short = unpadded(source, self.memo)
        if self.reads is None:
            return short
        return short.then("reread", self.reads.shorten(short.text, arguments, self.memo))

    def _remember(self, text: str) -> str:
        """Note that this text is sent, so that later texts may point to it; return it."""
        self.sent_chars += len(text)
        if self.allowed.pointers and self.allowed.mode not in {"off", "safe"}:
            self.passages.add(text)
        return text


def is_shortenable(message: Mapping[str, Any], memo: Memo) -> bool:
    """Return whether a part of the message may be shortened. Most conversations have none."""
    if not _may_have_places(message):
        return False
    if all(len(text) < MIN_TEXT_CHARS for _, text in indexed_texts(message)):
        return False
    places = _places_in(message, memo).values()
    return any(place.end - place.start >= MIN_TEXT_CHARS for part in places for place in part)


def _places_in(message: Mapping[str, Any], memo: Memo) -> dict[int | None, list[DocumentSpan]]:
    """Return the spans that may be shortened, by part: tool results, and a user's documents."""
    if not _may_have_places(message):
        return {}
    role, places = message.get("role"), {}
    for part, text in indexed_texts(message):
        if len(text) > LONGEST_TEXT or not is_plain_text(message, part):
            continue
        if found := memo.call(find_documents if role == "user" else _parts_of_result, text):
            places[part] = found
    return places


def _parts_of_result(text: str) -> list[DocumentSpan]:
    """Return the span of the whole result. Nearly all JSON: those before, of and after the JSON."""
    borders = [0, *(json_within(text) or ()), len(text)]
    return [DocumentSpan(start=start, end=end) for start, end in pairwise(borders) if start < end]


def _may_have_places(message: Mapping[str, Any]) -> bool:
    role = message.get("role")
    return (role == "user" or role in TOOL_ROLES) and not message.get("is_error")


def _outside(text: str, places: Sequence[DocumentSpan]) -> str:
    """Return the text without these places: the words that the user wrote about documents."""
    kept = []
    at = 0
    for place in places:
        kept.append(text[at : place.start])
        at = place.end
    return "\n".join([*kept, text[at:]])


# --- what pays ------------------------------------------------------------------------------------


def is_worth(*, before: int, after: int, sent: int, cost_ms: float, profile: Profile) -> bool:
    """Return whether a text of ``before`` characters should be sent as ``after`` characters.

    ``sent`` is the number of characters before it in the conversation, ``cost_ms`` our own
    predicted time for shortening it. The shorter text must save more prefill time than that. If the
    prompt becomes too short for the provider's prefix cache, the shorter text must also save more
    money than is lost without the cache.

    The result depends on earlier messages and a static profile, never on a clock or a cache, so it
    is the same for each request. Tokens are estimated from characters, because an exact count
    depends on the installed packages.
    """
    if after > before * _MAX_REMAINDER:
        return False
    removed_tokens = (before - after) / CHARS_PER_TOKEN
    saved_s = removed_tokens / profile.prefill_tokens_per_s
    if saved_s * 1000 <= cost_ms:
        return False
    least_cached = profile.cache_minimum * CHARS_PER_TOKEN
    leaves_cache = sent + after < least_cached <= sent + before
    if not leaves_cache:
        return True
    prompt_tokens = (sent + after) / CHARS_PER_TOKEN
    lost_usd = prompt_tokens * (1 - profile.cached_share) * profile.usd_per_million / 1e6
    return removed_tokens * profile.usd_per_million / 1e6 >= lost_usd


def _cleared(messages: Sequence[Mapping[str, Any]]) -> frozenset[int]:
    """Return the numbers of the tool results to omit; never a file or a protected result."""
    calls: dict[object, tuple[str, str]] = {}
    clearable = []
    for message in messages:
        calls.update(calls_in(message))
        result = message.get("role") in TOOL_ROLES and not message.get("is_error")
        long = result and len(only_text(message)) > len(CLEARED)
        clearable.append(long and not shows_file(*call_of(message, calls)))
    sizes = [sum(map(len, texts(message))) for message in messages]
    return results_to_clear(sizes, clearable)


def results_to_clear(sizes: Sequence[int], clearable: Sequence[bool]) -> frozenset[int]:
    """Return the numbers of the messages whose text is now cleared.

    ``sizes`` are the characters of each message; ``clearable`` marks the tool results that may be
    cleared. A message that is cleared stays cleared when more messages follow.

    A cleared result changes the prefix that the provider has cached. If R tokens are cleared and S
    tokens follow them, the provider once has to write these S tokens to its cache (1.25 times the
    price) instead of reading them there (0.1 times), and each later request reads R tokens less. At
    these prices, clearing pays after (1.25 - 0.1) * S / (0.1 * R) = 11.5 * S / R requests. So many
    results are cleared together.
    """
    cleared: set[int] = set()
    waiting: list[int] = []
    for number in range(len(sizes)):
        if not clearable[number]:
            continue
        waiting.append(number)
        old = waiting[:-KEPT_RESULTS]
        if not old:
            continue
        removed = sum(sizes[one] for one in old)
        read_again = sum(sizes[old[0] : number + 1]) - removed
        if removed >= max(_MIN_CLEARED_TOKENS * CHARS_PER_TOKEN, _MIN_CLEARED_SHARE * read_again):
            cleared.update(old)
            waiting = waiting[-KEPT_RESULTS:]
    return frozenset(cleared)


# --- files that an agent reads again --------------------------------------------------------------

_NUMBERED = re.compile(r" *(\d{1,9})(?:\t|\u2192| ?[|\u2502])")
"""Matches the number that begins a line of a listing, with the sign after it."""
_PATH_NAME = re.compile(r"(?:\w*path|file\w*|\w*_file|target)", re.IGNORECASE)
"""Matches the names of arguments that hold the path of a file."""
_CHANGES = re.compile(
    r"edit|write|replace|patch|create|insert|delete|apply|undo|str_", re.IGNORECASE
)
"""Tools that may change a file."""
SHOWN_AGAIN = 8
"""The number of lines at each end of an unchanged stretch that are shown again."""
LEAST_LINES = 40
"""The fewest lines that a reference replaces. The lines that are shown again do not count."""
SHORT_READ = 80
"""The fewest lines of a read that may be shortened."""


def reference(first: int, last: int, path: str) -> str:
    """Return the text in place of the lines from ``first`` to ``last``."""
    return f"[… lines {first}-{last} are unchanged: they stand in the read of {path} above …]"


class FileReads:
    """The numbered lines of files in the prompt so far, as they are sent."""

    def __init__(self) -> None:
        self._lines: dict[str, dict[int, str]] = {}
        """The lines of each file by their numbers, by the path of the file."""

    def note_call(self, name: str, arguments: str) -> None:
        """Note a call of a tool. The next read of a file that it may change stays whole."""
        if not _CHANGES.search(name):
            return
        changed = path_of(arguments)
        if changed is None:
            self._lines.clear()
        else:
            self._lines.pop(changed, None)

    def shorten(self, text: str, arguments: str, memo: Memo) -> str:
        """Return a read of a file with references to earlier reads, where these pay."""
        path = path_of(arguments)
        if path is None:
            return text
        lines, numbers = memo.call(_numbered, text)
        above = self._lines.get(path, {})
        short = text
        if above and not has_mark(text) and len(lines) >= SHORT_READ:
            short = "\n".join(_with_references(lines, numbers, above, path))
        kept = self._lines.setdefault(path, {})
        for number, line in zip(numbers, lines, strict=True):
            if number is not None:
                kept[number] = line
        return short


def _numbered(text: str) -> tuple[list[str], list[int | None]]:
    """Return the lines of a text and their numbers; None for a line without one."""
    lines = text.split("\n")
    found = map(_NUMBERED.match, lines)
    return lines, [None if number is None else int(number[1]) for number in found]


def _with_references(
    lines: list[str], numbers: list[int | None], above: dict[int, str], path: str
) -> Iterator[str]:
    """Yield the lines, with a reference in place of the middle of each long unchanged stretch."""
    at = 0
    while at < len(lines):
        # The lines from ``at`` to ``end`` were sent before, one directly after the other.
        end = at
        while end < len(lines) and _was_sent(lines, numbers, above, end, first=end == at):
            end += 1
        first, last = at + SHOWN_AGAIN, end - SHOWN_AGAIN
        if last - first < LEAST_LINES:
            yield from lines[at : max(end, at + 1)]
        else:
            yield from lines[at:first]
            yield reference(numbers[first] or 0, numbers[last - 1] or 0, path)
            yield from lines[last:end]
        at = max(end, at + 1)


def _was_sent(
    lines: list[str], numbers: list[int | None], above: dict[int, str], at: int, *, first: bool
) -> bool:
    """Tell whether a line was sent before, directly after the line before it."""
    number = numbers[at]
    if number is None or above.get(number) != lines[at]:
        return False
    return first or numbers[at - 1] == number - 1


def path_of(arguments: str) -> str | None:
    """Return the file that a call names, or None."""
    given = json_or_none(arguments, dict[str, Any]) or {}
    named = [value for name, value in given.items() if _PATH_NAME.fullmatch(name)]
    return named[0] if len(named) == 1 and isinstance(named[0], str) else None
