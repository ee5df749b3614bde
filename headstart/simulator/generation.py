"""What the simulated model says to a request: tokens, tool calls and finish reasons, no bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headstart.simulator.chat_request import NamedTool
from headstart.simulator.json_example import example
from headstart.simulator.prose import paragraph, reference, split_tokens
from headstart.types import Frozen

if TYPE_CHECKING:
    from headstart.simulator.chat_request import ChatBody, Function
    from headstart.simulator.oracle import Oracle, Truth

_FRAGMENT = 8
"""Characters of tool arguments a delta."""


class CalledTool(Frozen):
    id: str
    name: str
    fragments: tuple[str, ...]
    """The JSON arguments, cut as they are streamed."""

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
    """Answer a request: the same body gets the same answer on the same occasion.

    ``continues``: where the last message is the beginning of an answer, say the rest of it.
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
    """Return the answer as a content filter leaves it: nothing said, and the finish says why."""
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


def _limit(said: Alternative, limit: int | None) -> Alternative:
    if limit is None or said.completion_tokens <= limit:
        return said
    reasoning = said.reasoning[:limit]
    tokens = said.tokens[: limit - len(reasoning)]
    return Alternative(tokens=tokens, reasoning=reasoning, refusal=said.refusal, finish="length")


def _call_tools(chat: ChatBody) -> tuple[CalledTool, ...]:
    """Call the forced function, or every one that the last user message mentions."""
    if not chat.tools or chat.tool_choice == "none" or chat.messages[-1].role == "tool":
        return ()
    functions = [tool.function for tool in chat.tools if tool.function]
    prompt = chat.messages[-1].text
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
