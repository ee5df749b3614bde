"""The simulated model: text, tool calls, reasoning and log-probabilities of an answer."""

from __future__ import annotations

import math
import random
from typing import Any

import msgspec

from headstart.lab.simulator.chat_request import ChatBody, Function, NamedTool
from headstart.lab.simulator.oracle import Oracle, Truth, paragraph, reference, split_tokens
from headstart.types import Frozen

_SCALARS: dict[str, Any] = {
    "string": "example",
    "integer": 1,
    "number": 1.5,
    "boolean": True,
    "null": None,
}
_MAX_DEPTH = 16
"""A recursive schema ends with null below this depth."""


def example(schema: dict[str, Any]) -> object:
    """Return a small value for a schema: enums, objects, arrays, unions and local references."""
    return _example(schema, schema, 0)


def _example(schema: dict[str, Any], root: dict[str, Any], depth: int) -> object:
    if depth > _MAX_DEPTH:
        return None
    if "$ref" in schema:
        return _example(_resolve(schema["$ref"], root), root, depth + 1)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    for union in ("anyOf", "oneOf", "allOf"):
        if union in schema:
            return _example(schema[union][0], root, depth + 1)
    return _of_type(schema, root, depth)


def _of_type(schema: dict[str, Any], root: dict[str, Any], depth: int) -> object:
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if isinstance(kind, list):
        kind = kind[0]
    if kind == "array":
        return [_example(schema.get("items", {}), root, depth + 1)]
    if kind != "object":
        return _SCALARS.get(kind)
    required = schema.get("required", ())
    return {
        name: _example(value, root, depth + 1)
        for name, value in schema.get("properties", {}).items()
        if name in required
    }


def _resolve(reference: str, root: dict[str, Any]) -> dict[str, Any]:
    found: Any = root
    for name in reference.removeprefix("#").strip("/").split("/"):
        found = found.get(name, {})
    return found if isinstance(found, dict) else {}


_FRAGMENT = 8
"""The number of characters of tool arguments in one delta."""


class CalledTool(Frozen):
    id: str
    name: str
    fragments: tuple[str, ...]
    """The JSON arguments, cut into the pieces that are streamed."""

    @property
    def arguments(self) -> str:
        return "".join(self.fragments)


class Alternative(Frozen):
    """One choice of an answer; every string and fragment in it counts as one token."""

    tokens: tuple[str, ...] = ()
    reasoning: tuple[str, ...] = ()
    refusal: bool = False
    """True: ``tokens`` are a refusal, not content."""
    tool_calls: tuple[CalledTool, ...] = ()
    finish: str = "stop"

    @property
    def completion_tokens(self) -> int:
        arguments = sum(len(call.fragments) for call in self.tool_calls)
        return len(self.tokens) + len(self.reasoning) + arguments

    @property
    def text(self) -> str:
        return "".join(self.tokens)


class Generation(Frozen):
    """A whole answer and the class of prompts that share it."""

    class_id: str
    alternatives: tuple[Alternative, ...]


def generate(
    chat: ChatBody, oracle: Oracle, occasion: str = "", *, continues: bool = False
) -> Generation:
    """Answer a request. The same body gets the same answer on the same occasion.

    With ``continues`` a last message of the assistant is the beginning of the answer, and the rest
    of the answer is returned.
    """
    prefill = chat.prefill if continues else None
    messages = chat.messages if prefill is None else chat.messages[:-1]
    truth = oracle.truth_of_messages(messages, occasion)
    if prefill is not None:
        truth = msgspec.structs.replace(truth, text=truth.text.removeprefix(prefill))
    called = _call_tools(chat)
    if called:
        first = Alternative(tool_calls=called, finish="tool_calls")
        return Generation(class_id=truth.class_id, alternatives=(first,) * (chat.n or 1))
    reasoning = _reason(chat, truth)
    alternatives = tuple(
        _limit(
            Alternative(
                tokens=split_tokens(_phrase(chat, truth, place)),
                reasoning=reasoning,
                refusal=truth.refusal,
            ),
            chat.limit,
        )
        for place in range(chat.n or 1)
    )
    return Generation(class_id=truth.class_id, alternatives=alternatives)


