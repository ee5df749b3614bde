"""The dialect of OpenAI's legacy Completions, which autocomplete tools and vLLM's clients speak.

A request holds bare prompts, so neither it nor its answer is translated to or from a chat. Equal
requests alone share answers: every field that steers the text is keyed, the limit too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from headstart.dialects.dialect import (
    Dialect,
    JSONDecoder,
    KeyForm,
    Rendered,
    field_uses,
    split_text,
)
from headstart.dialects.openai_answers import ChatDecoder, decode_body, error_body, error_frame
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.dialects.openai_requests import add_usage
from headstart.dialects.request_form import RequestForm
from headstart.dialects.requests import (
    check_types,
    decode_object,
    named_user,
    read_field,
    read_limit,
    read_model,
    repeats_keys,
)
from headstart.errors import InvalidRequest
from headstart.types import ChatRequest, Choice, Completion, StreamEvent, random_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headstart.canonical_request import CanonicalRequest, Quirks, WrittenRequest
    from headstart.dialects.dialect import EventEncoder

NAME = "openai-completions"
_PIECES = "pieces"
"""The field for log probabilities in a stored answer: a list with one object for each chunk."""
_OPENING_CHARACTERS = 1024
_encode = msgspec.json.encode


# --- requests ------------------------------------------------------------------------------------


class CompletionsForm(RequestForm):
    """A request with bare prompts. It has no messages."""

    field = "prompt"
    hides_rounds = False
    prefills = False
    takes_prediction = False
    work_fields = frozenset()
    keeps_cut_answers = True

    def read(self, document: dict[str, Any]) -> None:
        """Return None: there are no messages."""

    def has_logprobs(self, answer: Completion, document: dict[str, Any]) -> bool:  # noqa: ARG002
        """Return True: their number is keyed."""
        return True

    def answers_billed(self, request: ChatRequest) -> tuple[int | None, int]:
        """Return the limit, which is keyed, and the number of answers, also unreturned ones."""
        document = request.document
        written = _count_prompts(document.get("prompt")) * (document.get("best_of") or 1)
        limit = read_limit(document, "max_tokens")
        return limit, max(request.choices, written)

    def opening(self, document: dict[str, Any]) -> list[Any]:
        """Return the beginning of the prompt, by which providers look into their prefix cache."""
        return [str(document.get("prompt"))[:_OPENING_CHARACTERS]]


_TYPES = {
    "max_tokens": int,
    "n": int,
    "best_of": int,
    "stream": bool,
    "echo": bool,
    "user": str,
    "safety_identifier": str,
}
_NOT_TRANSLATED = (
    "legacy completions are not translated into another API: send this to an upstream that has "
    'them, one with dialect = "openai" or also_speaks = ["completions"]'
)


def parse_request(body: bytes) -> ChatRequest:
    """Read a request body. Raises InvalidRequest."""
    document = decode_object(body)
    model = read_model(document)
    check_types(document, _TYPES)
    options = document.get("stream_options") or {}
    if not isinstance(options, dict):
        raise InvalidRequest("stream_options: must be an object")
    choices = read_field(document, "n", int)
    if choices is not None and choices < 1:
        raise InvalidRequest("n: must be at least 1")
    return ChatRequest(
        dialect=NAME,
        model=model,
        stream=bool(read_field(document, "stream", bool)),
        document=document,
        query=None,
        include_usage=bool(read_field(options, "include_usage", bool)),
        choices=(choices or 1) * _count_prompts(document.get("prompt")),
        logprobs=document.get("logprobs") is not None,
        user=named_user(document),
        duplicate_keys=repeats_keys(body, document),
    )


def _count_prompts(prompt: Any) -> int:
    """Return how many prompts there are: a flat list of tokens is one."""
    if not isinstance(prompt, list) or not prompt or isinstance(prompt[0], int):
        return 1
    return len(prompt)


def _canonical(body: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """Return the body. A list of one text means the same as the text."""
    match body.get("prompt"):
        case [str(prompt)]:
            body["prompt"] = prompt
    return body, []


def _read_request(request: ChatRequest) -> CanonicalRequest:  # noqa: ARG001
    raise InvalidRequest(_NOT_TRANSLATED)


def _write_request(request: CanonicalRequest, quirks: Quirks) -> WrittenRequest:  # noqa: ARG001
    raise InvalidRequest("an upstream of legacy completions takes no chat")


# --- answers -------------------------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class CompletionsDecoder(JSONDecoder):
    """EventDecoder of Completions.

    Its chunks have the content of a chat's chunks in other fields.
    """

    _chat: ChatDecoder = field(default_factory=ChatDecoder)

    def read(self, event: dict[str, Any], name: bytes | None = None) -> tuple[StreamEvent, ...]:
        """Return the events of one chunk, or of one whole answer."""
        choices = event.get("choices")
        if isinstance(choices, list):
            event = {**event, "choices": list(map(_as_chat, choices))}
        return self._chat.read(event, name)


def _as_chat(choice: Any) -> Any:
    """Return a choice in the form of a chat's."""
    if not isinstance(choice, dict):
        return choice
    rest = {name: value for name, value in choice.items() if name != "text"}
    if isinstance(choice.get("logprobs"), dict):
        # Lists, because objects with an index would be merged.
        rest["logprobs"] = {_PIECES: [[*choice["logprobs"].items()]]}
    return {**rest, "delta": {"content": choice.get("text")}}


