"""Whether a user's text asks to change one document that it holds. Where in doubt, it does not.

English alone: in other languages nothing is found, and the answer is generated whole.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from headstart.policies.output.edit_blocks import has_markers
from headstart.types import Frozen

if TYPE_CHECKING:
    from headstart.canonical_request import CanonicalRequest

CHARS_PER_TOKEN = 4
MIN_TOKENS = 600
"""Blocks about a shorter document cost more than the document (``docs/output-edits.md``)."""
_MAX_WORDS_CHARS = 2000
_SNIPPET_SHARE = 4
_ROOM = 1.5
"""Documents that must fit into the caller's own limit."""

_OPENING = re.compile(r"(`{3,}|~{3,})([^`]*)|<(document|file|code|content)(?:[ \t][^<>]*)?>[ \t]*")
_VERB = re.compile(
    r"(?:^|[.!;:,\n][ \t>*-]*|\d[.)]\s+|\b(?:please|then|and|also|just|should|must)\s+"
    r"|\b(?:like|want|need|have)\s+(?:you\s+)?to\s+|\b(?:can|could|would|will)\s+you\s+)"
    r"(?:add|adjust|amend|append|bump|capitali[sz]e|change|correct|delete|drop|edit|extend|fix"
    r"|insert|make\s+(?:the|this|it|all|every|each|sure|these|those)|modify|move|refactor|remove"
    r"|rename|reorder|replace|set|swap|tidy|tweak|update|use(?=[^.\n]*\binstead\b))\b",
    re.IGNORECASE,
)
_OTHER_WISH = re.compile(
    r"\b(?:summar\w*|translat\w*|explain\w*|explanation|describ\w*|analy[sz]\w*|compar\w*|extract"
    r"|convert|rewrite|re-write|rephrase|paraphrase|shorten|answer|tell me|show me|give me an?"
    r"|list (?:the|all|every|each)|review|critique|suggest\w*|diff|patch|unified|snippet"
    r"|json only|as json|in json|from scratch"
    r"|(?:write|add|create|generate|make)\s+(?:\w+\s+){0,3}(?:tests?|summary|list|table of)\b"
    r"|(?:only|just)\s+(?:\w+\s+){0,2}(?:return|show|output|print|reply|give|send|write|the"
    r" (?:new|changed?|modified|edited|updated|function|method|class|line|lines|part))\b"
    r"|(?:return|show|output|print|reply|give|send|write)\s+(?:\w+\s+)?(?:only|just|nothing)\b"
    r"|(?:do not|don'?t|without|instead of|no need to)\s+(?:\w+\s+)?"
    r"(?:return|show|output|print|repeat|writ|send)\w*)",
    re.IGNORECASE,
)
_QUESTION = re.compile(r"(?:^|(?<=[?\n])|(?<=[.!])(?=\s))(?:[^.!?\n]++|[.!](?=\S))++\?")
_POLITE = re.compile(
    r"[\s>*-]*(?:(?:hi|hello|hey|please|so|then|also|and|now)[,!]?\s+)*"
    r"(?:can|could|would|will) you\b",
    re.IGNORECASE,
)


class EditRequest(Frozen):
    """A document that is to be changed. The lines of its border stand around it."""

    document: str
    opening: str
    closing: str

    def bordered(self, document: str) -> str | None:
        """Return another document within the border; None if it would not hold."""
        ends = self.closing[:3] if self.opening.startswith(("`", "~")) else self.closing
        if any(line.startswith(ends) for line in document.split("\n")):
            return None
        return f"{self.opening}\n{document}\n{self.closing}"


class _Block(Frozen):
    start: int
    end: int
    """The line of the closing border."""


def find_edit(text: str, *, min_tokens: int = MIN_TOKENS) -> EditRequest | None:
    """Return what is to be changed, if all that the text asks for is that.

    The document is bordered by a code fence or by ``<document>``, ``<file>``, ``<code>`` or
    ``<content>`` on lines of their own. There is one of at least ``min_tokens``, and nothing else
    of a size that could be meant.
    """
    if len(text) < min_tokens * CHARS_PER_TOKEN or "\r" in text:
        return None
    lines = text.split("\n")
    blocks = _find_blocks(lines)
    if not blocks:
        return None
    bodies = ["\n".join(lines[block.start + 1 : block.end]) for block in blocks]
    largest = max(range(len(blocks)), key=lambda number: len(bodies[number]))
    document, block = bodies[largest], blocks[largest]
    others = sum(map(len, bodies)) - len(document)
    if len(document) < min_tokens * CHARS_PER_TOKEN or others * _SNIPPET_SHARE > len(document):
        return None
    if has_markers(document) or not _asks_to_edit(_outside(lines, blocks)):
        return None
    return EditRequest(
        document=document, opening=lines[block.start].rstrip(), closing=lines[block.end].rstrip()
    )


def _find_blocks(lines: list[str]) -> list[_Block] | None:
    """Return the bordered parts; None where a border is unclear."""
    blocks: list[_Block] = []
    at = 0
    while at < len(lines):
        opening = _OPENING.fullmatch(lines[at])
        if opening is None:
            at += 1
            continue
        end = _closing(lines, at, opening)
        if end is None:
            return None
        blocks.append(_Block(start=at, end=end))
        at = end + 1
    return blocks


def _closing(lines: list[str], start: int, opening: re.Match[str]) -> int | None:
    """Return the line that closes a border, if no line within could be one of the same kind."""
    fence, tag = opening[1], opening[3]
    begins, closes = (fence[:3], fence) if fence else (f"<{tag}", f"</{tag}>")
    for number in range(start + 1, len(lines)):
        line = lines[number]
        if line.rstrip() == closes:
            return number
        if line.startswith(begins) or (tag and number == start + 1 and line.startswith("<")):
            return None
    return None


def _outside(lines: list[str], blocks: list[_Block]) -> str:
    words: list[str] = []
    at = 0
    for block in blocks:
        words += lines[at : block.start]
        at = block.end + 1
    return "\n".join((*words, *lines[at:])).strip()


def _asks_to_edit(words: str) -> bool:
    if not 0 < len(words) <= _MAX_WORDS_CHARS or _OTHER_WISH.search(words):
        return False
    questions = _QUESTION.findall(words)
    return _VERB.search(words) is not None and all(_POLITE.match(each) for each in questions)


def may_edit(asked: CanonicalRequest, edit: EditRequest) -> bool:
    """Tell whether an answer may be made of blocks: it is plain text, and has room for it all."""
    document = len(edit.document) // CHARS_PER_TOKEN
    return (
        asked.choices == 1
        and not (asked.tools or asked.stop or asked.logprobs or asked.extra.get("prediction"))
        and (asked.response_format is None or asked.response_format.kind == "text")
        and (asked.max_tokens is None or asked.max_tokens > _ROOM * document)
    )
