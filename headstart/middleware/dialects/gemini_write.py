"""Gemini's generateContent: a request, written from no dialect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from headstart.canonical_request import Tool, Written
from headstart.errors import InvalidRequest
from headstart.middleware.dialects.gemini_read import NAME
from headstart.middleware.dialects.gemini_thinking import thinking_config, wants_signatures
from headstart.middleware.dialects.gemini_write_contents import ContentWriter
from headstart.middleware.dialects.request_parts import (
    Losses,
    described_schema,
    kept_stops,
    name_results,
    top_level_extra,
)

if TYPE_CHECKING:
    from headstart.canonical_request import CanonicalRequest, Quirks, ResponseFormat, ToolChoice

_MOST_STOPS = 5
_SEEDS = range(-(2**31), 2**31)
"""What the API takes; it refuses a request with more."""
_MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY", "named": "ANY"}
_NAMES = {
    "max_completion_tokens": "maxOutputTokens",
    "max_tokens": "maxOutputTokens",
    "temperature": "temperature",
    "top_p": "topP",
    "top_k": "topK",
    "frequency_penalty": "frequencyPenalty",
    "presence_penalty": "presencePenalty",
    "seed": "seed",
    "stop": "stopSequences",
    "logprobs": "responseLogprobs",
    "top_logprobs": "logprobs",
}
"""The API's names of settings that ``Quirks.drops`` may name."""


def write_request(asked: CanonicalRequest, quirks: Quirks) -> Written:
    """Return the request for Gemini. Raises InvalidRequest (see ``Dialect.write_request``)."""
    losses = Losses(NAME, asked.dialect, refuse=quirks.refuse)
    model = asked.model.removeprefix("models/")
    writer = ContentWriter(losses, signatures=wants_signatures(model))
    system, contents = writer.write(name_results(asked.messages))
    document: dict[str, Any] = {"contents": contents}
    if system:
        document["systemInstruction"] = {"parts": system}
    if asked.tools:
        document["tools"] = _tools(asked, losses)
    if asked.tool_choice is not None:
        document["toolConfig"] = {"functionCallingConfig": _choice(asked.tool_choice)}
    config = _settings(asked, model, quirks, losses)
    _add_extra(document, config, top_level_extra(asked, losses))
    for name in quirks.drops:
        if config.pop(_NAMES.get(name, name), None) is not None or document.pop(name, None):
            losses.drop(name)
    if config:
        document["generationConfig"] = config
    if asked.user is not None:
        losses.drop("user")
    if asked.parallel_tool_calls is False:
        losses.drop("parallel_tool_calls")
    method = b"streamGenerateContent" if asked.stream else b"generateContent"
    return Written(
        path=b"/v1beta/models/%b:%b" % (quote(model, safe="").encode(), method),
        query=b"alt=sse" if asked.stream else b"",
        body=msgspec.json.encode(document),
        dropped=losses.names,
    )


def _settings(
    asked: CanonicalRequest, model: str, quirks: Quirks, losses: Losses
) -> dict[str, Any]:
    if quirks.max_choices is not None and asked.choices > quirks.max_choices:
        raise InvalidRequest(f"n: this upstream gives at most {quirks.max_choices}")
    limit = asked.max_tokens
    config = {
        "maxOutputTokens": quirks.default_max_tokens if limit is None else limit,
        "frequencyPenalty": asked.frequency_penalty,
        "presencePenalty": asked.presence_penalty,
        "seed": asked.seed if asked.seed is None or asked.seed in _SEEDS else None,
        "stopSequences": kept_stops(asked, _MOST_STOPS, losses) or None,
        "candidateCount": asked.choices if asked.choices > 1 else None,
        "responseLogprobs": True if asked.logprobs else None,
        "logprobs": asked.top_logprobs if asked.logprobs else None,
        **_format(asked.response_format),
    }
    if asked.seed is not None and asked.seed not in _SEEDS:
        losses.drop("seed")
    if asked.top_logprobs and not asked.logprobs:
        losses.drop("top_logprobs")
    sampling = {"temperature": asked.temperature, "top_p": asked.top_p, "top_k": asked.top_k}
    for name, value in sampling.items():
        if value is not None and not quirks.sampling:
            losses.drop(name)
        else:
            config[_NAMES[name]] = value
    if asked.reasoning is not None:
        config["thinkingConfig"] = thinking_config(asked.reasoning, model, losses)
    return {name: value for name, value in config.items() if value is not None}


def _add_extra(document: dict[str, Any], config: dict[str, Any], extra: dict[str, Any]) -> None:
    """Put back what the reader of this dialect set aside."""
    for name, value in extra.items():
        if name == "generationConfig":
            config.update(value)
        elif name == "toolConfig":
            document[name] = {**document.get(name, {}), **value}
        elif name == "modalities":
            config["responseModalities"] = [modality.upper() for modality in value]
        else:
            document[name] = value


def _tools(asked: CanonicalRequest, losses: Losses) -> list[dict[str, Any]]:
    functions = []
    hosted = []
    for tool in asked.tools:
        if isinstance(tool, Tool):
            functions.append(_function(tool, losses))
        else:
            hosted.append(losses.foreign(tool))
    declared = [{"functionDeclarations": functions}] if functions else []
    return [*declared, *hosted]


def _function(tool: Tool, losses: Losses) -> dict[str, Any]:
    written: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        written["description"] = tool.description
    if tool.parameters is not None:
        written["parametersJsonSchema"] = tool.parameters
    if tool.strict:
        losses.drop("strict")
    return {**written, **losses.carried(tool.extra)}


def _choice(choice: ToolChoice) -> dict[str, Any]:
    mode = _MODES[choice.mode]
    if choice.names and mode == "AUTO":
        mode = "VALIDATED"
    allowed = {"allowedFunctionNames": choice.names} if choice.names else {}
    return {"mode": mode, **allowed}


def _format(wanted: ResponseFormat | None) -> dict[str, Any]:
    if wanted is None or wanted.kind == "text":
        return {}
    schema = described_schema(wanted)
    told = {} if schema is None else {"responseJsonSchema": schema}
    return {"responseMimeType": "application/json", **told}
