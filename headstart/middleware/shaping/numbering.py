"""Sentences of a prompt's documents, numbered, and quotes in its earlier answers as marks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from headstart.compression.documents import find_documents
from headstart.compression.messages import indexed_texts, is_plain_text, with_text
from headstart.compression.sentences import sentences
from headstart.middleware.shaping.prompts import read_prompt
from headstart.middleware.shaping.shaper import with_document
from headstart.policies.output.concise import with_directive
from headstart.policies.output.quote_marks import Sources

if TYPE_CHECKING:
    from headstart.compression.memo import Memo
    from headstart.types import Call

INSTRUCTION = (
    "Sentences of the documents are numbered [q1], [q2] and so on. To quote sentences word for "
    "word, write ⟦q:12⟧ for one or ⟦q:12-14⟧ for several in a row instead of copying them: the "
    "reader sees their text. Never write these marks in code or data, and do not mention the "
    "numbers otherwise."
)


class Numbered(NamedTuple):
    """A call whose documents bear ids, and what these stand for."""

    call: Call
    sources: Sources


def number_documents(call: Call, memo: Memo) -> Numbered | None:
    """Return the call with ids before its sentences, or None: there are none to number."""
    assert call.request is not None
    document = call.request.document
    prompt = read_prompt(call.dialect, document)
    if prompt is None:
        return None
    sources = Sources()
    sent = []
    for message in prompt.messages:
        role = message.get("role")
        if role == "user":
            sent.append(_with_ids(message, sources, memo))
            if not sources:
                return None
        elif role == "assistant" and sources:
            sent.append(_with_marks(message, sources))
        else:
            sent.append(message)
    if not sources:
        return None
    directed = with_directive(prompt.with_messages(sent), call.dialect, INSTRUCTION)
    return None if directed is None else Numbered(with_document(call, directed), sources)


def _with_ids(message: dict[str, Any], sources: Sources, memo: Memo) -> dict[str, Any]:
    for part, text in indexed_texts(message):
        if not is_plain_text(message, part):
            continue
        places = [(each.start, each.end) for each in memo.call(find_documents, text)]
        numbered = sources.number(text, places, partial(_split, memo))
        if numbered != text:
            message = with_text(message, part, numbered)
    return message


def _with_marks(message: dict[str, Any], sources: Sources) -> dict[str, Any]:
    for part, text in indexed_texts(message):
        marked = sources.unquote(text) if is_plain_text(message, part) else text
        if marked != text:
            message = with_text(message, part, marked)
    return message


def _split(memo: Memo, document: str) -> list[tuple[int, int]]:
    return memo.call(sentences, document)
