"""OpenAI's chat and legacy completions on the wire: chunks, answers, errors and models."""

from __future__ import annotations

import base64
import re
from array import array
from hashlib import shake_256
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import msgspec

from headstart.lab.simulator.chat_request import (
    CHARACTERS,
    AskedMessage,
    BadRequest,
    ChatBody,
    StreamOptions,
    decode_as,
    decode_chat,
)
from headstart.lab.simulator.simulated_calls import (
    AnsweredCall,
    ScriptedError,
    TimedPiece,
    Wire,
    answered_call,
)
from headstart.types import Frozen, Headers, T

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from headstart.lab.simulator.oracle import Alternative, CalledTool, Likelihood
    from headstart.lab.simulator.simulated_calls import Pace, SimulatedAnswer, SimulatedRequest


_TIER = "default"
_FINGERPRINT = "fp_simulated"
_encode = msgspec.json.encode


class OpenAIWire(Wire):
    """The dialect of ``POST /v1/chat/completions``; its errors also serve the other paths."""

    endpoint = "chat"
    limit_headers = "openai"
    refused_key = ScriptedError(401, "Incorrect API key provided.", code="invalid_api_key")
    keep_alive = b": PROCESSING\n\n"
    broken_event = b'data: {"id":"chatcmpl-broken","choices":[{"index":0,"delta":{"content":\n\n'

    def read(self, incoming: SimulatedRequest) -> ChatBody:
        """Decode the body. Raises BadRequest."""
        return decode_chat(incoming.body)

    def whole(self, answer: SimulatedAnswer) -> bytes:
        """Return the ``chat.completion`` object."""
        choices = [
            _choice(place, alternative, answer)
            for place, alternative in enumerate(answer.generation.alternatives)
        ]
        return _encode(
            {
                "id": _id(answer),
                "object": "chat.completion",
                "created": answer.created,
                "model": answer.model,
                "choices": choices,
                "usage": usage_of(answer),
                "service_tier": _TIER,
                "system_fingerprint": _FINGERPRINT,
            }
        )

    def events(self, answer: SimulatedAnswer, pace: Pace) -> Iterator[TimedPiece]:
        """Yield the chunks of a stream.

        The role comes first, then deltas (the choices interleaved), a finish chunk for each choice,
        the usage chunk with no choices if it was asked for, and ``[DONE]``.
        """
        head, tail = _around_choices(answer)
        alternatives = answer.generation.alternatives
        for place, alternative in enumerate(alternatives):
            content = b"null" if alternative.tool_calls or alternative.refusal else b'""'
            role = b'{"role":"assistant","content":%b,"refusal":null}' % content
            yield TimedPiece(pace.ttft_s, head + _chunk_choice(place, role) + tail)
        streams = (
            _deltas(place, alternative, answer) for place, alternative in enumerate(alternatives)
        )
        at_s = pace.ttft_s
        for at_s, choice in _interleaved(streams, pace):
            yield TimedPiece(at_s, head + choice + tail, delta=True)
        for place, alternative in enumerate(alternatives):
            yield TimedPiece(
                at_s, head + _chunk_choice(place, b"{}", _encode(alternative.finish)) + tail
            )
        if answer.chat.include_usage:
            yield TimedPiece(at_s, head + b'],"usage":%b}\n\n' % _encode(usage_of(answer)))
        yield TimedPiece(at_s, b"data: [DONE]\n\n", terminal=True)

    def error(self, error: ScriptedError) -> bytes:
        """Return ``{"error": {message, type, param, code}}``."""
        default = "server_error" if error.status >= 500 else "invalid_request_error"
        kind = error.type or ("requests" if error.status == 429 else default)
        document = {"message": error.message, "type": kind, "param": None, "code": error.code}
        return _encode({"error": document})

    def error_event(self, error: ScriptedError, *, named: bool) -> bytes:
        """Return the error as an event; Groq names it ``error``."""
        return b"event: error\n" * named + b"data: %b\n\n" % self.error(error)

    def headers(self, answer_id: str, ttft_s: float) -> Headers:
        """Return the request id and the processing time."""
        return (
            (b"x-request-id", b"req_" + answer_id.encode()),
            (b"openai-version", b"2020-10-01"),
            (b"openai-processing-ms", b"%d" % (ttft_s * 1000)),
        )


