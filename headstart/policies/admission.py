"""Decides which requests the cache looks up, and which answers it stores and serves.

Each refusal is a short, stable reason.
"""

from __future__ import annotations

import math
import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import msgspec

from headstart.dialects.registry import FORMS, refuse_in_dialect
from headstart.errors import ConfigError
from headstart.types import (
    CONTENT_BLOCKS,
    UNDECODABLE,
    Completion,
    Refusal,
    Text,
    ToolCall,
    json_or_none,
    word_classes,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from headstart.dialects.request_form import RequestForm
    from headstart.types import ChatRequest, Choice, Entry

_CLEAN = frozenset({"stop", "end_turn", "stop_sequence", "complete", "eos", "eos_token"})
"""Finish reasons of an answer that came to its own end, in the spelling of any provider."""

_CUT, _CALLS = "length", "tool-calls"
_FINISH_REASONS = word_classes(
    {
        _CUT: "length max_tokens model_context_window_exceeded",
        _CALLS: "tool_calls tool_call tool_use function_call",
        "content-filter": "content_filter safety",
        "refusal": "refusal",
    }
)

_FORCING = {"tool_choice", "function_call", "toolConfig"}
"""Fields that can force the call of a tool."""
_TELLING_OF_PROMPT = {"return_token_ids", "prompt_logprobs", "return_prompt_text", "echo"}
"""Fields of vLLM and others by which an answer repeats its own prompt, or the prompt's tokens."""

MOST_SHARED_CHARACTERS = 32_768
"""Longest text that users may share. Encoders read less, and searching this much text for personal
data takes 5 ms."""


class Admission:
    """The default admission policy (``docs/cache-key.md``).

    ``sampled`` decides about requests for random answers: ``"always"`` caches them like others,
    ``"deterministic"`` caches only temperature 0 or a seed, ``"variants:k"`` keeps k answers of
    each. With ``share_users`` several users share one scope. Then a request that is personal, or
    contains the results of a tool, gets only the answer to an exact repeat. Raises ConfigError for
    another value of ``sampled``.
    """

    def __init__(self, sampled: str = "always", *, share_users: bool = False) -> None:
        self._deterministic_only = sampled == "deterministic"
        self._variants = _parse_variants(sampled)
        self._share_users = share_users

    def variants(self, request: ChatRequest) -> int:
        """Return how many answers to keep of this request (see ``key.variant``)."""
        return self._variants if self._variants > 1 and _is_sampled(request) else 1

    def refuse_lookup(self, request: ChatRequest) -> str | None:
        """Refuse requests that must bypass the cache: no lookup, and no store."""
        if request.duplicate_keys:
            return "duplicate-keys"
        if request.max_tokens == 0:
            return "cache-warming"
        reason = FORMS[request.dialect].work_beside_text(request.document)
        if reason is None and self._deterministic_only and _is_sampled(request):
            return "sampled"
        return reason

    def refuse_semantic(self, request: ChatRequest) -> str | None:
        """Refuse requests that only the answer to an exact repeat may answer."""
        if request.query is None:
            return "no-user-text"
        if not request.query.strip():
            return "blank"
        for name in _TELLING_OF_PROMPT & request.document.keys():
            value = request.document[name]
            if value is not None and value is not False:  # 0 log probabilities are some
                return "tells-of-prompt"
        return self._refuse_to_share(request, request.query) if self._share_users else None

    def _refuse_to_share(self, request: ChatRequest, query: str) -> str | None:
        """Refuse requests whose answer must not reach another user by similarity."""
        if len(query) > MOST_SHARED_CHARACTERS:
            return "too-long"
        if FORMS[request.dialect].has_tool_results(request.document):
            return "tool-results"
        return "personal" if is_personal(query) else None

    def refuse_store(
        self, request: ChatRequest, answer: Completion, tools: Sequence[str] = (), tokens: int = 0
    ) -> str | None:
        """Refuse answers that are not whole, not text, or not what the request asked for.

        ``refuse_lookup`` must have accepted the request. Calls of the ``tools`` count as text. An
        answer with as many ``tokens`` as the request allows may have been cut, although some
        servers call it complete (llama.cpp's ``/v1/responses``). It is refused, because the limit
        is not part of the key: it would answer requests with a higher limit.
        """
        if len(answer.choices) < request.choices:
            return "too-few-choices"
        if "moderation" in answer.extra and _is_flagged(answer.extra["moderation"]):
            return "moderation"
        form = FORMS[request.dialect]
        for choice in answer.choices:
            reason = _refuse_choice(choice, form, request.document, tools)
            if reason is not None:
                return reason
        if (
            _FORCING & request.document.keys()
            and form.forces_call(request.document)
            and not all(map(_has_call, answer.choices))
        ):
            return "no-tool-call"
        limit = request.max_tokens
        if limit is None or form.keeps_cut_answers:
            return None
        return None if tokens < limit * request.choices else _CUT

    def refuse_serve(
        self, request: ChatRequest, entry: Entry, tools: Sequence[str] = ()
    ) -> str | None:
        """Compare the request fields that are not in the key with the stored answer.

        A complete answer of T tokens is right for every limit of at least T. Of n choices, the
        first n' answer a request for n' choices. Log-probabilities can be left out of an answer,
        but not added.
        """
        answer = entry.answer
        if not isinstance(answer, Completion):
            return None
        lost = None if entry.dialect == request.dialect else refuse_in_dialect(request, entry)
        if lost is not None or len(answer.choices) < request.choices:
            return lost or "too-few-choices"
        called = answer.called_tools
        if called and not _all_listed(called, tools):
            return _CALLS
        if request.logprobs and not FORMS[request.dialect].has_logprobs(answer, request.document):
            return "too-few-logprobs"
        limit = request.max_tokens
        if limit is None:
            return None
        tokens = entry.origin.completion_tokens
        if len(answer.choices) > 1:
            tokens = _tokens_of_longest(answer, tokens)
        return _refuse_length(limit, tokens)


NEVER_STORED = "never-stored"
"""Why a text that matches ``cache.never_stored`` is not stored."""


def has_match(value: object, expressions: Sequence[re.Pattern[str]]) -> bool:
    """Return whether an expression matches a string inside a JSON value.

    Bytes may be JSON, in which strings are escaped, or plain text. The same holds for a string that
    is JSON itself, such as the arguments of a tool call.
    """
    match value:
        case str():
            found = any(each.search(value) is not None for each in expressions)
            return found or (
                _is_escaped(value) and has_match(json_or_none(value, object), expressions)
            )
        case bytes():
            try:
                return has_match(msgspec.json.decode(value), expressions)
            except UNDECODABLE:
                return has_match(value.decode("utf-8", "replace"), expressions)
        case dict():
            return any(has_match(each, expressions) for pair in value.items() for each in pair)
        case list() | tuple():
            return any(has_match(each, expressions) for each in value)
    return False


def _is_escaped(text: str) -> bool:
    return "\\" in text and text.lstrip()[:1] in ("{", "[")


def _refuse_length(limit: int, tokens: int) -> str | None:
    if tokens <= 0:
        return "unknown-length"
    return "longer-than-limit" if tokens > limit else None


def _tokens_of_longest(answer: Completion, tokens: int) -> int:
    """Return the tokens of the longest choice, because a limit is one of each choice.

    Providers report the sum over all choices: it is divided as the characters are.
    """
    sizes = [choice.size for choice in answer.choices]
    if not any(sizes):
        return tokens
    return math.ceil(tokens * max(sizes) / sum(sizes))


def _parse_variants(sampled: str) -> int:
    if sampled in ("always", "deterministic"):
        return 1
    kind, _, number = sampled.partition(":")
    if kind == "variants" and number.isascii() and number.isdigit() and int(number) > 0:
        return int(number)
    raise ConfigError(
        f'cache.sampled = "{sampled}": use "always", "deterministic" or "variants:k" with k >= 1'
    )


def _is_sampled(request: ChatRequest) -> bool:
    settings = FORMS[request.dialect].sampling(request.document)
    return settings.get("temperature") != 0 and settings.get("seed") is None


def _is_flagged(moderation: object) -> bool:
    """Look for ``flagged: true`` at any depth, as its place differs by provider."""
    if isinstance(moderation, dict):
        return moderation.get("flagged") is True or any(map(_is_flagged, moderation.values()))
    return isinstance(moderation, list) and any(map(_is_flagged, moderation))


_NO_CHARACTER = "\ufffd"
"""The replacement character, which decoders write for invalid bytes (``decode_document``)."""


def _refuse_choice(
    choice: Choice, form: RequestForm, asked: dict[str, Any], tools: Sequence[str]
) -> str | None:
    """Refuse a choice of the answer to the request ``asked``."""
    calls, said, text = [], "", ""
    for part in choice.parts:
        if isinstance(part, Text):
            text += part.text
        elif isinstance(part, ToolCall):
            calls.append(part)
            said += part.arguments
        else:
            said += part.text
    if _NO_CHARACTER in text + said:
        return "unreadable"  # it may replace half of a surrogate pair, which a hit could not repeat
    replays = bool(calls) and _all_listed([call.name for call in calls], tools)
    reason = _refuse_finish(choice)
    if (replays and reason == _CALLS) or (form.keeps_cut_answers and reason == _CUT):
        reason = None
    reason = reason or _refuse_content(choice, form, replays=replays)
    if reason is not None:
        return reason
    if replays:
        return "broken-format" if any(map(_is_broken, calls)) else None
    if not text.strip():
        return "empty"
    response_format = form.response_format(asked)
    broken = response_format is not None and breaks_format(text, response_format)
    return "broken-format" if broken else None


def _has_call(choice: Choice) -> bool:
    return any(isinstance(part, ToolCall) for part in choice.parts)


def _all_listed(names: Iterable[str], tools: Sequence[str]) -> bool:
    """Tell whether each of these tools has a pattern."""
    return all(any(fnmatchcase(name, pattern) for pattern in tools) for name in names)


def _is_broken(call: ToolCall) -> bool:
    """Tell whether the arguments of a call are not valid JSON, although they have to be."""
    is_json = call.kind != "custom" and bool(call.arguments)
    return is_json and _breaks_schema(call.arguments, {"type": "object"})


def _refuse_finish(choice: Choice) -> str | None:
    for finish in (choice.native_finish, choice.finish):
        if finish is not None and finish.lower() not in _CLEAN:
            return _FINISH_REASONS.get(finish.lower(), "unclean-finish")
    return None


def _refuse_content(choice: Choice, form: RequestForm, *, replays: bool) -> str | None:
    kinds = set(map(type, choice.parts))
    if ToolCall in kinds and not replays:
        return _CALLS
    if Refusal in kinds:
        return "refusal"
    if choice.extra.get("audio") is not None:
        return "audio"
    for block in choice.extra.get(CONTENT_BLOCKS, ()):
        kind = block.get("type", "text")
        if not (isinstance(kind, str) and kind in form.own_blocks):
            return "hosted-tools"
    # a hosted search leaves its sources here even when the request did not name a tool
    sources = (choice.extra.get("annotations"), *map(choice.beside.get, form.sources))
    return "hosted-tools" if any(sources) else None


# --- formats -------------------------------------------------------------------------------------

_JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}


