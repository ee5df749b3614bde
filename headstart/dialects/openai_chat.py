"""The dialect of OpenAI Chat Completions and of the many providers that speak it."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from headstart.dialects.dialect import (
    CHUNK_CHARACTERS,
    Dialect,
    KeyForm,
    LimitHeaders,
    ListedModel,
    LogprobsForm,
    ModelsForm,
    Rendered,
    as_text,
    field_uses,
    listed_objects,
    split_text,
)
from headstart.dialects.openai_answers import (
    NUMBER,
    ChatDecoder,
    ChatEncoder,
    chunk_head,
    decode_body,
    encode_names,
    error_body,
    error_frame,
    names_of,
    own_fields,
    reasoning_field,
    usage_tokens,
)
from headstart.dialects.openai_requests import (
    NAME,
    add_usage,
    parse_request,
    read_request,
    write_request,
)
from headstart.dialects.request_form import RequestForm, add_cache_key, canonical_body
from headstart.dialects.requests import apply_quirks
from headstart.types import (
    ChatRequest,
    Ended,
    ExtraDelta,
    Finished,
    Headers,
    LogprobsDelta,
    Reasoning,
    ReasoningDelta,
    Refusal,
    RefusalDelta,
    Started,
    Text,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    UsageReported,
    random_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from headstart.attempts import Tokens
    from headstart.types import Choice, Completion, StreamEvent

_encode = msgspec.json.encode


def _usage(tokens: Tokens) -> dict[str, Any]:
    written = {"cache_write_tokens": tokens.cache_write} if tokens.cache_write else {}
    return {
        "prompt_tokens": tokens.prompt,
        "completion_tokens": tokens.completion,
        "total_tokens": tokens.prompt + tokens.completion,
        "prompt_tokens_details": {"cached_tokens": tokens.cached, **written},
        "completion_tokens_details": {"reasoning_tokens": tokens.reasoning},
    }


def _shows_reasoning(request: ChatRequest) -> bool:  # noqa: ARG001 - clients need not ask
    return True


def _asks_functions(request: ChatRequest) -> bool:
    return bool(request.document.get("functions")) and not request.document.get("tools")


def _claims(path: bytes, headers: Headers) -> bool:  # noqa: ARG001
    """Return True: a request that no other dialect claims is meant for OpenAI."""
    return True


def _as_it_is(logprobs: dict[str, Any]) -> dict[str, Any]:
    return logprobs


_FIELDS = field_uses(
    keyed=(
        "model messages audio frequency_penalty presence_penalty logit_bias modalities moderation "
        "parallel_tool_calls reasoning_effort response_format seed stop temperature tool_choice "
        "tools top_p verbosity web_search_options functions function_call"
    ),
    ranged="n logprobs top_logprobs max_tokens max_completion_tokens",
    ignored=(
        "stream stream_options metadata prediction prompt_cache_key prompt_cache_options "
        "prompt_cache_retention safety_identifier service_tier store user cache_control cache "
        "request_id rid"
    ),
)
"""``user`` and ``safety_identifier`` join the scope instead. ``cache`` is litellm's own field, and
``request_id`` (vLLM) and ``rid`` (SGLang) name one call."""


def _time_left(now: float, then: float) -> str:
    minutes, seconds = divmod(max(0, math.ceil(then - now)), 60)
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"


_MODELS_FORM = "openai"


def _read_models(document: Any) -> list[ListedModel]:
    return [
        ListedModel(
            id=each["id"],
            created=created if isinstance(created := each.get("created"), int) else 0,
            title=as_text(each.get("display_name") or each.get("name")) or "",
            form=_MODELS_FORM,
            fields=each,
        )
        for each in listed_objects(document, "data")
        if as_text(each.get("id"))
    ]


def _write_model(model: ListedModel) -> dict[str, Any]:
    return {
        **model.fields_in(_MODELS_FORM),
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": model.owner,
    }


def _write_models(models: Sequence[ListedModel]) -> dict[str, Any]:
    return {"object": "list", "data": list(map(_write_model, models))}


_MODELS = ModelsForm(_MODELS_FORM, b"/v1/models", b"", _read_models, _write_model, _write_models)


# --- stored answers -----------------------------------------------------------------------------

_DONE = b"data: [DONE]\n\n"


def _render(completion: Completion) -> Rendered:
    """Encode an answer once, for any number of replays."""
    encoder = ChatEncoder("", 0, include_usage=True, whole=True)
    names = encode_names(completion)
    # The quotes of a head cannot be in a JSON text, so each head that is found begins a chunk.
    head = chunk_head(names, "", 0)
    *chunks, last = b"".join(map(encoder.feed, _frames(completion))).split(head)
    ending, *usage_chunk = encoder.feed((Ended(),)).split(head)
    unasked = last
    if completion.usage_beside:  # a chunk ends with "}\n\n"
        unasked = b"%b,%b\n\n" % (last[:-3], _encode({"usage": completion.usage})[1:])
    return Rendered(
        _document_head,
        partial(chunk_head, names),
        _encode(_document(completion))[1:],
        (*chunks, unasked + _DONE),
        (*chunks, last + ending, *usage_chunk) if usage_chunk else None,
    )


def _write_body(completion: Completion, id: str, created: int) -> bytes:
    """Return the body of an answer that is not streamed."""
    return _document_head(id, created) + _encode(_document(completion))[1:]


def _document_head(id: str, created: int) -> bytes:
    return b'{"id":%b,"object":"chat.completion","created":%d,' % (_encode(id), created)


def _document(completion: Completion) -> dict[str, Any]:
    """Return the members of a whole answer, without its id and time."""
    usage = {} if completion.usage is None else {"usage": completion.usage}
    choices = [_whole_choice(choice) for choice in completion.choices]
    return {**names_of(completion), "choices": choices, **usage, **completion.extra}


def _whole_choice(choice: Choice) -> dict[str, Any]:
    return {
        "index": choice.index,
        "message": _message(choice),
        "logprobs": choice.logprobs,
        "finish_reason": choice.finish,
        **choice.beside,
    }


def _message(choice: Choice) -> dict[str, Any]:
    text, refusal = _joined(choice, Text), _joined(choice, Refusal)
    calls = [part for part in choice.parts if isinstance(part, ToolCall)]
    no_text = None if refusal or _calls_alone(choice) else ""
    message: dict[str, Any] = {"role": "assistant", "content": text or no_text}
    message["refusal"] = refusal or None
    for part in choice.parts:
        if isinstance(part, Reasoning):
            field = reasoning_field(part.field)
            message[field] = message.get(field, "") + part.text
    if functions := [call for call in calls if call.kind == "function_call"]:
        message["function_call"] = _named(functions[0])["function_call"]
    if tools := [_named(call) for call in calls if call not in functions]:
        message["tool_calls"] = tools
    message.update(own_fields(choice.extra))
    if text and isinstance(message["content"], list):
        # Mistral's reasoning arrives as content parts, and its text after them as a string.
        message["content"] = [*message["content"], {"type": "text", "text": text}]
    return message


def _calls_alone(choice: Choice) -> bool:
    """Tell whether a choice has calls, and no empty content beside them as Mistral's have."""
    calls = [part for part in choice.parts if isinstance(part, ToolCall)]
    return bool(calls) and NUMBER not in calls[0].extra