def _no_encoder(id: str, created: int, *, include_usage: bool) -> EventEncoder:
    """Raise: nothing edits or continues these streams. A stored one is replayed whole."""
    raise NotImplementedError


def _names(completion: Completion) -> dict[str, Any]:
    named = {"model": completion.model}
    if completion.fingerprint:
        named["system_fingerprint"] = completion.fingerprint
    return named


def _logprobs(kept: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return log probabilities in the API's form: the lists of all chunks, one after the other."""
    if kept is None:
        return None
    joined: dict[str, Any] = {}
    for piece in kept.get(_PIECES, ()):
        for name, value in piece:
            if isinstance(value, list) and isinstance(joined.get(name), list):
                joined[name] = [*joined[name], *value]
            elif value is not None or name not in joined:
                joined[name] = value
    return joined or None


def write_body(completion: Completion, id: str, created: int) -> bytes:
    """Return the body of an answer that is not streamed."""
    return _document_head(id, created) + _encode(_document(completion))[1:]


def _document_head(id: str, created: int) -> bytes:
    return b'{"id":%b,"object":"text_completion","created":%d,' % (_encode(id), created)


def _document(completion: Completion) -> dict[str, Any]:
    usage = {} if completion.usage is None else {"usage": completion.usage}
    choices = list(map(_choice, completion.choices))
    return {**_names(completion), "choices": choices, **usage, **completion.extra}


def _choice(choice: Choice) -> dict[str, Any]:
    return {
        "text": choice.text,
        "index": choice.index,
        "logprobs": _logprobs(choice.logprobs),
        "finish_reason": choice.finish,
        **choice.beside,
    }


def render(completion: Completion) -> Rendered:
    """Encode an answer once, for any number of replays."""
    members = _encode(_names(completion))[1:-1]
    chunks = [*_chunks(completion)]
    usage = [{"choices": [], "usage": completion.usage}] if completion.usage is not None else []
    return Rendered(
        _document_head,
        partial(_chunk_head, members),
        _encode(_document(completion))[1:],
        _written(chunks),
        _written([*chunks, *usage]) if usage else None,
    )


def _chunk_head(members: bytes, id: str, created: int) -> bytes:
    return b'data: {"id":%b,"object":"text_completion","created":%d,%b,' % (
        _encode(id),
        created,
        members,
    )


def _written(chunks: Sequence[dict[str, Any]]) -> tuple[bytes, ...]:
    """Return chunks without their heads. The first chunk begins the stream."""
    written = [_encode(chunk)[1:] + b"\n\n" for chunk in chunks]
    return (b"", *written[:-1], written[-1] + b"data: [DONE]\n\n")


def _chunks(completion: Completion) -> Iterator[dict[str, Any]]:
    """Yield the chunks of a stream. Log probabilities come with their text."""
    last = completion.choices[-1]
    for choice in completion.choices:
        text, logprobs = choice.text, _logprobs(choice.logprobs)
        pieces = split_text(text) if logprobs is None else [text]
        rest = {"index": choice.index, "finish_reason": None}
        for piece in pieces:
            yield {"choices": [{"text": piece, "logprobs": logprobs, **rest}]}
        ending = {"text": "", "logprobs": None, "index": choice.index}
        finish = {"finish_reason": choice.finish, **choice.beside}
        yield {
            "choices": [{**ending, **finish}],
            **(completion.extra if choice is last else {}),
        }


# --- the dialect ---------------------------------------------------------------------------------

_FIELDS = field_uses(
    keyed=(
        "model prompt suffix echo max_tokens n best_of logprobs stop seed temperature top_p "
        "frequency_penalty presence_penalty logit_bias"
    ),
    ignored=(
        "stream stream_options user safety_identifier metadata store service_tier "
        "prompt_cache_key cache_control cache request_id rid"
    ),
)
"""``user`` and ``safety_identifier`` join the scope instead. ``cache`` is litellm's own field, and
``request_id`` (vLLM) and ``rid`` (SGLang) name one call."""

OPENAI_COMPLETIONS = Dialect(
    name=NAME,
    setting="completions",
    is_chat=False,
    account_headers=OPENAI_CHAT.account_headers,
    models=OPENAI_CHAT.models,
    limit_headers=OPENAI_CHAT.limit_headers,
    path_below_version="/completions",
    text_fields=frozenset({"text"}),
    apply_quirks=None,
    heartbeat=OPENAI_CHAT.heartbeat,
    paths=("/v1/completions",),
    key=KeyForm(fields=_FIELDS, canonical=_canonical, headers=OPENAI_CHAT.key.headers),
    form=CompletionsForm(),
    parse_request=parse_request,
    read_request=_read_request,
    write_request=_write_request,
    shows_reasoning=OPENAI_CHAT.shows_reasoning,
    add_usage=add_usage,
    tokens=OPENAI_CHAT.tokens,
    usage=OPENAI_CHAT.usage,
    decoder=CompletionsDecoder,
    decode_body=partial(decode_body, decoder=CompletionsDecoder),
    encoder=_no_encoder,
    write_body=write_body,
    render=render,
    new_id=lambda: "cmpl-" + random_bytes(12).hex(),
    error_body=error_body,
    error_frame=error_frame,
)
