from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessage

from headstart.dialects.dialect import CHUNK_CHARACTERS
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.errors import HeadstartError, InvalidRequest, Overloaded, StoreError, UpstreamTimeout
from headstart.middleware.reading import SSEDecoder
from headstart.reply import Transcript
from headstart.types import (
    Choice,
    Completion,
    Ended,
    ErrorReported,
    Reasoning,
    Refusal,
    Text,
    ToolCall,
)
from support.completions import completions

DIALECT = OPENAI_CHAT
USAGE = {
    "prompt_tokens": 3,
    "completion_tokens": 4,
    "total_tokens": 7,
    "completion_tokens_details": {"reasoning_tokens": 2},
}


def chunks_of(stream: bytes) -> list[dict[str, Any]]:
    frames = SSEDecoder().feed(stream)
    assert frames[-1].data == b"[DONE]"
    return [json.loads(frame.data or b"") for frame in frames[:-1]]


def stream_of(completion: Completion, *, include_usage: bool = True) -> list[dict[str, Any]]:
    sse = DIALECT.render(completion).sse("chatcmpl-1", 7, include_usage=include_usage)
    return chunks_of(sse)


def json_of(completion: Completion) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(DIALECT.render(completion).json("chatcmpl-1", 7))
    return document


def answer(*parts: Text | Reasoning | Refusal | ToolCall, **fields: Any) -> Completion:
    choice = Choice(index=0, parts=parts, finish=fields.pop("finish", "stop"), **fields)
    return Completion(model="m", choices=(choice,), created=1, usage=USAGE, fingerprint="fp")


def deltas_of(completion: Completion) -> list[dict[str, Any]]:
    return [c["choices"][0]["delta"] for c in stream_of(completion, include_usage=False)]


@given(completions())
def test_stream_reads_back_as_the_same_answer(completion: Completion) -> None:
    rendered = DIALECT.render(completion)
    transcript, decoder = Transcript(), DIALECT.decoder()
    for frame in SSEDecoder().feed(rendered.sse("id", completion.created, include_usage=True)):
        transcript.feed(decoder.feed(frame))
    assert transcript.completion(now=0) == without_empty_lists(completion)


def without_empty_lists(completion: Completion) -> Completion:
    """A stream says nothing of a list without items."""
    choices = [
        msgspec.structs.replace(
            choice, extra={name: value for name, value in choice.extra.items() if value != []}
        )
        for choice in completion.choices
    ]
    return msgspec.structs.replace(completion, choices=tuple(choices))


@given(completions())
def test_json_reads_back_as_the_same_answer(completion: Completion) -> None:
    transcript = Transcript()
    body = DIALECT.render(completion).json("id", completion.created)
    transcript.feed(DIALECT.decode_body(200, body))
    assert transcript.completion(now=0) == in_json_order(completion)


def in_json_order(completion: Completion) -> Completion:
    """JSON has one place for each kind of part, so the order of arrival is lost in it."""
    choices = [
        msgspec.structs.replace(choice, parts=_grouped(choice)) for choice in completion.choices
    ]
    return msgspec.structs.replace(completion, choices=tuple(choices))


def _grouped(choice: Choice) -> tuple[Any, ...]:
    reasoning: dict[str, str] = {}
    texts: dict[type, str] = {}
    for part in choice.parts:
        if isinstance(part, Reasoning):
            reasoning[part.field] = reasoning.get(part.field, "") + part.text
        elif isinstance(part, Text | Refusal):
            texts[type(part)] = texts.get(type(part), "") + part.text
    return (
        *(Reasoning(text=text, field=field) for field, text in reasoning.items()),
        *(kind(text=texts[kind]) for kind in (Text, Refusal) if kind in texts),
        *(part for part in choice.parts if isinstance(part, ToolCall)),
    )


def test_a_stream_of_a_whole_answer_has_no_empty_lists() -> None:
    """OpenAI's messages have ``annotations: []``, and its deltas do not."""
    kept = answer(Text(text="a"), extra={"annotations": []})
    assert json_of(kept)["choices"][0]["message"]["annotations"] == []
    assert deltas_of(kept)[0] == {"role": "assistant", "content": "", "refusal": None}


def test_the_fields_of_an_answer_are_in_its_first_chunk_and_its_last() -> None:
    """OpenAI's SDK keeps those of the first chunk; some providers send them in the last."""
    kept = msgspec.structs.replace(SAMPLES["text"], extra={"provider": "P"})
    first, *chunks, last = stream_of(kept, include_usage=False)
    assert (first["provider"], last["provider"]) == ("P", "P")
    assert not any("provider" in chunk for chunk in chunks)


