"""Asking for short answers: whom, in which words, and where in the prompt. Pure.

The words are constant and stand at the end of the system text, so the prefix that a provider keeps
of a conversation survives. Whether a conversation is asked depends on its messages alone, and once
one of them speaks against it, it is not asked again.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from headstart.canonical_request import TextPart

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headstart.canonical_request import CanonicalRequest, Message, ReasoningWish

LEVELS = (
    "Answer directly.",
    "Answer directly, in as few sentences as a complete answer needs.",
    "Answer in at most three short sentences, or in a short list.",
)
"""By level, from 1 on."""
_ALWAYS = (
    " No preamble, no repetition, no closing remarks. Leave out nothing that was asked for, and "
    "keep the language and the form that were asked for."
)
EXAMPLES = """

Answers of the right length:
Question: Why is the sky blue?
Answer: Air scatters blue light more than red, so blue reaches us from all over the sky.
Question: Which ports does FTP use?
Answer: 21 for commands; 20 for data in active mode, a negotiated one in passive mode."""

_CODE = re.compile(
    r"```|\b(?:code|coding|function|script|program|regex|regexp|sql|query|html|css|bash|shell|"
    r"command|python|javascript|typescript|java|rust|golang|c\+\+|compile|compiler|debug|"
    r"stack ?trace|traceback|exception|refactor|unit tests?|api|class|algorithm|implement|"
    r"snippet|syntax|dockerfile|makefile|git|diff|patch)\b",
    re.IGNORECASE,
)
_FORM = re.compile(
    r"\b(?:json|yaml|xml|csv|schema|table|markdown|format(?:ted)?|template|fields?|keys?)\b",
    re.IGNORECASE,
)
_REASONING = re.compile(
    r"\b(?:step[- ]by[- ]step|reason(?:ing)?|think|prove|proof|derive|solve|calculate|compute|"
    r"equation|integral|derivative|probability|math\w*|how (?:many|much|far|long)|percent(?:age)?|"
    r"analy[sz]e|compare|evaluate|puzzle|riddle)\b|\d\s*[-+*/^=%]\s*\d",
    re.IGNORECASE,
)
_LENGTH = re.compile(
    r"\b(?:detail(?:s|ed)?|comprehensive|thorough(?:ly)?|in[- ]depth|elaborate|at length|complete|"
    r"full|entire|every|all|list|essay|article|story|poem|letter|e-?mails?|report|blog|speech|"
    r"script|chapter|draft|write|rewrite|rephrase|paraphrase|translate|summar\w+|edit|proofread|"
    r"verbatim|transcri\w+|words|sentences|paragraphs?|pages?|short(?:er|ly)?|brief(?:ly)?|"
    r"concise(?:ly)?|long(?:er)?)\b",
    re.IGNORECASE,
)
_ENGLISH = re.compile(
    r"\b(?:the|is|are|was|what|how|why|who|where|when|which|does|do|can|could|should|my|your|of|"
    r"for|with|this|that|tell|explain)\b",
    re.IGNORECASE,
)
_THINKING_MODEL = re.compile(
    r"(?:^|[/.-])(?:o[134]|r1|qwq)(?:[-:.]|$)|gpt-5|reason|think", re.IGNORECASE
)
_EDGE = 2000
"""Characters of a message's beginning and end that are read: what it asks stands there."""
_AGAINST = (("code", _CODE), ("format", _FORM), ("reasoning", _REASONING), ("length", _LENGTH))
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
    return _refuse_texts(asked.messages)


def _refuse_texts(messages: Iterable[Message]) -> str | None:
    english = False
    for message in messages:
        text = "\n".join(part.text for part in message.parts if isinstance(part, TextPart))
        if "```" in text:
            return "code"
        if message.role == "assistant":
            continue
        edges = text if len(text) <= 2 * _EDGE else f"{text[:_EDGE]}\n{text[-_EDGE:]}"
        if message.role == "user":
            english = english or (edges.isascii() and _ENGLISH.search(edges) is not None)
            if not english:
                return "language"
            refusal = next((why for why, pattern in _AGAINST if pattern.search(edges)), None)
        else:
            refusal = "format" if _FORM.search(edges) else None
        if refusal is not None:
            return refusal
    return None


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
