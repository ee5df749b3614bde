"""The values that providers refused, and how later requests are sent without them.

A provider names the refused field in its error, as the ``param`` of the error document or in the
text. The patterns below find such names, and the largest allowed limit if the error states it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from headstart.types import json_or_none, word_classes

if TYPE_CHECKING:
    from collections.abc import Iterable

_THINKING = {
    "reasoning_effort": "reasoning_effort|effort|thinking",
    "reasoning": "reasoning|reasoning_effort|effort|thinking",
    "thinking": "thinking",
    "output_config": "output_config|effort",
    "generationConfig.thinkingConfig": "thinking|thinking_(?:config|budget|level)",
    "additionalModelRequestFields.thinking": "thinking",
    "outputConfig.effort": "effort",
}
"""The fields that control thinking, each with a pattern of its names in errors. A model may refuse
another field only together with one of them."""
_SAMPLING = word_classes(
    {
        "verbosity": "verbosity",
        "temperature": "temperature inferenceConfig.temperature generationConfig.temperature",
        "top_p": "top_p inferenceConfig.topP generationConfig.topP",
        "top_k": "top_k additionalModelRequestFields.top_k generationConfig.topK",
        "frequency_penalty": "frequency_penalty generationConfig.frequencyPenalty",
        "presence_penalty": "presence_penalty generationConfig.presencePenalty",
        "seed": "seed generationConfig.seed",
        "parallel_tool_calls": "parallel_tool_calls",
    }
)
_TUNING = {
    name: re.compile(rf"(?<![\w.])(?:{words.replace('_', '[_. ]?')})\b", re.IGNORECASE)
    for name, words in {**_THINKING, **_SAMPLING}.items()
}
"""The fields that only tune the answer (thinking and sampling), each with a pattern that finds its
names in errors."""
_NESTED = ("inferenceConfig", "additionalModelRequestFields", "outputConfig", "generationConfig")
"""The objects in which Bedrock and Gemini have these fields. A field in one of them has a joined
name, such as ``generationConfig.seed``."""
_LOWER_EFFORTS = {b'"xhigh"': b'"high"', b'"max"': b'"high"'}
"""The effort to ask for in place of a refused one, both as JSON."""
_PATH_IN_PROMPT = re.compile(r"""['"](?:messages|input|tools)['"], ?[^\])]*""")
"""Matches the path of a value inside the prompt, as servers in Python write it: ["body",
"messages", 0, "seed"]. A name in it is a part of the prompt, not a field of the request."""
_REFUSAL = re.compile(
    r"\b(?:not? (?:\w+ )?support\w*|unsupported|unknown|unrecogni[sz]ed|not permitted|deprecated"
    r"|input should be|only \S{1,9} is allowed|may only be set|cannot both be)\b",
    re.IGNORECASE,
)
_LIMITS = (
    "max_completion_tokens",
    "max_output_tokens",
    "max_tokens",
    "inferenceConfig.maxTokens",
    "generationConfig.maxOutputTokens",
)
"""The fields that limit the length of the answer."""
_LIMIT_TOO_LARGE = re.compile(
    r"(?s)(?=.*(?:max_?(?:\w{1,20}_)?(?:output)?tokens|maximum tokens|(?:in|for) the completion))"
    r"(?=.*(?:too large|at most|less than|greater than|up to|<=|maximum|exceed|range"
    r"|invalid max_tokens))",
    re.IGNORECASE,
)
_EXCEEDS_CONTEXT = re.compile(r"context|tokens`? \+", re.IGNORECASE)
"""Matches errors which say that prompt and limit together exceed the model's context. The largest
limit then depends on the length of the prompt. If a request has no limit, such servers use the rest
of the context."""
_LARGEST_LIMIT = re.compile(
    r"(?:at most|less than or equal to|greater than|up to|limit of|maximum (?:\w+ ){0,4}(?:is|of)"
    r"|\[\d+,|>)"
    r" *[`'\"]?(\d{1,3}(?:,\d{3}){1,3}\b|\d{1,10})",
    re.IGNORECASE,
)
"""Finds the largest limit that a model takes, in the text of an error."""
_REASONING_MISSING = re.compile(
    r"reasoning_content`? (?:in the thinking mode )?(?:must be passed back|is missing)"
    r"|must include `?reasoning_content",
    re.IGNORECASE,
)
_REASONING = "reasoning_content"
_BLANK_REASONING = msgspec.Raw(b'" "')
"""A space, because Kimi refuses an empty text."""
REFUSALS = (400, 422)
"""The statuses with which providers refuse a value."""
_MOST_VALUES = 1_000
"""The number of refused values that are remembered. The oldest is forgotten first."""
_LONG_SEED = 10
"""A seed with this number of digits may be outside a provider's range."""
_ERROR_BYTES = 10_000
"""The number of bytes of an error that are searched."""


class RefusedValue(NamedTuple):
    """A value that a provider refused."""

    model: str
    field: str
    value: bytes
    """What ``_value_key`` returns for it."""