def whole_or_streamed(message: Any, deltas: list[Any]) -> list[Completion]:
    """Return an answer with calls as it is kept from a whole answer, and from a stream."""
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    body = json.dumps({"id": "x", "model": "m", "choices": [choice]}).encode()
    whole, streamed = Transcript(), Transcript()
    whole.feed(DIALECT.decode_body(200, body))
    decoder = DIALECT.decoder()
    for number, delta in enumerate(deltas, 1):
        reason = "tool_calls" if number == len(deltas) else None
        chunk = {"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
        for frame in SSEDecoder().feed(b"data: %b\n\n" % json.dumps(chunk).encode()):
            streamed.feed(decoder.feed(frame))
    streamed.feed((Ended(),))
    kept = [each.completion(now=0) for each in (whole, streamed)]
    assert None not in kept
    return [each for each in kept if each is not None]


def test_hits_have_mistrals_calls_as_mistral_sends_them() -> None:
    """Its calls have numbers and no type, and empty content beside them."""
    calls = [
        {"id": id, "function": {"name": "f", "arguments": "{}"}, "index": index}
        for index, id in enumerate(("a", "b"))
    ]
    message = {"role": "assistant", "content": "", "tool_calls": calls}
    deltas = [{"role": "assistant", "content": ""}, {"content": None, "tool_calls": calls}]
    for kept in whole_or_streamed(message, deltas):
        said = json_of(kept)["choices"][0]["message"]
        assert said["content"] == ""
        assert said["tool_calls"] == [{**call, "type": "function"} for call in calls]
        first, *rest = deltas_of(kept)
        assert first["content"] == ""
        assert [call["index"] for delta in rest for call in delta.get("tool_calls", ())] == [0, 1]


def test_a_thought_that_mistral_streams_in_many_parts_is_one_part_of_a_hit() -> None:
    def thought(text: str) -> dict[str, Any]:
        return {"type": "thinking", "thinking": [{"type": "text", "text": text}]}

    cited = {"type": "reference", "reference_ids": [1]}
    said = {"type": "text", "text": "Blue."}
    message = {"content": [thought("It is so"), cited, thought("."), said]}
    pieces = [thought("It"), thought(" is so"), cited, thought(".")]
    deltas: list[Any]
    deltas = [{"content": ""}, *({"content": [piece]} for piece in pieces), {"content": "Blue."}]
    for kept in whole_or_streamed(message, deltas):
        assert json_of(kept)["choices"][0]["message"]["content"] == message["content"]
        first, text, _ = deltas_of(kept)
        assert (first["content"], text["content"]) == (message["content"][:-1], "Blue.")


def test_hits_have_openais_calls_as_openai_sends_them() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    first = {"role": "assistant", "content": None, "tool_calls": [{**call, "index": 0}]}
    for kept in whole_or_streamed(message, [first, {}]):
        said = json_of(kept)["choices"][0]["message"]
        assert (said["content"], said["tool_calls"]) == (None, [call])
        assert deltas_of(kept)[0]["content"] is None


def test_text_before_calls_is_the_content() -> None:
    call = {"id": "a", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": "I look.", "tool_calls": [call]}
    deltas = [{"content": ""}, {"content": "I look."}, {"tool_calls": [call]}]
    for kept in whole_or_streamed(message, deltas):
        assert json_of(kept)["choices"][0]["message"]["content"] == "I look."


# --- what clients rely on ---------------------------------------------------------------------

CALLS = (
    ToolCall(id="call_1", name="f", arguments='{"a": 1}'),
    ToolCall(id="call_2", name="g", arguments=""),
)
LOGPROBS = {
    "content": [
        {"token": "Hi", "bytes": [72, 105], "logprob": -0.1, "top_logprobs": []},
        {"token": "!", "bytes": [33], "logprob": -0.2, "top_logprobs": []},
    ],
    "refusal": None,
}
SAMPLES = {
    "text": answer(Text(text="word " * 200)),
    "empty": answer(),
    "reasoning": answer(Reasoning(text="hm " * 100), Text(text="Hi")),
    "refusal": answer(Refusal(text="No.")),
    "tool calls": answer(*CALLS, finish="tool_calls"),
    "text and tool calls": answer(Text(text="Let me see"), *CALLS, finish="tool_calls"),
    "logprobs": answer(Text(text="Hi!"), logprobs=LOGPROBS),
    "two choices": Completion(
        model="m",
        choices=tuple(
            Choice(index=i, parts=(Text(text=f"answer {i}"),), finish="stop") for i in range(2)
        ),
        created=1,
        usage=USAGE,
        tier="default",
        extra={"provider": "P"},
    ),
}
sampled = pytest.mark.parametrize("completion", SAMPLES.values(), ids=SAMPLES.keys())


@sampled
def test_openai_sdk_reads_json_and_stream_alike(completion: Completion) -> None:
    whole = ChatCompletion.model_validate(json_of(completion))
    state: Any = ChatCompletionStreamState()
    for chunk in stream_of(completion):
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk))
    streamed = state.get_final_completion()
    assert streamed.usage == whole.usage
    for a, b in zip(streamed.choices, whole.choices, strict=True):
        assert (a.finish_reason, a.index) == (b.finish_reason, b.index)
        assert (a.message.content or "") == (b.message.content or "")
        assert a.message.refusal == b.message.refusal
        assert getattr(a.message, "reasoning_content", None) == getattr(
            b.message, "reasoning_content", None
        )
        assert calls_of(a.message) == calls_of(b.message)
        assert (a.logprobs and a.logprobs.content) == (b.logprobs and b.logprobs.content)


