"""Requests for short answers: their words, and the conversations that get them. Pure.

The words are constant and stand at the end of the system text, so a provider's cache of the
conversation survives. The beginning of a conversation decides whether it gets the words, so they
neither appear nor vanish in the middle of it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from headstart.canonical_request import TextPart

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headstart.canonical_request import CanonicalRequest, Message, ReasoningOptions

LEVELS = (
    "Answer directly.",
    "Answer directly, in as few sentences as a complete answer needs.",
    "Answer in at most three short sentences, or in a short list.",
)
"""The words by level, from level 1 on."""
_ALWAYS = (
    " No preamble, no repetition, no closing remarks. Leave out nothing that was asked for, and "
    "keep the language, the form and the length that were asked for."
)
EXAMPLES = """

Answers of the right length:
Question: Why is the sky blue?
Answer: Air scatters blue light more than red, so blue reaches us from all over the sky.
Question: Which ports does FTP use?
Answer: 21 for commands; 20 for data in active mode, a negotiated one in passive mode."""

_CODE = """
    code coding function functions script scripts program regex regexp sql query queries html css
    bash shell command commands python javascript typescript java rust golang compile compiler debug
    debugging traceback exception refactor test tests api class classes algorithm implement snippet
    syntax dockerfile makefile git diff patch
"""
_FORM = """
    json yaml xml csv schema table tables markdown format formatted template field fields key keys
"""
_REASONING = """
    reason reasoning think prove proof derive solve calculate compute equation equations integral
    derivative probability math maths mathematical percent percentage analyse analyze analysis
    compare evaluate puzzle riddle many much far long
"""
_LENGTH = """
    detail details detailed comprehensive thorough thoroughly depth elaborate length complete full
    entire every all list essay article story poem letter email emails mail report blog speech
    chapter draft write rewrite rephrase paraphrase translate translation summarise summarize
    summary edit proofread verbatim transcribe transcript words sentences paragraph paragraphs page
    pages short shorter shortly brief briefly concise concisely longer
"""
_ENGLISH = """
    the is are was what how why who where when which does do can could should my your of for with
    this that tell explain
"""
_AGAINST = {
    "code": frozenset(_CODE.split()),
    "format": frozenset(_FORM.split()),
    "reasoning": frozenset(_REASONING.split()),
    "length": frozenset(_LENGTH.split()),
}
_ENGLISH_WORDS = frozenset(_ENGLISH.split())
_WORD = re.compile(r"[a-z]+")
_STEPS = re.compile(r"step[ -]by[ -]step|\d\D.*?\d", re.DOTALL)
"""A text with two numbers may ask for a sum."""
_THINKING_MODEL = re.compile(
    r"(?:^|[/.-])(?:o[134]|r1|qwq)(?:[-:.]|$)|gpt-5|reason|think", re.IGNORECASE
)
_EDGE = 2000
"""Number of characters that are read at the beginning and at the end of a message, where the
question stands."""
_UNTHINKING = ("none", "minimal")


def refuse_concise(asked: CanonicalRequest) -> str | None:
    """Return the reason why the model must not be asked for a short answer, or None.

    Brevity harms tool calls, structured answers, code and reasoning. A caller who speaks of length
    decides about it. Texts that may not be English are left alone, and so are unclear cases.
    """
    if asked.tools:
        return "tools"
    if not asked.wants_text:
        return "format"
    if _thinks(asked.reasoning) or _THINKING_MODEL.search(asked.model):
        return "reasoning"
    if asked.extra.get("prediction") or not asked.messages or asked.messages[-1].role != "user":
        return "no-question"
    return _refuse_opening(asked.messages)


def _refuse_opening(messages: Sequence[Message]) -> str | None:
    """Judge a conversation by its first user message and the messages above it.

    Later messages have no say: to take back the words would cost the provider's whole cache.
    """
    first = next(place for place, each in enumerate(messages) if each.role == "user")
    *above, question = [(each.role, _text(each)) for each in messages[: first + 1]]
    if any("```" in text for _, text in (*above, question)):
        return "code"
    if any(_words(text) & _AGAINST["format"] for role, text in above if role != "assistant"):
        return "format"
    edges, words = _edges(question[1]), _words(question[1])
    if not edges.isascii() or words.isdisjoint(_ENGLISH_WORDS):
        return "language"
    for reason, against in _AGAINST.items():
        if words & against:
            return reason
    return "reasoning" if _STEPS.search(edges) else None


def _text(message: Message) -> str:
    return "\n".join(part.text for part in message.parts if isinstance(part, TextPart))


def _edges(text: str) -> str:
    edges = text if len(text) <= 2 * _EDGE else f"{text[:_EDGE]}\n{text[-_EDGE:]}"
    return edges.lower()


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(_edges(text)))


def _thinks(wish: ReasoningOptions | None) -> bool:
    return wish is not None and wish.enabled is not False and wish.effort not in _UNTHINKING


def directive(level: int, *, examples: bool) -> str:
    """Return the words that ask for a short answer. ``level`` is 1 to 3."""
    return LEVELS[level - 1] + _ALWAYS + (EXAMPLES if examples else "")


def concise_transform(level: int) -> str:
    """Return the transform of answers that were asked for at this level."""
    return f"concise:{level}"


def refuses_concise(transforms: Iterable[str], level: int) -> bool:
    """Tell whether an answer with these transforms must not serve a route of this level (0: off).

    An answer of ordinary length serves every route.
    """
    for each in transforms:
        if each.startswith("concise:") and each != concise_transform(level):
            return True
    return False
