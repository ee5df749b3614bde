"""Canonical forms of a Gemini request, brought to the shapes in which other dialects are keyed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headstart.policies.canonical import as_ordered, decoded_digest, ordinal, unsigned

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_RANGED = frozenset({"maxOutputTokens", "candidateCount"})
_SCHEMAS = ("responseSchema", "responseJsonSchema")
_DECLARED = ("parameters", "parametersJsonSchema", "response", "responseJsonSchema")
_PATHS = (b"/v1/", b"/v1beta/")
_DELIVERY = (b"alt=", b"$alt=", b"%24alt=", b"prettyPrint=")


def gemini_messages(contents: list[Any]) -> list[Any]:
    """Return contents as messages of the common form, in which equal conversations are equal.

    A content of one text becomes that text; other parts keep their form, but for random ids,
    inline media and signatures as in ``canonical_messages``.
    """
    ordinals: dict[str, int] = {}
    return [_message(content, ordinals) for content in contents]


def gemini_body(body: dict[str, Any]) -> dict[str, Any]:
    """Return a body with its settings in canonical form; ``contents`` have a form of their own."""
    return {name: _FORMS[name](value) if name in _FORMS else value for name, value in body.items()}


def gemini_target(path: bytes, query_string: bytes) -> tuple[bytes, bytes]:
    """Return what path and query say beside the model and how the answer is delivered."""
    version = next((prefix for prefix in _PATHS if path.startswith(prefix)), path)
    pairs = query_string.split(b"&")
    # Behind a ";" may be another parameter.
    kept = [pair for pair in pairs if b";" in pair or not pair.startswith(_DELIVERY)]
    return version, b"&".join(kept)


def _message(content: object, ordinals: dict[str, int]) -> object:
    match content:
        case {"parts": list(parts), **rest}:
            role = rest.pop("role", "user")
            said = [_part(part, ordinals) for part in parts]
            rest["role"] = "assistant" if role == "model" else role
            match said:
                case [{"text": str(text), **more}] if not more:
                    return {**rest, "content": text}
            return {**rest, "content": said}
        case _:
            return content


def _part(part: object, ordinals: dict[str, int]) -> object:
    if not isinstance(part, dict):
        return part
    part = unsigned(part)
    for name in ("functionCall", "functionResponse"):
        call = part.get(name)
        if isinstance(call, dict) and "id" in call:
            part = {**part, name: {**call, "id": ordinal(call["id"], ordinals)}}
    match part:
        case {"inlineData": {"data": str(data)} as media}:
            part = {**part, "inlineData": {**media, "data": decoded_digest(data, url_safe=True)}}
    return part


def _system(instruction: object) -> object:
    match instruction:
        case {"parts": list(parts)}:
            return [_part(part, {}) for part in parts]  # its role means nothing
        case _:
            return instruction


def _config(config: object) -> object:
    if not isinstance(config, dict):
        return config
    kept = {name: value for name, value in config.items() if name not in _RANGED}
    return {name: as_ordered(value) if name in _SCHEMAS else value for name, value in kept.items()}


def _tools(tools: object) -> object:
    return [_tool(tool) for tool in tools] if isinstance(tools, list) else tools


def _tool(tool: object) -> object:
    match tool:
        case {"functionDeclarations": list(functions), **rest}:
            return {**rest, "functionDeclarations": [_function(each) for each in functions]}
        case _:
            return tool


def _function(function: object) -> object:
    if not isinstance(function, dict):
        return function
    return {
        name: as_ordered(value) if name in _DECLARED else value for name, value in function.items()
    }


_FORMS: Mapping[str, Callable[[object], object]] = {
    "systemInstruction": _system,
    "generationConfig": _config,
    "tools": _tools,
}