def calls_of(message: ChatCompletionMessage) -> list[tuple[str, str, str]]:
    return [
        (call.id, call.function.name, call.function.arguments)
        for call in message.tool_calls or ()
        if call.type == "function"
    ]


@sampled
def test_every_choice_opens_with_its_role_and_closes_with_its_finish(
    completion: Completion,
) -> None:
    choices = [c["choices"][0] for c in stream_of(completion, include_usage=False)]
    for index in range(len(completion.choices)):
        mine = [choice for choice in choices if choice["index"] == index]
        assert mine[0]["delta"]["role"] == "assistant"
        assert [choice["finish_reason"] for choice in mine[:-1]] == [None] * (len(mine) - 1)
        assert (mine[-1]["delta"], mine[-1]["finish_reason"]) == (
            {},
            completion.choices[index].finish,
        )


@sampled
def test_chunks_are_named_alike_and_none_is_a_token(completion: Completion) -> None:
    chunks = stream_of(completion)
    names = ("id", "object", "created", "model")
    expected = ("chatcmpl-1", "chat.completion.chunk", 7, "m")
    assert {tuple(chunk[name] for name in names) for chunk in chunks} == {expected}
    unknown = "absent: some clients refuse null in a chunk"
    fingerprint = completion.fingerprint or unknown
    assert {chunk.get("system_fingerprint", unknown) for chunk in chunks} == {fingerprint}
    characters = sum(
        len(part.text) for c in completion.choices for part in c.parts if hasattr(part, "text")
    )
    assert len(chunks) <= characters / CHUNK_CHARACTERS + 9


def test_usage_chunk_comes_last_and_only_when_asked() -> None:
    asked = stream_of(SAMPLES["text"])
    assert (asked[-1]["choices"], asked[-1]["usage"]) == ([], USAGE)
    unasked = stream_of(SAMPLES["text"], include_usage=False)
    assert not any("usage" in chunk for chunk in unasked)
    assert asked[:-1] == [{**chunk, "usage": None} for chunk in unasked], "as OpenAI's API says"
    unknown = msgspec.structs.replace(SAMPLES["text"], usage=None)
    assert stream_of(unknown) == unasked


def test_usage_that_came_unasked_comes_unasked_again() -> None:
    """Mistral reports it beside the finish reason, and its clients cannot ask for it."""
    unasked = msgspec.structs.replace(SAMPLES["two choices"], usage_beside=True)
    *chunks, last = stream_of(unasked, include_usage=False)
    assert (last["usage"], last["choices"][0]["finish_reason"]) == (USAGE, "stop")
    assert not any("usage" in chunk for chunk in chunks)
    assert stream_of(unasked) == stream_of(SAMPLES["two choices"])


def test_unknown_usage_is_not_made_up() -> None:
    unmetered = msgspec.structs.replace(SAMPLES["text"], usage=None)
    assert stream_of(unmetered) == stream_of(unmetered, include_usage=False)
    assert "usage" not in json_of(unmetered)


def test_tool_call_comes_whole() -> None:
    """Mistral's client refuses a part of a call that has no name."""
    long = ToolCall(id="a", name="f", arguments="x" * (CHUNK_CHARACTERS + 1), extra={"s": 1})
    deltas = [delta["tool_calls"][0] for delta in deltas_of(answer(CALLS[1], long))[1:-1]]
    assert deltas[1:] == [
        {
            "index": 1,
            "id": "a",
            "type": "function",
            "function": {"name": "f", "arguments": "x" * (CHUNK_CHARACTERS + 1)},
            "s": 1,
        }
    ]