def breaks_format(text: str, response_format: object) -> bool:
    """Return True when ``text`` is not the JSON that was asked for.

    ``json_object`` must be a JSON object. ``json_schema`` must be JSON of the schema's top-level
    type with its required properties, each of its declared type. Deeper levels are not checked: the
    strict mode of providers enforces them, and other modes never promised them.
    """
    match response_format:
        case {"type": "json_object"}:
            return _breaks_schema(text, {"type": "object"})
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return _breaks_schema(text, schema)
        case {"type": "json_schema", "schema": dict(schema)}:
            return _breaks_schema(text, schema)
        case {"type": "json_schema"}:
            return _breaks_schema(text, {})
        case _:
            return False


def _breaks_schema(text: str, schema: dict[str, Any]) -> bool:
    try:
        value = msgspec.json.decode(text)
    except UNDECODABLE:
        return True
    if not _is_of_type(value, schema.get("type")):
        return True
    if not isinstance(value, dict):
        return False
    required = schema.get("required")
    names = required if isinstance(required, list) else ()
    if any(isinstance(name, str) and name not in value for name in names):
        return True
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return False
    return any(
        isinstance(rule, dict) and name in value and not _is_of_type(value[name], rule.get("type"))
        for name, rule in properties.items()
    )


def _is_of_type(value: object, declared: object) -> bool:
    """Compare with a JSON Schema type or a list of them. Unknown types accept anything.

    Gemini's own schemas write types in capitals.
    """
    if isinstance(declared, list):
        return any(_is_of_type(value, one) for one in declared)
    declared = declared.lower() if isinstance(declared, str) else ""
    expected = _JSON_TYPES.get(declared)
    if expected is None:
        return True
    if isinstance(value, bool):
        return declared == "boolean"
    if declared == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, expected)


