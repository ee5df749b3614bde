"""Checks that hold for the compressed form of any conversation, without using the package.

Used by ``benchmarks.compression`` (ten thousand conversations) and by the tests (some hundred).
"""

from __future__ import annotations

import copy
import json
import re
from typing import TYPE_CHECKING, Any

from benchmarks.compression_conversations import Generator, Message
from headstart import compress
from headstart.compression.tokens import count_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.compression_formats import Made
    from headstart.compression.result import Compression
    from headstart.settings import CompressionMode

MODES: tuple[CompressionMode, ...] = ("off", "safe", "balanced", "aggressive")
_MODEL = "gpt-4o"
_WHOLE = re.compile(r"\[… the same as the latest above that begins: [^\n]* …\]")
_LINES = re.compile(r"\[… (\d+) lines?, the same as the latest above that begins: [^\n]*? …\]")
_MARK = re.compile(r"\s*\[… [^\n]*? …\]\s*")
_OVERWRITTEN = re.compile(r"[^\n]*\r(?!\n)")
_POINTER = re.compile(r"the latest above that begins: ([^\n]*?) …\]")


def failures(seed: int, mode: CompressionMode) -> Iterator[str]:
    """Yield what does not hold of the compressed form of the conversation of this seed."""
    generator = Generator(seed)
    messages = generator.conversation()
    cut = generator.random.randint(0, len(messages))
    before = copy.deepcopy(messages)
    done = compress(messages, mode=mode)
    if messages != before:
        yield "the input was changed"
    if compress(messages[:cut], mode=mode).messages != done.messages[:cut]:
        yield f"not prefix-stable at {cut}"
    if compress(done.messages, mode=mode).messages != done.messages:
        yield "not idempotent"
    if mode in {"off", "safe"} and not (done.lossless and done.restore() == messages):
        yield "not restored"
    if mode == "off" and done.messages != messages:
        yield "off, but changed"
    users = [message for message in done.messages if message["role"] == "user"]
    for own, message in zip(generator.own_words, users, strict=True):
        if not any(own in text for _, text in _texts(message)):
            yield "a user's own words changed"
    yield from _protected(messages, done)
    above = ""
    for number, (source, sent) in enumerate(zip(messages, done.messages, strict=True)):
        found = _shortened(source, sent, above, generator.made)
        yield from (f"{what} in message {number}" for what in found)
        above += "\n".join(text for _, text in _texts(sent)) + "\n"


def _protected(messages: list[Message], done: Compression) -> Iterator[str]:
    """All but the spans is the same, and spans lie only where they may."""
    touched = {(span.message, span.part) for span in done.spans}
    calls = {
        call["id"]: call["function"]["name"] + call["function"]["arguments"]
        for message in messages
        for call in message.get("tool_calls") or ()
    }
    for number, (source, sent) in enumerate(zip(messages, done.messages, strict=True)):
        if {**source, "content": None} != {**sent, "content": None}:
            yield f"a field of message {number} changed"
        texts = dict(_texts(source))
        for part, text in _texts(sent):
            if (number, part) not in touched and text != texts[part]:
                yield f"an untouched text of message {number} changed"
        if not any(span.message == number for span in done.spans):
            continue
        call = calls.get(source.get("tool_call_id"), "")
        if source["role"] not in {"user", "tool"}:
            yield f"message {number} is protected"
        if "read_file" in call or "plan.md" in call:
            yield from _file(source, sent, done, number)
        if not _same_outside_spans(source, sent, done, number):
            yield f"message {number} changed outside of spans"
        if isinstance(source["content"], list):
            kept = [part | {"text": ""} for part in source["content"]]
            if kept != [part | {"text": ""} for part in sent["content"]]:
                yield f"a part of message {number} changed"


def _file(source: Message, sent: Message, done: Compression, number: int) -> Iterator[str]:
    """A file keeps all but the blanks before the line numbers of its listing."""
    spans = [span for span in done.spans if span.message == number]
    if any(span.transforms != ("padding",) for span in spans):
        yield f"message {number} is protected"
    if done.restore()[number] != source:
        yield f"message {number} is a file and cannot be restored"
    for (_, text), (_, new) in zip(_texts(source), _texts(sent), strict=True):
        if [line.lstrip(" ") for line in text.split("\n")] != [
            line.lstrip(" ") for line in new.split("\n")
        ]:
            yield f"message {number} lost more than blanks before numbers"