def _joined(choice: Choice, kind: type[Text | Refusal]) -> str:
    return "".join(part.text for part in choice.parts if isinstance(part, kind))


def _named(call: ToolCall) -> dict[str, Any]:
    """Return a call in the form of JSON answers."""
    body = {"name": call.name, "input" if call.kind == "custom" else "arguments": call.arguments}
    return {"id": call.id, "type": call.kind, call.kind: body, **call.extra}


def _frames(completion: Completion) -> Iterator[tuple[StreamEvent, ...]]:
    """Yield the events of a stored answer; the events of one part come together."""
    yield (
        Started(model=completion.model, fingerprint=completion.fingerprint, tier=completion.tier),
        # SDKs look for these fields in the first chunk.
        ExtraDelta(fields=completion.extra, choice=None),
    )
    if completion.usage is not None:
        yield (UsageReported(usage=completion.usage),)
    last = completion.choices[-1]
    for choice in completion.choices:
        yield (ExtraDelta(fields=_first_fields(choice), choice=choice.index),)
        left = yield from _pieces(choice)
        closing: list[StreamEvent] = []
        if left is not None:
            closing.append(LogprobsDelta(value=left, choice=choice.index))
        if choice.beside:
            closing.append(ExtraDelta(fields=choice.beside, choice=choice.index, beside=True))
        if choice is last:  # the last chunk also has the fields of the whole answer
            closing.append(ExtraDelta(fields=completion.extra, choice=None))
        yield (*closing, Finished(reason=choice.finish, choice=choice.index))


def _first_fields(choice: Choice) -> dict[str, Any]:
    text = None if _calls_alone(choice) and not _joined(choice, Text) else ""
    told = {name: value for name, value in own_fields(choice.extra).items() if value != []}
    return {"content": text, **told}


