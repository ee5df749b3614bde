"""OpenAI's legacy completions on the wire. Errors and headers are those of its chats."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import msgspec

from headstart.lab.simulator.chat_request import (
    AskedMessage,
    BadRequest,
    ChatBody,
    StreamOptions,
    decode_as,
)
from headstart.lab.simulator.generation import likelihoods
from headstart.lab.simulator.openai_chat import OpenAIWire, usage_of
from headstart.lab.simulator.wire import TimedPiece
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headstart.lab.simulator.generation import Alternative
    from headstart.lab.simulator.wire import Pace, SimulatedAnswer, SimulatedRequest

_LIMIT = 16
"""The documented limit of a request that names none."""
_encode = msgspec.json.encode


class CompletionsBody(Frozen):
    """A decoded ``POST /v1/completions`` body."""

    model: str
    prompt: str | tuple[str | int | tuple[int, ...], ...]
    suffix: str | None = None
    max_tokens: int | None = None
    n: int | None = None
    logprobs: int | None = None
    echo: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


class PromptBody(ChatBody, frozen=True, kw_only=True):
    """The same in the terms of a chat."""

    echoed: tuple[str, ...] = ()
    """What each alternative begins with."""


_decoder = msgspec.json.Decoder(CompletionsBody)


class CompletionsWire(OpenAIWire):
    """The dialect of ``POST /v1/completions``.

    Several prompts get the same answer, to all of them together.
    """

    endpoint = "completions"

    def read(self, incoming: SimulatedRequest) -> ChatBody:
        """Decode the body. Raises BadRequest."""
        body = decode_as(_decoder, incoming.body)
        prompts = _prompts(body.prompt)
        each = body.n or 1
        return PromptBody(
            model=body.model,
            messages=(AskedMessage(role="user", content="".join((*prompts, body.suffix or ""))),),
            stream=body.stream,
            stream_options=body.stream_options,
            n=each * len(prompts),
            logprobs=body.logprobs is not None,
            top_logprobs=body.logprobs,
            max_tokens=_LIMIT if body.max_tokens is None else body.max_tokens,
            echoed=tuple(prompt for prompt in prompts for _ in range(each)) if body.echo else (),
        )

    def whole(self, answer: SimulatedAnswer) -> bytes:
        """Return the ``text_completion`` object."""
        choices = [
            _choice(place, _begun(answer, place) + each.text, each.finish)
            | {"logprobs": _logprobs(answer, each.tokens)}
            for place, each in enumerate(answer.generation.alternatives)
        ]
        return _encode({**_head(answer), "choices": choices, "usage": usage_of(answer)})

    def events(self, answer: SimulatedAnswer, pace: Pace) -> Iterator[TimedPiece]:
        """Yield a chunk for each token, choices interleaved, then finish and usage chunks."""
        alternatives = answer.generation.alternatives
        streams = [list(_deltas(place, each, answer)) for place, each in enumerate(alternatives)]
        at_s = pace.ttft_s
        for step, row in enumerate(zip_longest(*streams)):
            at_s = pace.at_s(step)
            for choice in row:
                if choice is not None:
                    yield TimedPiece(at_s, _chunk(answer, choices=[choice]), delta=True)
        for place, each in enumerate(alternatives):
            yield TimedPiece(at_s, _chunk(answer, choices=[_choice(place, "", each.finish)]))
        if answer.chat.include_usage:
            yield TimedPiece(at_s, _chunk(answer, choices=[], usage=usage_of(answer)))
        yield TimedPiece(at_s, b"data: [DONE]\n\n", terminal=True)


def _prompts(given: str | tuple[Any, ...]) -> list[str]:
    """Return the prompts; one of tokens is read as their numbers."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise BadRequest("Invalid 'prompt': empty array.")
    if all(isinstance(each, int) for each in given):
        return [repr(given)]
    return [each if isinstance(each, str) else repr(each) for each in given]


def _begun(answer: SimulatedAnswer, place: int) -> str:
    chat = answer.chat
    return chat.echoed[place] if isinstance(chat, PromptBody) and chat.echoed else ""


def _deltas(place: int, each: Alternative, answer: SimulatedAnswer) -> Iterator[dict[str, Any]]:
    if begun := _begun(answer, place):
        yield _choice(place, begun, None)
    for number, token in enumerate(each.tokens):
        logprobs = _logprobs(answer, each.tokens, number)
        yield _choice(place, token, None) | {"logprobs": logprobs}


def _logprobs(
    answer: SimulatedAnswer, tokens: tuple[str, ...], only: int | None = None
) -> dict[str, Any] | None:
    """Return the log probabilities of all tokens, or of one of them."""
    if not answer.chat.logprobs:
        return None
    drawn = likelihoods(answer.generation.class_id, tokens, answer.chat.top_logprobs or 0)
    chosen = drawn if only is None else drawn[only : only + 1]
    before = 0 if only is None else only
    return {
        "tokens": [each.token for each in chosen],
        "token_logprobs": [each.logprob for each in chosen],
        "top_logprobs": [dict(each.ranked) for each in chosen],
        "text_offset": [len("".join(tokens[: before + n])) for n in range(len(chosen))],
    }


def _choice(place: int, text: str, finish: str | None) -> dict[str, Any]:
    return {"text": text, "index": place, "logprobs": None, "finish_reason": finish}


def _head(answer: SimulatedAnswer) -> dict[str, Any]:
    return {
        "id": f"cmpl-{answer.id}",
        "object": "text_completion",
        "created": answer.created,
        "model": answer.model,
    }


def _chunk(answer: SimulatedAnswer, **members: Any) -> bytes:
    return b"data: %b\n\n" % _encode({**_head(answer), **members})
