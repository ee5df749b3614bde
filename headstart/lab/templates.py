r"""Find the template that retrieval prompts share, and with it the question inside.

Prompts of one template are aligned: the tokens that all of a sample have in common, in order, are
its literal parts. Of the gaps between them one holds the question: mostly a short one that ends
with a question mark. The result is a pattern for ``[[route]] query``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from difflib import SequenceMatcher
from statistics import median
from typing import TYPE_CHECKING

from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

MIN_CHARS = 200
"""Shorter prompts are questions themselves."""
OPENING_CHARS = 24
"""Prompts that begin alike may be of one template."""
MIN_PROMPTS = 8
SAMPLE = 12
"""Prompts that are aligned; the pattern is then tried on all."""
MIN_LITERAL = 12
"""Characters: shorter common parts are chance."""
MIN_TEMPLATE = 80
"""Characters that all share: less is a habit of speech."""
MIN_SHARE = 0.9
"""Of the prompts that begin alike, so many must match."""
MOST_CHARS = 20_000
"""Longer prompts are not aligned: that would take seconds."""
_TOKEN = re.compile(r"\w+|\s+|[^\w\s]")
_SPECIAL = re.compile(r"[.^$*+?{}\[\]\\|()]")
_BREAK = "two tokens"
"""Between blocks: no token of a text is like it."""


class Template(Frozen, frozen=True, kw_only=True):
    """A pattern whose group ``query`` is the question, and how many prompts it matches."""

    pattern: str
    prompts: int
    template_chars: int
    """What all share."""


def find_templates(texts: Sequence[str]) -> tuple[Template, ...]:
    """Return the templates of distinct texts, the most used first."""
    groups: dict[str, list[str]] = defaultdict(list)
    for text in dict.fromkeys(texts):
        if MIN_CHARS <= len(text) <= MOST_CHARS:
            groups[text[:OPENING_CHARS]].append(text)
    found = [_template(group) for group in groups.values() if len(group) >= MIN_PROMPTS]
    return tuple(
        sorted(
            (template for template in found if template is not None),
            key=lambda template: -template.prompts,
        )
    )


def _template(group: Sequence[str]) -> Template | None:
    step = max(1, len(group) // SAMPLE)
    sample = group[::step][:SAMPLE]
    literals = _common(sample)
    if sum(map(len, literals)) < MIN_TEMPLATE:
        return None
    gaps = [found for text in sample if (found := _gaps(text, literals)) is not None]
    place = _question_gap(gaps) if len(gaps) == len(sample) else None
    if place is None:
        return None
    closed = place == len(literals) or not any(each[-1] for each in gaps)
    pattern = _pattern(literals, place, closed=closed)
    compiled = re.compile(pattern)
    matching = sum(compiled.search(text) is not None for text in group)
    if matching < MIN_SHARE * len(group):
        return None
    return Template(pattern=pattern, prompts=matching, template_chars=sum(map(len, literals)))


def _common(sample: Sequence[str]) -> list[str]:
    """Return the literal parts that all texts have in this order."""
    blocks = [_TOKEN.findall(sample[0])]
    for text in sample[1:]:
        blocks = _shared(blocks, _TOKEN.findall(text))
    return ["".join(block) for block in blocks]


def _shared(blocks: Sequence[list[str]], other: Sequence[str]) -> list[list[str]]:
    """Return what of the blocks, in order, a text also has."""
    flat: list[str] = []
    for block in blocks:
        flat += [*block, _BREAK]
    matches = SequenceMatcher(None, flat, other, autojunk=False).get_matching_blocks()
    found = [flat[match.a : match.a + match.size] for match in matches]
    return [block for block in found if len("".join(block)) >= MIN_LITERAL]


def _gaps(text: str, literals: Sequence[str]) -> list[str] | None:
    """Return what stands before, between and after the literals; None if one is missing."""
    gaps = []
    start = 0
    for literal in literals:
        place = text.find(literal, start)
        if place < 0:
            return None
        gaps.append(text[start:place])
        start = place + len(literal)
    return [*gaps, text[start:]]


def _question_gap(gaps: Sequence[Sequence[str]]) -> int | None:
    """Return the gap that varies, and is most like a question: a "?" counts, then brevity."""
    best: tuple[float, float, int] | None = None
    for place, texts in enumerate(zip(*gaps, strict=True)):
        if len(set(texts)) <= len(texts) // 2 or not all(text.strip() for text in texts):
            continue
        asked = sum("?" in text for text in texts) / len(texts)
        candidate = (round(asked, 1), -median(map(len, texts)), place)
        if best is None or candidate > best:
            best = candidate
    return None if best is None else best[2]


def _pattern(literals: Sequence[str], place: int, *, closed: bool) -> str:
    """Return the pattern, of the template's opening and of what stands around the question.

    What stands before it is matched where it comes last: a document may hold it too.
    """
    opening, before, after = literals[:1], literals[max(1, place - 1) : place], literals[place:][:1]
    if place == 0:
        opening = []
    head = r"[\s\S]*".join(_escape(part) for part in (*opening, *before))
    tail = "".join(_escape(part) for part in after)
    ends = closed and len(literals) <= place + 1
    return f"^{head}(?P<query>[\\s\\S]+?){tail}" + ("$" if ends else "")


def _escape(literal: str) -> str:
    return _SPECIAL.sub(r"\\\g<0>", literal).replace("\n", r"\n").replace("\t", r"\t")