def _interleaved(streams: Iterable[Iterator[T]], pace: Pace) -> Iterator[tuple[float, T]]:
    """Yield the deltas of all choices in turn, with the time at which each is due."""
    for step, row in enumerate(zip_longest(*streams)):
        for delta in row:
            if delta is not None:
                yield pace.at_s(step), delta


def usage_of(answer: SimulatedAnswer) -> dict[str, Any]:
    """Return the usage block. A simulated token is a word, so counts equal the deltas sent."""
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": answer.reasoning_tokens,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def _id(answer: SimulatedAnswer) -> str:
    return f"chatcmpl-{answer.id}"


def _choice(place: int, alternative: Alternative, answer: SimulatedAnswer) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None if alternative.refusal or alternative.tool_calls else alternative.text,
        "refusal": alternative.text if alternative.refusal else None,
        "annotations": [],
    }
    if alternative.reasoning:
        message["reasoning_content"] = "".join(alternative.reasoning)
    if alternative.tool_calls:
        message["tool_calls"] = [
            function_call(call, call.arguments) for call in alternative.tool_calls
        ]
    listed = answer.likelihoods(alternative.tokens)
    return {
        "index": place,
        "message": message,
        "logprobs": None if listed is None else _logprobs(listed, refusal=alternative.refusal),
        "finish_reason": alternative.finish,
    }


def function_call(call: CalledTool, arguments: str) -> dict[str, Any]:
    """Return a tool call with these arguments."""
    function = {"name": call.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


def _logprobs(listed: Sequence[Likelihood], *, refusal: bool) -> dict[str, Any]:
    entries = logprob_entries(listed)
    if refusal:
        return {"content": None, "refusal": entries}
    return {"content": entries, "refusal": None}


def logprob_entries(listed: Iterable[Likelihood]) -> list[dict[str, Any]]:
    """Return tokens with their log-probabilities, and the likeliest tokens in their places."""
    return [
        {
            **_logprob_entry(likely.token, likely.logprob),
            "top_logprobs": [_logprob_entry(*ranked) for ranked in likely.ranked],
        }
        for likely in listed
    ]


def _logprob_entry(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode())}


def _around_choices(answer: SimulatedAnswer) -> tuple[bytes, bytes]:
    """Return the bytes before and after the choices of every chunk."""
    head = b'data: {"id":%b,"object":"chat.completion.chunk","created":%d,"model":%b,' % (
        _encode(_id(answer)),
        answer.created,
        _encode(answer.model),
    )
    head += b'"service_tier":"%b","system_fingerprint":"%b","choices":[' % (
        _TIER.encode(),
        _FINGERPRINT.encode(),
    )
    return head, b'],"usage":null}\n\n' if answer.chat.include_usage else b"]}\n\n"


def _chunk_choice(
    place: int, delta: bytes, finish: bytes = b"null", logprobs: bytes = b"null"
) -> bytes:
    return b'{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b}' % (
        place,
        delta,
        logprobs,
        finish,
    )


def _deltas(place: int, alternative: Alternative, answer: SimulatedAnswer) -> Iterator[bytes]:
    """Yield the choices of the delta chunks of one alternative."""
    for token in alternative.reasoning:
        yield _chunk_choice(place, b'{"reasoning_content":%b}' % _encode(token))
    field = b"refusal" if alternative.refusal else b"content"
    listed = answer.likelihoods(alternative.tokens)
    logprobs = b"null"
    for number, token in enumerate(alternative.tokens):
        if listed is not None:
            logprobs = _encode(_logprobs([listed[number]], refusal=alternative.refusal))
        delta = b'{"%b":%b}' % (field, _encode(token))
        yield _chunk_choice(place, delta, logprobs=logprobs)
    for index, call in enumerate(alternative.tool_calls):
        for part, fragment in enumerate(call.fragments):
            function = {"arguments": fragment}
            tool: dict[str, Any] = {"index": index, "function": function}
            if part == 0:
                tool |= {"id": call.id, "type": "function"}
                function["name"] = call.name
            yield _chunk_choice(place, _encode({"tool_calls": [tool]}))