def filtered(generation: Generation) -> Generation:
    """Return the answer after a content filter: no content, and a finish that names the filter."""
    blocked = Alternative(finish="content_filter")
    return Generation(
        class_id=generation.class_id, alternatives=(blocked,) * len(generation.alternatives)
    )


def _phrase(chat: ChatBody, truth: Truth, place: int) -> str:
    text = truth.text if place == 0 else f"Put another way, variant {place}: {truth.text}"
    wanted = chat.response_format
    if wanted is None or truth.refusal:
        return text
    if wanted.type == "json_schema" and wanted.json_schema:
        return msgspec.json.encode(example(wanted.json_schema.schema)).decode()
    if wanted.type == "json_object":
        return msgspec.json.encode({"answer": text}).decode()
    return text


def _reason(chat: ChatBody, truth: Truth) -> tuple[str, ...]:
    if chat.reasoning_effort in {None, "none"}:
        return ()
    return split_tokens(paragraph(f"reasoning/{truth.class_id}", "Let me think.", tokens=20))


def _limit(choice: Alternative, limit: int | None) -> Alternative:
    if limit is None or choice.completion_tokens <= limit:
        return choice
    reasoning = choice.reasoning[:limit]
    tokens = choice.tokens[: limit - len(reasoning)]
    return Alternative(tokens=tokens, reasoning=reasoning, refusal=choice.refusal, finish="length")


def _call_tools(chat: ChatBody) -> tuple[CalledTool, ...]:
    """Call the forced function, or every one that the last user message mentions."""
    asked = [place for place, message in enumerate(chat.messages) if message.role == "user"]
    turn = chat.messages[asked[-1] if asked else -1 :]
    # Some clients send a system message after the result of a tool.
    if not chat.tools or chat.tool_choice == "none" or any(each.role == "tool" for each in turn):
        return ()
    functions = [tool.function for tool in chat.tools if tool.function]
    prompt = turn[0].text
    if isinstance(chat.tool_choice, NamedTool):
        forced = chat.tool_choice.function
        chosen = [function for function in functions if forced and function.name == forced.name]
    else:
        chosen = [function for function in functions if _mentions(prompt, function.name)]
        if chat.tool_choice == "required":
            chosen = chosen or functions[:1]
    if chat.parallel_tool_calls is False:
        chosen = chosen[:1]
    return tuple(_call(prompt, function) for function in chosen)


def _mentions(prompt: str, name: str) -> bool:
    """Return whether a prompt has the name of a function in it, or a longer word of the name."""
    words = [word for word in name.casefold().split("_") if len(word) > 3]
    return any(word in prompt.casefold() for word in (name.casefold(), *words))


def _call(prompt: str, function: Function) -> CalledTool:
    schema = function.parameters or {"type": "object"}
    arguments = msgspec.json.encode(example(schema)).decode()
    return CalledTool(
        id=f"call_{reference(f'{function.name}/{prompt}')}",
        name=function.name,
        fragments=tuple(
            arguments[start : start + _FRAGMENT] for start in range(0, len(arguments), _FRAGMENT)
        ),
    )


class Likelihood(Frozen):
    """A token, its natural log-probability, and the likeliest tokens in its place, best first."""

    token: str
    logprob: float
    ranked: tuple[tuple[str, float], ...] = ()


def likelihoods(source: str, tokens: tuple[str, ...], top: int = 0) -> tuple[Likelihood, ...]:
    """Return a likelihood for each token, which depends on the arguments alone.

    ``source``, the class of the answer, decides how certain the answer is: the mean probability of
    its tokens lies between 0.5 and 1, and single tokens scatter around it.
    """
    sure = random.Random(f"sure/{source}").uniform(0.5, 1.0)
    rng = random.Random(f"tokens/{source}")
    return tuple(_draw(token, -math.log(sure), rng, top) for token in tokens)


def _draw(token: str, surprise: float, rng: random.Random, top: int) -> Likelihood:
    logprob = round(-min(rng.expovariate(1 / max(surprise, 1e-6)), 9.0), 6)
    ranked = tuple((token if place == 0 else f"{token}{place}", logprob - place)
                   for place in range(top))  # fmt: skip
    return Likelihood(token=token, logprob=logprob, ranked=ranked)
