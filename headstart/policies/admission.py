"""What may be looked up, stored and served. Every refusal is a short, stable reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headstart.errors import ConfigError
from headstart.policies.formats import breaks_format, gemini_format
from headstart.policies.personal import is_personal
from headstart.types import CONTENT_BLOCKS, Completion, Refusal, Text, ToolCall

if TYPE_CHECKING:
    from headstart.types import ChatRequest, Choice, Entry

_CLEAN = frozenset({"stop", "end_turn", "stop_sequence", "complete", "eos"})
"""Reasons, in any provider's spelling and case, of an answer that came to its own end."""

_FINISH_REASONS = {
    "length": "length",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_calls": "tool-calls",
    "tool_call": "tool-calls",
    "tool_use": "tool-calls",
    "function_call": "tool-calls",
    "content_filter": "content-filter",
    "safety": "content-filter",
    "refusal": "refusal",
}

_HOSTED = ("mcp_servers", "container")
"""Fields that let the provider run something, if they say anything."""
_TELLING = frozenset(
    {"background", "generationConfig", "modalities", "audio", "web_search_options", "tools"}
).union(_HOSTED)
"""All fields that may be refused: most requests have none of them."""
_OWN_TOOLS = frozenset({"function", "custom"})
"""Tool types that the caller runs; every other type is run by the provider, on live data."""
_OWN_DECLARATIONS = frozenset({"functionDeclarations"})
"""What a Gemini tool holds if the caller runs it; it has no type."""
MOST_SHARED_CHARACTERS = 32_768
"""More than encoders read, and than is searched for what is personal: some 5 ms."""

_OWN_BLOCKS = frozenset({"text", "thinking", "redacted_thinking"})
"""Blocks in which the model itself speaks; the others tell what the provider's tools did."""

_SOURCES = ("groundingMetadata", "urlContextMetadata")
"""Fields beside a Gemini answer that name what its own search found."""
_RESULTS = frozenset({"tool_use_id", "functionResponse"})
"""Fields of a message's part that holds what a tool found."""
_TOOL_ROLES = frozenset({"tool", "function"})
"""Roles of messages that hold what a tool found."""


class Admission:
    """The default admission policy (``docs/cache-key.md``).

    ``sampled`` says what happens to requests that ask for random answers: ``"always"`` caches
    them like others, ``"deterministic"`` caches only temperature 0 or a seed, ``"variants:k"``
    keeps k answers of each. ``share_users`` means that users share a scope: what is personal, or
    rests on a tool's results, is then never answered by another prompt's answer.
    Raises ConfigError for another value of ``sampled``.
    """

    def __init__(self, sampled: str = "always", *, share_users: bool = False) -> None:
        self._deterministic_only = sampled == "deterministic"
        self._variants = _parse_variants(sampled)
        self._share_users = share_users

    def variants(self, request: ChatRequest) -> int:
        """Return how many answers to keep of this request (see ``key.variant``)."""
        return self._variants if self._variants > 1 and _is_sampled(request.document) else 1

    def refuse_lookup(self, request: ChatRequest) -> str | None:
        """Refuse what must bypass the cache altogether, in both directions."""
        if request.duplicate_keys:
            return "duplicate-keys"
        if request.max_tokens == 0:
            return "cache-warming"
        reason = _refuse_fields(request.document)
        if reason is None and self._deterministic_only and _is_sampled(request.document):
            return "sampled"
        return reason

    def refuse_semantic(self, request: ChatRequest) -> str | None:
        """Refuse what only an exact repeat may be answered with."""
        if request.query is None:
            return "no-user-text"
        if not request.query.strip():
            return "blank"
        return self._refuse_to_share(request, request.query) if self._share_users else None

    def _refuse_to_share(self, request: ChatRequest, query: str) -> str | None:
        """Refuse what must not reach another user by likeness."""
        if len(query) > MOST_SHARED_CHARACTERS:
            return "too-long"
        if _has_tool_results(request.document):
            return "tool-results"
        return "personal" if is_personal(query) else None

    def refuse_store(self, request: ChatRequest, answer: Completion) -> str | None:
        """Refuse answers that are not whole, not text, or not what the request asked for."""
        reason = self.refuse_lookup(request)
        if reason is not None:
            return reason
        if len(answer.choices) < request.choices:
            return "too-few-choices"
        if _is_flagged(answer.extra.get("moderation")):
            return "moderation"
        response_format = _format(request.document)
        for choice in answer.choices:
            reason = _refuse_choice(choice, response_format)
            if reason is not None:
                return reason
        return None

    def refuse_serve(self, request: ChatRequest, entry: Entry) -> str | None:
        """Compare the fields that the key leaves out with the stored answer.

        An answer of T tokens that came to its own end is what any limit of at least T gives. The
        first n' of n choices serve a request for n'. Log probabilities can be left out, not made.
        """
        answer = entry.answer
        if not isinstance(answer, Completion):
            return None
        if len(answer.choices) < request.choices:
            return "too-few-choices"
        if request.logprobs and not _has_logprobs(answer, request.document):
            return "too-few-logprobs"
        if request.max_tokens is not None:
            if entry.origin.completion_tokens <= 0:
                return "unknown-length"
            if entry.origin.completion_tokens > request.max_tokens:
                return "longer-than-limit"
        return None