def listed_model(model: str) -> dict[str, Any]:
    """Return the body of ``GET /v1/models/{model}``."""
    return {
        "id": model, "object": "model", "created": 1_700_000_000,
        "owned_by": "headstart-simulator",
    }  # fmt: skip


_LIMIT = 16
"""The documented limit of a request that names none."""


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


class PromptBody(ChatBody):
    """The same in the terms of a chat."""

    echoed: tuple[str, ...] = ()
    """The text with which each alternative begins."""


_decoder = msgspec.json.Decoder(CompletionsBody)


class CompletionsWire(OpenAIWire):
    """The dialect of ``POST /v1/completions``.

    Several prompts are answered as one: each choice is an answer to their joined text.
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
            _completion_choice(place, _begun(answer, place) + each.text, each.finish)
            | {"logprobs": _completion_logprobs(answer, each.tokens)}
            for place, each in enumerate(answer.generation.alternatives)
        ]
        return _encode({**_head(answer), "choices": choices, "usage": usage_of(answer)})

    def events(self, answer: SimulatedAnswer, pace: Pace) -> Iterator[TimedPiece]:
        """Yield a chunk for each token, choices interleaved, then finish and usage chunks."""
        alternatives = answer.generation.alternatives
        streams = (
            _completion_deltas(place, each, answer) for place, each in enumerate(alternatives)
        )
        at_s = pace.ttft_s
        for at_s, choice in _interleaved(streams, pace):
            yield TimedPiece(at_s, _chunk(answer, choices=[choice]), delta=True)
        for place, each in enumerate(alternatives):
            yield TimedPiece(
                at_s, _chunk(answer, choices=[_completion_choice(place, "", each.finish)])
            )
        if answer.chat.include_usage:
            yield TimedPiece(at_s, _chunk(answer, choices=[], usage=usage_of(answer)))
        yield TimedPiece(at_s, b"data: [DONE]\n\n", terminal=True)


def _prompts(given: str | tuple[Any, ...]) -> list[str]:
    """Return the prompts as texts. A prompt of token numbers becomes the text of its list."""
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


def _completion_deltas(
    place: int, each: Alternative, answer: SimulatedAnswer
) -> Iterator[dict[str, Any]]:
    if begun := _begun(answer, place):
        yield _completion_choice(place, begun, None)
    for number, token in enumerate(each.tokens):
        logprobs = _completion_logprobs(answer, each.tokens, number)
        yield _completion_choice(place, token, None) | {"logprobs": logprobs}


def _completion_logprobs(
    answer: SimulatedAnswer, tokens: tuple[str, ...], only: int | None = None
) -> dict[str, Any] | None:
    """Return the log probabilities of all tokens, or of one of them."""
    drawn = answer.likelihoods(tokens)
    if drawn is None:
        return None
    chosen = drawn if only is None else drawn[only : only + 1]
    before = 0 if only is None else only
    return {
        "tokens": [each.token for each in chosen],
        "token_logprobs": [each.logprob for each in chosen],
        "top_logprobs": [dict(each.ranked) for each in chosen],
        "text_offset": [len("".join(tokens[: before + n])) for n in range(len(chosen))],
    }


def _completion_choice(place: int, text: str, finish: str | None) -> dict[str, Any]:
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


# --- calls that are not chats: embeddings, rerank and moderations ---------------------------------

_WORD = re.compile(r"\w+")
_HARMFUL = {
    "violence": frozenset(("attack", "hurt", "kill", "murder", "stab")),
    "self-harm": frozenset(("suicide",)),
    "harassment": frozenset(("idiot", "moron", "stupid")),
}


class EmbeddingsBody(Frozen):
    """A decoded ``POST /v1/embeddings`` body."""

    model: str
    input: str | tuple[str | int | tuple[int, ...], ...]
    encoding_format: str = "float"
    dimensions: int = 256


class ModerationsBody(Frozen):
    """A decoded ``POST /v1/moderations`` body."""

    input: str | tuple[str | dict[str, Any], ...]
    model: str = "omni-moderation-latest"


class RerankBody(Frozen):
    """A decoded body of ``POST /v1/rerank`` or ``/v2/rerank``."""

    query: str
    documents: tuple[str | dict[str, Any], ...]
    model: str = ""
    top_n: int | None = None
    return_documents: bool = False


def answer_document(path: bytes, body: bytes, id: str) -> AnsweredCall | None:
    """Return the answer of such a path; None for any other. Raises msgspec.DecodeError."""
    answer = _PATHS.get(path)
    return None if answer is None else answer(body, id)


def _embeddings(body: bytes, id: str) -> AnsweredCall:  # noqa: ARG001 - has none
    """Return unit vectors without meaning. The vector of an item depends on the item alone."""
    wanted = msgspec.json.decode(body, type=EmbeddingsBody)
    items = _items(wanted.input)
    tokens = sum(len(item) if isinstance(item, tuple) else _tokens(item) for item in items)
    answer = {
        "object": "list",
        "data": [
            {"object": "embedding", "index": place, "embedding": _embed(item, wanted)}
            for place, item in enumerate(items)
        ],
        "model": wanted.model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    return answered_call("embeddings", wanted.model, answer, tokens)


def _items(given: str | tuple[Any, ...]) -> tuple[str | tuple[int, ...], ...]:
    """Return the items of an input: one for a text or for a flat list of tokens."""
    if isinstance(given, str):
        return (given,)
    if given and all(isinstance(each, int) for each in given):
        return (given,)
    if not given or any(isinstance(each, int) for each in given):
        raise msgspec.ValidationError("'$.input' is invalid.")
    return given


def _embed(item: str | tuple[int, ...], wanted: EmbeddingsBody) -> list[float] | str:
    text = item if isinstance(item, str) else repr(item)
    raw = array("h", shake_256(text.encode()).digest(2 * wanted.dimensions))
    norm = sum(value * value for value in raw) ** 0.5 or 1.0
    vector = array("f", (value / norm for value in raw))
    if wanted.encoding_format == "base64":
        return base64.b64encode(vector.tobytes()).decode()
    return vector.tolist()


def _moderations(body: bytes, id: str) -> AnsweredCall:
    """Flag texts with a word of the list; each category's score is 0.99 then, else 0.01."""
    wanted = msgspec.json.decode(body, type=ModerationsBody)
    inputs = (wanted.input,) if isinstance(wanted.input, str) else wanted.input
    answer = {
        "id": "modr-" + id,
        "model": wanted.model,
        "results": [_judge(_words(_text_of(each))) for each in inputs],
    }
    return answered_call("moderations", wanted.model, answer)