def test_deprecated_function_call_keeps_its_form() -> None:
    call = ToolCall(id="", name="f", arguments="{}", kind="function_call")
    assert json_of(answer(call))["choices"][0]["message"]["function_call"] == {
        "name": "f",
        "arguments": "{}",
    }
    assert deltas_of(answer(call))[1:-1] == [{"function_call": {"name": "f", "arguments": "{}"}}]


def test_reasoning_in_content_parts_stays_before_the_text() -> None:
    thinking = {"type": "thinking", "thinking": []}
    message = json_of(answer(Text(text="Hi"), extra={"content": [thinking]}))["choices"][0][
        "message"
    ]
    assert message["content"] == [thinking, {"type": "text", "text": "Hi"}]


def tokens(*spelled: bytes) -> list[dict[str, Any]]:
    return [{"token": repr(raw), "bytes": list(raw), "logprob": -1.0} for raw in spelled]


def shares_of(text: str, content: Any) -> list[tuple[str, Any]]:
    completion = answer(Text(text=text), logprobs={"content": content, "refusal": None})
    choices = [chunk["choices"][0] for chunk in stream_of(completion, include_usage=False)]
    return [
        (choice["delta"].get("content", ""), (choice["logprobs"] or {}).get("content"))
        for choice in choices[1:]
    ]


def test_logprobs_keep_the_token_boundaries() -> None:
    words = tokens(*(b"word%04d " % i for i in range(60)))
    shares = shares_of("".join(f"word{i:04d} " for i in range(60)), words)
    assert len(shares) > 2
    for text, share in shares[:-1]:
        assert text.encode() == b"".join(bytes(token["bytes"]) for token in share)
    assert [token for _, share in shares[:-1] for token in share] == words


def test_piece_never_ends_inside_a_character() -> None:
    torn = tokens(*([b"\xf0\x9f", b"\x99\x82"] * 120))
    assert "".join(text for text, _ in shares_of("🙂" * 120, torn)) == "🙂" * 120


UNALIGNED = {
    "other text": tokens(b"Bye"),
    "too short": tokens(b"H"),
    "too long": tokens(b"Hi", b"<|end|>"),
    "not objects": ["Hi"],
    "impossible bytes": [{"bytes": [999]}],
}


@pytest.mark.parametrize("content", UNALIGNED.values(), ids=UNALIGNED.keys())
def test_logprobs_that_do_not_spell_the_text_are_kept_whole(content: Any) -> None:
    assert shares_of("Hi", content) == [("Hi", None), ("", content)]


def test_id_is_fresh_and_in_the_providers_style() -> None:
    assert re.fullmatch("chatcmpl-[0-9a-f]{24}", DIALECT.new_id())
    assert DIALECT.new_id() != DIALECT.new_id()


def test_rendered_answer_knows_its_size() -> None:
    small, large = (DIALECT.render(answer(Text(text="x" * n))).nbytes for n in (10, 10_000))
    assert 2 * 9_990 <= large - small <= 4 * 9_990


# --- errors ----------------------------------------------------------------------------------

ERRORS: dict[str, tuple[HeadstartError | ErrorReported, str, str | None]] = {
    "the caller's": (InvalidRequest("why"), "invalid_request_error", "invalid_request"),
    "too many": (Overloaded("why"), "rate_limit_error", "overloaded"),
    "the upstream's": (UpstreamTimeout("why"), "server_error", "upstream_timeout"),
    "ours": (StoreError("why"), "server_error", None),
    "reported": (
        ErrorReported(message="why", code="c", status=400),
        "invalid_request_error",
        "c",
    ),
}


@pytest.mark.parametrize(("error", "kind", "code"), ERRORS.values(), ids=ERRORS.keys())
def test_error_is_told_in_dialect(
    error: HeadstartError | ErrorReported, kind: str, code: str | None
) -> None:
    body = DIALECT.error_body(error, "req-1")
    assert json.loads(body) == {
        "error": {
            "message": "why",
            "type": kind,
            "param": None,
            "code": code,
            "request_id": "req-1",
        }
    }
    assert DIALECT.error_frame(error, "req-1") == b"data: " + body + b"\n\n"


def test_error_frame_reads_back_as_an_error() -> None:
    (frame,) = SSEDecoder().feed(DIALECT.error_frame(UpstreamTimeout("why"), "req-1"))
    assert DIALECT.decoder().feed(frame) == (ErrorReported(message="why", code="upstream_timeout"),)