def _pieces(choice: Choice) -> Generator[tuple[StreamEvent, ...], None, dict[str, Any] | None]:
    """Yield the deltas, each with its log probabilities.

    Returns the log probabilities that are left.
    """
    left = dict(choice.logprobs or {})
    nothing = dict.fromkeys(left)
    calls = 0
    for part in choice.parts:
        if isinstance(part, ToolCall):
            whole = msgspec.structs.asdict(part)  # Mistral's client refuses a part without a name
            yield (ToolCallDelta(index=calls, choice=choice.index, **whole),)
            calls += 1
            continue
        key = _logprobs_field(part)
        shares = _by_tokens(part.text, left.get(key)) if key else None
        if shares is None:
            yield tuple([_text_delta(part, text, choice) for text in split_text(part.text)])
            continue
        for text, tokens in shares:
            value = {**nothing, key: tokens}
            logprobs = LogprobsDelta(value=value, choice=choice.index)
            yield logprobs, _text_delta(part, text, choice)
        left[key] = None
    return left if left != nothing or choice.logprobs == {} else None


def _logprobs_field(part: Text | Reasoning | Refusal) -> str:
    """Return the field of a part's log probabilities; "" if it has none."""
    if isinstance(part, Reasoning):
        return ""
    return "content" if isinstance(part, Text) else "refusal"


def _text_delta(part: Text | Reasoning | Refusal, text: str, choice: Choice) -> StreamEvent:
    if isinstance(part, Reasoning):
        return ReasoningDelta(text=text, field=part.field, choice=choice.index)
    kind = TextDelta if isinstance(part, Text) else RefusalDelta
    return kind(text=text, choice=choice.index)


def _by_tokens(text: str, tokens: Any) -> list[tuple[str, list[Any]]] | None:
    """Cut a text between tokens; each piece has its tokens. None if the tokens are not the text.

    A token may end inside a character. So a piece ends only where the bytes so far are whole
    characters.
    """
    if not tokens or not isinstance(tokens, list):
        return None
    raw = text.encode()
    shares: list[tuple[str, list[Any]]] = []
    start = end = first = 0
    for position, token in enumerate(tokens, 1):
        spelled = _token_bytes(token)
        if spelled is None or not raw.startswith(spelled, end):
            return None
        end += len(spelled)
        if position < len(tokens):
            inside_character = end < len(raw) and raw[end] & 0xC0 == 0x80
            if inside_character or end - start < CHUNK_CHARACTERS:
                continue
        elif end < len(raw):
            return None
        shares.append((raw[start:end].decode(), tokens[first:position]))
        start, first = end, position
    return shares


def _token_bytes(token: Any) -> bytes | None:
    if not isinstance(token, dict):
        return None
    codes, spelled = token.get("bytes"), token.get("token")
    if isinstance(codes, list) and all(type(code) is int and 0 <= code < 256 for code in codes):
        return bytes(codes)
    return spelled.encode() if isinstance(spelled, str) else None


OPENAI_CHAT = Dialect(
    name=NAME,
    setting="openai",
    includes=("completions",),
    account_headers=frozenset({b"openai-organization", b"openai-project"}),
    models=_MODELS,
    path_below_version="/chat/completions",
    text_fields=frozenset({"content", "reasoning", "reasoning_content"}),
    logprobs=LogprobsForm(read=_as_it_is, write=_as_it_is),
    logprobs_field="logprobs",
    asks_functions=_asks_functions,
    mark_cache=add_cache_key,
    limit_headers=LimitHeaders("x-ratelimit-{part}-{unit}", _time_left),
    apply_quirks=partial(apply_quirks, dialect=NAME),
    claims=_claims,
    heartbeat=b": waiting\n\n",
    paths=("/v1/chat/completions",),
    key=KeyForm(
        fields=_FIELDS,
        canonical=canonical_body,
        headers=frozenset({b"openai-organization", b"openai-project"}),
    ),
    form=RequestForm(),
    parse_request=parse_request,
    read_request=read_request,
    write_request=write_request,
    shows_reasoning=_shows_reasoning,
    add_usage=add_usage,
    tokens=usage_tokens,
    usage=_usage,
    decoder=ChatDecoder,
    decode_body=decode_body,
    encoder=ChatEncoder,
    write_body=_write_body,
    render=_render,
    new_id=lambda: "chatcmpl-" + random_bytes(12).hex(),
    error_body=error_body,
    error_frame=error_frame,
)