def _judge(words: frozenset[str]) -> dict[str, Any]:
    found = {name: not words.isdisjoint(listed) for name, listed in _HARMFUL.items()}
    return {
        "flagged": any(found.values()),
        "categories": found,
        "category_scores": {name: 0.99 if is_found else 0.01 for name, is_found in found.items()},
    }


def _rerank(body: bytes, id: str) -> AnsweredCall:
    """Order documents by the share of the query's words that they have."""
    wanted = msgspec.json.decode(body, type=RerankBody)
    asked = _words(wanted.query)
    texts = list(map(_text_of, wanted.documents))
    scores = [len(asked & _words(text)) / max(1, len(asked)) for text in texts]
    order = sorted(range(len(texts)), key=lambda place: -scores[place])[: wanted.top_n]
    results = [
        {"index": place, "relevance_score": scores[place]}
        | ({"document": {"text": texts[place]}} if wanted.return_documents else {})
        for place in order
    ]
    tokens = sum(map(_tokens, (wanted.query, *texts)))
    answer = {
        "id": id,
        "model": wanted.model,
        "results": results,
        "meta": {"billed_units": {"search_units": 1}},
        "usage": {"total_tokens": tokens},
    }
    return answered_call("rerank", wanted.model, answer, tokens)


def _text_of(given: str | dict[str, Any]) -> str:
    return given if isinstance(given, str) else str(given.get("text", ""))


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.lower()))


def _tokens(text: str) -> int:
    return -(-len(text) // CHARACTERS)


_PATHS: dict[bytes, Callable[[bytes, str], AnsweredCall]] = {
    b"/v1/embeddings": _embeddings,
    b"/v1/moderations": _moderations,
    b"/v1/rerank": _rerank,
    b"/v2/rerank": _rerank,
}