# --- personal data -------------------------------------------------------------------------------

_PERSONAL_ACTIONS = (
    r"made|did|placed|ordered|bought|purchased|paid|sent|received|got|booked|cancell?ed|returned"
    r"|requested|submitted|applied|added|deposited|withdrew|transferred|lost|owed?|earn(?:ed)?"
    r"|signed|registered|subscribed"
)
_PERSONAL_WORDING = re.compile(
    r"\b(?:my|mine|our|ours|me|myself|ourselves|us"
    r"|(?:i|we)(?:['\u2019](?:m|ve|d|ll|re)| am| are| have| had| was| were)"
    rf"|(?:i|we) (?:just |already |recently |never |still )?(?:{_PERSONAL_ACTIONS})"
    r"|(?:am|are|have|had|was|were|did|do|will) (?:i|we) (?:have|owe|get|earn|been|still|\w+ed))\b",
    re.IGNORECASE,
)
_EMAIL = re.compile(r"[\w.+-]@[\w-]+\.\w")
_PHONE = re.compile(
    r"(?<![\w.+])(?<!\d[ -])"
    r"(?:(?:\+|00)\d(?:[ ().-]{0,2}\d){7,13}"
    r"|\(?\d{3}\)?[ .-]\d{3}[ .-]\d{4}"
    r"|0\d{2,4}[ -]\d{3,4}[ -]?\d{3,4})(?!\w)"
)
_REFERENCE = re.compile(
    r"(?:#|\b(?:order|ticket|case|invoice|booking|reservation|tracking|customer|account|member"
    r"|policy|claim|reference|ref|confirmation)\s*(?:(?:number|no\.?|id|code|#)\s*)?(?:[:#]\s*)?)"
    r"(?=(?:[a-z-]{0,64}\d){3})[a-z0-9-]{4,}\b"
    r"|\b[A-Z]{2,5}-\d{4,}\b",
    re.IGNORECASE,
)
_CARD = re.compile(r"(?<![\d-])\d(?:[ -]?\d){12,18}(?![\d-])")
_IBAN = re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]){11,30}\b", re.IGNORECASE | re.ASCII)
_CARD_BASE, _SHORTEST_CARD = 10, 13
_IBAN_BASE, _SHORTEST_IBAN = 97, 15