def _parse_variants(sampled: str) -> int:
    if sampled in ("always", "deterministic"):
        return 1
    kind, _, number = sampled.partition(":")
    if kind == "variants" and number.isascii() and number.isdigit() and int(number) > 0:
        return int(number)
    raise ConfigError(
        f'cache.sampled = "{sampled}": use "always", "deterministic" or "variants:k" with k >= 1'
    )


def _settings(document: dict[str, Any]) -> dict[str, Any]:
    """Return where sampling and the answer's form are set: Gemini has an object for them."""
    config = document.get("generationConfig")
    return config if isinstance(config, dict) and "contents" in document else document


def _is_sampled(document: dict[str, Any]) -> bool:
    document = _settings(document)
    return document.get("temperature") != 0 and document.get("seed") is None


def _refuse_fields(document: dict[str, Any]) -> str | None:
    if _TELLING.isdisjoint(document):
        return None
    if document.get("background") is True:
        return "background"
    settings = _settings(document)
    modalities = settings.get("responseModalities") or document.get("modalities")
    if document.get("audio") is not None or _wants_audio(modalities):
        return "audio"
    return "hosted-tools" if _runs_at_provider(document) else None


def _wants_audio(modalities: object) -> bool:
    return isinstance(modalities, list) and ("audio" in modalities or "AUDIO" in modalities)


def _runs_at_provider(document: dict[str, Any]) -> bool:
    if document.get("web_search_options") is not None or any(map(document.get, _HOSTED)):
        return True
    tools = document.get("tools")
    if not isinstance(tools, list):
        return False
    if "contents" in document:
        return any(isinstance(tool, dict) and tool.keys() - _OWN_DECLARATIONS for tool in tools)
    kinds = (tool.get("type", "function") for tool in tools if isinstance(tool, dict))
    return any(_word(kind) not in _OWN_TOOLS for kind in kinds)


def _word(value: object) -> str:
    """Return what names a kind; "" for a value that is no name."""
    return value if isinstance(value, str) else ""


def _has_tool_results(document: dict[str, Any]) -> bool:
    messages = document.get("messages") or document.get("contents")
    if not isinstance(messages, list):
        return False
    return any(_holds_tool_result(each) for each in messages if isinstance(each, dict))


def _holds_tool_result(message: dict[str, Any]) -> bool:
    if str(message.get("role")) in _TOOL_ROLES:
        return True
    content = message.get("content") or message.get("parts")
    parts = content if isinstance(content, list) else ()
    return any(isinstance(part, dict) and not _RESULTS.isdisjoint(part) for part in parts)


def _is_flagged(moderation: object) -> bool:
    """Look for ``flagged: true`` at any depth: its place differs by provider."""
    if isinstance(moderation, dict):
        return moderation.get("flagged") is True or any(map(_is_flagged, moderation.values()))
    return isinstance(moderation, list) and any(map(_is_flagged, moderation))


def _format(document: dict[str, Any]) -> object:
    """Return the form that the answer was to have, whichever field asks for it."""
    settings = _settings(document)
    if settings is not document:
        return gemini_format(settings)
    config = document.get("output_config")
    inner = config.get("format") if isinstance(config, dict) else None
    return inner or document.get("output_format") or document.get("response_format")


def _refuse_choice(choice: Choice, response_format: object) -> str | None:
    reason = _refuse_finish(choice) or _refuse_content(choice)
    if reason is not None:
        return reason
    text = "".join(part.text for part in choice.parts if isinstance(part, Text))
    if not text.strip():
        return "empty"
    return "broken-format" if breaks_format(text, response_format) else None


def _refuse_finish(choice: Choice) -> str | None:
    for finish in (choice.native_finish, choice.finish):
        if finish is not None and finish.lower() not in _CLEAN:
            return _FINISH_REASONS.get(finish.lower(), "unclean-finish")
    return None


def _refuse_content(choice: Choice) -> str | None:
    kinds = {type(part) for part in choice.parts}
    if ToolCall in kinds:
        return "tool-calls"
    if Refusal in kinds:
        return "refusal"
    if choice.extra.get("audio") is not None:
        return "audio"
    blocks = choice.extra.get(CONTENT_BLOCKS, ())
    if any(_word(block.get("type", "text")) not in _OWN_BLOCKS for block in blocks):
        return "hosted-tools"
    # a hosted search leaves its sources here even when the request did not name a tool
    sources = (choice.extra.get("annotations"), *map(choice.beside.get, _SOURCES))
    return "hosted-tools" if any(sources) else None


def _has_logprobs(answer: Completion, document: dict[str, Any]) -> bool:
    if "contents" in document:
        return all(choice.logprobs for choice in answer.choices)  # Gemini's number is in the key
    wanted = document.get("top_logprobs")
    if not isinstance(wanted, int):
        # Together and legacy servers give the number in logprobs itself
        number = document.get("logprobs")
        wanted = number if type(number) is int else 0
    return all(_alternatives(choice) >= wanted for choice in answer.choices)


def _alternatives(choice: Choice) -> int:
    """Return how many alternatives a choice kept for each token; -1 without log probabilities."""
    tokens = (choice.logprobs or {}).get("content")
    if not isinstance(tokens, list):
        return -1
    return max((len(_list(token, "top_logprobs")) for token in tokens), default=0)


def _list(fields: object, name: str) -> list[Any]:
    found = fields.get(name) if isinstance(fields, dict) else None
    return found if isinstance(found, list) else []