class _Substitute(NamedTuple):
    """The replacement of a refused value."""

    value: bytes | None
    """JSON. None: the field is left out."""
    from_bytes: int = 0
    """It applies to requests of at least this many bytes."""


class _Finding(NamedTuple):
    """A refused value that an error names, and its substitute."""

    refused: RefusedValue
    substitute: _Substitute


_Members: TypeAlias = dict[str, msgspec.Raw]
"""The members of a JSON object. Their values are not decoded."""


class ValueRefused(Exception):
    """A provider refused a value. The request can be sent again without this value."""

    def __init__(self, value: RefusedValue) -> None:
        super().__init__(f"{value.field} was refused")
        self.value = value


class RefusedValues:
    """The values that a provider has refused, with the models.

    No API tells which values a model takes: many models refuse an effort, some models of OpenAI
    refuse a temperature, and clients of Claude allow longer answers than most models write. The
    client of a translated request did not choose its values for this provider. So translated
    requests are sent without the values that the model refused before. Only fields that tune the
    answer are left out or replaced, and limits that are above the model's own limit.
    """

    def __init__(
        self, *, enabled: bool = True, needs_limit: bool = False, kept: Iterable[str] = ()
    ) -> None:
        """Remember nothing yet.

        ``enabled``: False means that every request is sent unchanged. ``needs_limit``: the provider
        refuses requests without a limit. ``kept``: the names of fields that are always sent,
        because the operator set them.
        """
        self._enabled = enabled
        self._needs_limit = needs_limit
        self._kept = frozenset(kept)
        self._substitutes: dict[RefusedValue, _Substitute] = {}

    def check(self, model: str, status: int, body: bytes, error: bytes) -> None:
        """Raise ValueRefused if the answer is an error that names a replaceable value.

        ``body`` is the request, ``status`` and ``error`` are those of its answer.
        """
        if not self._enabled or status not in REFUSALS:
            return
        found = self._find(model, body, error)
        if found is not None:
            if found.refused not in self._substitutes and len(self._substitutes) >= _MOST_VALUES:
                del self._substitutes[next(iter(self._substitutes))]
            self._substitutes[found.refused] = found.substitute
            raise ValueRefused(found.refused)

    def forget(self, value: RefusedValue) -> None:
        """Send a value again from now on, because the request without it was refused, too.

        Then the error contained the field's name by chance, for instance in a quote of the prompt.
        """
        self._substitutes.pop(value, None)

    def _find(self, model: str, body: bytes, error: bytes) -> _Finding | None:
        """Return the refused value that an error names, and its substitute; None: it names none."""
        document = _flattened(body)
        if document is None:
            return None
        text = _PATH_IN_PROMPT.sub("", error[:_ERROR_BYTES].decode("utf-8", "replace"))
        if _REASONING_MISSING.search(text) and _add_reasoning(document):
            return _Finding(RefusedValue(model, _REASONING, b""), _Substitute(None))
        if _LIMIT_TOO_LARGE.match(text):
            found = self._find_limit(model, document, text, len(body))
            if found is not None:
                return found
        name = self._named_tuning(document, _param_of(error), text)
        if name is None:
            return None
        refused = RefusedValue(model, name, _value_key(name, document))
        return _Finding(refused, _Substitute(_lower_effort(document[name])))

    def _find_limit(self, model: str, document: _Members, text: str, size: int) -> _Finding | None:
        """Return the limit that is too large, in a request of ``size`` bytes."""
        depends = _EXCEEDS_CONTEXT.search(text) is not None
        tried = {new.value for old, new in self._substitutes.items() if old.model == model}
        for name in self._limits(document):
            asked = bytes(document[name])
            if asked.isdigit():
                # A substitute that was refused, too, gets no smaller number: each could be refused.
                no_number = depends or asked in tried
                largest = None if no_number else _largest_limit(text, asked)
                if largest is not None or not self._needs_limit:
                    substitute = _Substitute(largest, size if depends else 0)
                    return _Finding(RefusedValue(model, name, asked), substitute)
        return None

    def _named_tuning(self, document: _Members, param: str | None, text: str) -> str | None:
        """Return the tuning field of the request that an error names; None: it names none.

        Without a ``param`` the first field in the error's text counts: the text may name the others
        only to explain why the first one is refused.
        """
        names = self._tuning(document)
        if param is not None:
            field = param.split(".")[0]
            return field if field in names else None
        if _REFUSAL.search(text) is None:
            return None
        found = {name: place for name in names if (place := _TUNING[name].search(text))}
        return min(found, key=lambda name: found[name].start(), default=None)

    def without(self, model: str, body: bytes) -> tuple[bytes, tuple[str, ...]]:
        """Return a request without refused values, and the names of the fields that changed."""
        document = _flattened(body) if self._substitutes else None
        if document is None:
            return body, ()
        changed = []
        for name in (*self._tuning(document), *self._limits(document)):
            sent = bytes(document[name])
            while new := self._substitutes.get(
                RefusedValue(model, name, _value_key(name, document))
            ):
                if len(body) < new.from_bytes:
                    break
                if new.value is None:
                    del document[name]
                    break
                document[name] = msgspec.Raw(new.value)
            if bytes(document.get(name, b"")) != sent:
                changed.append(name)
        if RefusedValue(model, _REASONING, b"") in self._substitutes and _add_reasoning(document):
            changed.append(_REASONING)
        return (_nested_again(document), tuple(changed)) if changed else (body, ())

    def _tuning(self, document: _Members) -> list[str]:
        """Return the names of the tuning fields of a request that may change.

        Anthropic's ``output_config`` may also have the form of the answer. Then it is no tuning
        field, because the client needs this form.
        """
        names = [name for name in _TUNING if self._may_change(name, document)]
        output = _members(document.get("output_config", b"")) or {}
        return [name for name in names if name != "output_config" or output.keys() == {"effort"}]

    def _limits(self, document: _Members) -> list[str]:
        """Return the names of the limits of a request that may change."""
        return [name for name in _LIMITS if self._may_change(name, document)]

    def _may_change(self, name: str, document: _Members) -> bool:
        return name in document and name.partition(".")[0] not in self._kept