def _same_outside_spans(source: Message, sent: Message, done: Compression, number: int) -> bool:
    sent_texts = dict(_texts(sent))
    for part, text in _texts(source):
        spans = [span for span in done.spans if (span.message, span.part) == (number, part)]
        left, right, at, sent_at = [], [], 0, 0
        for span in spans:
            left.append(text[at : span.source_start])
            right.append(sent_texts[part][sent_at : span.start])
            at, sent_at = span.source_end, span.end
        if [*left, text[at:]] != [*right, sent_texts[part][sent_at:]]:
            return False
    return True


def _shortened(source: Message, sent: Message, above: str, made: dict[str, Made]) -> Iterator[str]:
    sent_texts = dict(_texts(sent))
    for part, text in _texts(source):
        new = sent_texts[part]
        if new == text or source["role"] != "tool":
            continue
        if len(new) > len(text):
            yield "a longer text"
        if count_tokens(new, _MODEL).tokens > count_tokens(text, _MODEL).tokens:
            yield "more tokens"
        for pointer in _POINTER.finditer(new):
            if pointer[1] not in above + new[: pointer.start()]:
                yield "a pointer to nothing"
        if _WHOLE.fullmatch(new):
            continue
        if text in made:
            yield from _broken(made[text], new, above)
        elif not new.startswith("[HTML as text]") and not _is_json(text):
            yield from _out_of_order(text, new)


def _broken(made: Made, new: str, above: str) -> Iterator[str]:
    """Name what should have survived of a text of known format, and did not."""
    if made.kind == "log" and not set(made.trouble) <= set(new.split("\n")):
        if not _POINTER.search(new):
            yield "a line of trouble lost"
    elif made.kind == "json" and _decoded(made.text) not in (_decoded(new), _spread(_decoded(new))):
        yield "other JSON"
    elif made.kind == "data":
        yield "data changed"
    elif made.kind == "lines" and not _same_lines(made.text, new, above):
        yield "other lines"


def _same_lines(text: str, new: str, above: str) -> bool:
    """Return whether each line is there, or is above within the range of a pointer."""
    at = 0
    pieces = _LINES.split(new)
    for piece, count in zip(pieces[::2], [*pieces[1::2], "0"], strict=True):
        if not text.startswith(piece, at):
            return False
        at += len(piece)
        gap = "\n".join(text[at:].split("\n")[: int(count)])
        if "\n" + gap not in f"\n{above}\n{text[:at]}":
            return False
        at += len(gap)
    return at == len(text)


def _out_of_order(text: str, new: str) -> Iterator[str]:
    """Check that the kept text is verbatim and in order, except for white space at line ends.

    What was overwritten is not seen on a terminal; the generator's states are all of one length.
    """
    at = 0
    plain = re.sub(r"\s+", " ", _OVERWRITTEN.sub("", text))
    for piece in _MARK.split(new):
        found = plain.find(re.sub(r"\s+", " ", piece.strip()), at)
        if found < 0:
            yield "words that were not there"
            return
        at = found


def _is_json(text: str) -> bool:
    try:
        return isinstance(_decoded(text), list | tuple)
    except ValueError:
        return False


def _decoded(text: str) -> Any:
    """Decode one document, or one in each line, with literals and repeated keys unchanged.

    Lists are lists, objects are tuples of pairs.
    """

    def decode(one: str) -> Any:
        return json.loads(one, object_pairs_hook=tuple, parse_float=str, parse_int=str)

    try:
        return decode(text)
    except ValueError:
        return [decode(line) for line in text.strip().split("\n") if line.strip()]


def _spread(value: Any) -> Any:
    """Return decoded JSON with its tables written out."""
    match value:
        case list():
            return [_spread(item) for item in value]
        case (("columns", columns), ("rows", rows)) if isinstance(value, tuple):
            return [_row(columns, cells) for cells in rows]
        case (("columns", columns), ("rows_by_key", rows)) if isinstance(value, tuple):
            return tuple((key, _row(columns, cells)) for key, cells in rows)
        case tuple():
            return tuple((key, _spread(item)) for key, item in value)
    return value


def _row(columns: list[Any], cells: list[Any]) -> Any:
    return tuple(
        (column, _spread(cell))
        if isinstance(column, str)
        else (column[0][0], _row(column[0][1], cell))
        for column, cell in zip(columns, cells, strict=True)
    )


def _texts(message: Message) -> Iterator[tuple[int | None, str]]:
    content = message.get("content")
    if isinstance(content, str):
        yield None, content
    for number, part in enumerate(content if isinstance(content, list) else ()):
        if part["type"] == "text":
            yield number, part["text"]