def is_personal(text: str) -> bool:
    """Tell whether a text is about its writer, or has data that identify a person.

    The patterns match more than necessary on purpose: a miss costs a call, but a wrong hit shows
    one user the data of another.
    """
    return _PERSONAL_WORDING.search(text) is not None or holds_identity(text)


def holds_identity(text: str) -> bool:
    """Tell whether a text holds an email address, a phone, card, bank or case number."""
    if "@" in text and _EMAIL.search(text):
        return True
    if not any(map(str.isdigit, text)):
        return False
    return bool(
        _PHONE.search(text)
        or _REFERENCE.search(text)
        or any(_is_card(digits) for digits in _beginnings(_CARD, text))
        or any(_is_iban(number) for number in _beginnings(_IBAN, text))
    )


def _beginnings(pattern: re.Pattern[str], text: str) -> Iterator[str]:
    """Yield each match, then the match without its last group, and so on.

    The last group may be the next word.
    """
    for match in pattern.finditer(text):
        groups = re.split(r"[ -]", match[0])
        yield from ("".join(groups[:count]) for count in range(len(groups), 0, -1))


def _is_card(digits: str) -> bool:
    """Luhn's check (ISO/IEC 7812-1): from the right, every second digit counts double."""
    doubled = (sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2])
    total = sum(map(int, digits[-1::-2])) + sum(doubled)
    return len(digits) >= _SHORTEST_CARD and total % _CARD_BASE == 0


def _is_iban(number: str) -> bool:
    """Check an IBAN (ISO 13616): with its first four characters at the end, it is 1 modulo 97."""
    moved = "".join(str(int(each, 36)) for each in number[4:] + number[:4])
    return len(number) >= _SHORTEST_IBAN and int(moved) % _IBAN_BASE == 1
