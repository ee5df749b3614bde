"""Asking for short answers: whom, in which words, and where in the prompt. Pure.

The words are constant and stand at the end of the system text, so the prefix that a provider keeps
of a conversation survives. Whether a conversation is asked depends on what it begins with, so they
neither come nor go in the middle of it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from headstart.canonical_request import TextPart

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headstart.canonical_request import CanonicalRequest, Message, ReasoningWish

LEVELS = (
    "Answer directly.",
    "Answer directly, in as few sentences as a complete answer needs.",
    "Answer in at most three short sentences, or in a short list.",
)
"""By level, from 1 on."""
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
"""Two numbers may be a sum, or one in words."""
_THINKING_MODEL = re.compile(
    r"(?:^|[/.-])(?:o[134]|r1|qwq)(?:[-:.]|$)|gpt-5|reason|think", re.IGNORECASE
)
_EDGE = 2000
"""Characters of a message's beginning and end that are read: what it asks stands there."""
_UNTHINKING = ("none", "minimal")


def refuse_concise(asked: CanonicalRequest) -> str | None:
    """Return why a request's model must not be asked for a short answer, or None.

    Tools, forms, code and reasoning suffer from it; whoever speaks of length knows better; and
    what is not known to be English is left alone. What is unclear is refused.
    """
    if asked.tools:
        return "tools"
    if asked.response_format is not None and asked.response_format.kind != "text":
        return "format"
    if _thinks(asked.reasoning) or _THINKING_MODEL.search(asked.model):
        return "reasoning"
    if asked.extra.get("prediction") or not asked.messages or asked.messages[-1].role != "user":
        return "no-question"
    return _refuse_opening(asked.messages)


def _refuse_opening(messages: Sequence[Message]) -> str | None:
    """Judge a conversation by its first user message, and by what stands above that.

    Whatever comes later, taking back the words would cost the provider's cache of all of it.
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


def _thinks(wish: ReasoningWish | None) -> bool:
    return wish is not None and wish.enabled is not False and wish.effort not in _UNTHINKING


def directive(level: int, *, examples: bool) -> str:
    """Return the words that ask for a short answer; ``level`` is 1 to 3."""
    return LEVELS[level - 1] + _ALWAYS + (EXAMPLES if examples else "")


def with_directive(document: dict[str, Any], dialect: str, words: str) -> dict[str, Any] | None:
    """Return the request with the words at the end of its system text; None: no place for them.

    Blocks of text stay as they are, and so do their marks for a provider's cache.
    """
    match dialect:
        case "anthropic-messages":
            system = _extended(document.get("system"), {"type": "text", "text": words})
            return None if system is None else {**document, "system": system}
        case "gemini-generate":
            return _with_gemini(document, words)
        case "openai-chat":
            return _with_openai(document, words)
    return None


def concise_transform(level: int) -> str:
    """Return the transform that says how short the model was asked to be."""
    return f"concise:{level}"


def refuses_concise(transforms: Iterable[str], level: int) -> bool:
    """Must an answer with these transforms not serve a route of this level (0: off)?

    An answer that nobody asked to be short serves every route.
    """
    asked = [each for each in transforms if each.startswith("concise:")]
    return any(each != concise_transform(level) for each in asked)


def _with_openai(document: dict[str, Any], words: str) -> dict[str, Any] | None:
    messages = document["messages"]
    place = 0
    while place < len(messages) and messages[place].get("role") in ("system", "developer"):
        place += 1
    if not place:
        first = {"role": "system", "content": words}
        return {**document, "messages": [first, *messages]}
    last = messages[place - 1]
    content = _extended(last.get("content"), {"type": "text", "text": words})
    if content is None:
        return None
    extended = {**last, "content": content}
    return {**document, "messages": [*messages[: place - 1], extended, *messages[place:]]}


def _with_gemini(document: dict[str, Any], words: str) -> dict[str, Any] | None:
    system = document.get("systemInstruction", {})
    parts = system.get("parts", []) if isinstance(system, dict) else None
    if not isinstance(parts, list):
        return None
    extended = {**system, "parts": [*parts, {"text": words}]}
    return {**document, "systemInstruction": extended}


def _extended(content: Any, block: dict[str, Any]) -> Any:
    """Return system text with more at its end, in its own form; None for a form unknown."""
    if not content and content is not False:
        return block["text"]
    if isinstance(content, str):
        return f"{content}\n\n{block['text']}"
    return [*content, block] if isinstance(content, list) else None