def _value_key(name: str, document: _Members) -> bytes:
    """Return the bytes that identify a value: its JSON, and for sampling the thinking fields, too.

    A model may take a temperature without thinking and refuse the same temperature with thinking. A
    model that refuses a seed of fewer than ``_LONG_SEED`` digits takes no seed, so all such seeds
    are one value. A longer seed may only be outside the model's range.
    """
    value = bytes(document[name])
    if name in _LIMITS or name in _THINKING:
        return value
    if name.endswith("seed") and value.isdigit() and len(value) < _LONG_SEED:
        value = b""
    thinking = {each: document[each] for each in _THINKING if each in document}
    if "output_config" in thinking:  # the form of the answer may stand beside the effort
        effort = (_members(thinking["output_config"]) or {}).get("effort", msgspec.Raw(b"null"))
        thinking["output_config"] = effort
    return value + msgspec.json.encode(thinking)


def _flattened(body: bytes) -> _Members | None:
    """Return the fields of a request, those in the objects ``_NESTED`` under joined names.

    None: the request is no JSON object.
    """
    document = _members(body)
    if document is None:
        return None
    for outer in _NESTED:
        inner = _members(document.pop(outer, b"")) or {}
        document.update((f"{outer}.{name}", value) for name, value in inner.items())
    return document


def _nested_again(document: _Members) -> bytes:
    """Return the JSON of a request from the fields in the form of ``_flattened``."""
    nested: dict[str, Any] = {}
    for name, value in document.items():
        outer, _, inner = name.partition(".")
        if outer in _NESTED and inner:
            nested.setdefault(outer, {})[inner] = value
        else:
            nested[name] = value
    return msgspec.json.encode(nested)


def _add_reasoning(document: _Members) -> bool:
    """Add a blank reasoning, in place, to each assistant message that has none.

    Returns whether a message had none. While DeepSeek and Kimi think, they refuse messages without
    reasoning. A client has no reasoning of a message if it did not ask for it, or if another
    provider wrote the message.
    """
    messages = msgspec.json.decode(document.get("messages", b"[]"), type=list[_Members])
    turns = [each for each in messages if bytes(each.get("role", b"")) == b'"assistant"']
    without = [turn for turn in turns if _REASONING not in turn]
    for turn in without:
        turn[_REASONING] = _BLANK_REASONING
    if without:
        document["messages"] = msgspec.Raw(msgspec.json.encode(messages))
    return bool(without)


def _param_of(error: bytes) -> str | None:
    """Return the field that an error document names as its ``param``, or None."""
    document = _members(error) or {}
    inner = _members(document.get("error", b"")) or document
    return json_or_none(inner.get("param", b""), str) or None


def _largest_limit(text: str, asked: bytes) -> bytes | None:
    """Return the largest limit that a model takes, from the text of an error.

    None: the text states no limit, or none below ``asked``.
    """
    found = _LARGEST_LIMIT.search(text)
    largest = 0 if found is None else int(found[1].replace(",", ""))
    return b"%d" % largest if 0 < largest < int(asked) else None


def _lower_effort(raw: msgspec.Raw) -> bytes | None:
    """Return the JSON with the next lower effort; None: leave the field out."""
    value = bytes(raw)
    members = _members(value) or {}
    effort = _LOWER_EFFORTS.get(bytes(members.get("effort", b"")))
    if effort is None:
        return _LOWER_EFFORTS.get(value)
    return msgspec.json.encode({**members, "effort": msgspec.Raw(effort)})


def _members(data: bytes | msgspec.Raw) -> _Members | None:
    return json_or_none(data, _Members)
