from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anthropic
import httpx2
import pytest
from hypothesis import example, given

from headstart.dialects.anthropic_messages import ANTHROPIC_MESSAGES
from headstart.types import (
    CONTENT_BLOCKS,
    Choice,
    Completion,
    Ended,
    ErrorReported,
    ExtraDelta,
    Finished,
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
)
from support.completions import completions
from support.events import crumbled, decoded, encoded, events_of, folded, said
from support.scripted_messages import _block_events, event, opening

if TYPE_CHECKING:
    from headstart.types import StreamEvent

DIALECT = ANTHROPIC_MESSAGES
USAGE = {"input_tokens": 3, "output_tokens": 4}
START = Started(id="up", model="m")
END = (Finished(reason="stop"), UsageReported(usage=USAGE), Ended())


def events(*said: StreamEvent) -> list[dict[str, Any]]:
    read = []
    for frame in encoded(DIALECT, (START, TextDelta(text=""), *said)).split(b"\n\n")[:-1]:
        name, data = frame.split(b"\n")
        read.append(json.loads(data.removeprefix(b"data: ")))
        assert name == b"event: " + read[-1]["type"].encode()
    return read


def blocks(*said: StreamEvent) -> list[Any]:
    """Return the content as clients add it up; blocks that overlap fail."""
    content: list[Any] = []
    is_open = False
    for each in events(*said):
        match each:
            case {"type": "content_block_start", "index": index, "content_block": block}:
                assert (index, is_open) == (len(content), False)
                is_open = True
                content.append({**block, "json": ""})
            case {"type": "content_block_delta", "index": index, "delta": delta}:
                assert (index, is_open) == (len(content) - 1, True)
                for field, value in delta.items():
                    name = "json" if field == "partial_json" else field
                    if field != "type":
                        content[-1][name] = content[-1].get(name, "") + value
            case {"type": "content_block_stop"}:
                is_open = False
    assert not is_open
    return content


OUT_OF_ORDER = (
    ToolCall(id="t", name="look", arguments=""),
    Refusal(text="0"),
    Text(text="1"),
    Refusal(text="2"),
)
"""A refusal has no number at its provider, and the call's arguments are never whole."""


@example(
    Completion(model="m", choices=(Choice(index=0, parts=OUT_OF_ORDER, finish="stop"),), created=0)
)
@given(completions())
def test_text_and_calls_read_back_as_they_were(completion: Completion) -> None:
    stream = encoded(DIALECT, crumbled(events_of(completion)))
    choice = completion.choices[0]
    if choice.index == 0:
        read = folded(decoded(DIALECT, stream)).choices[0]
        calls = [part for part in said(choice) if part[0] == "call"]
        # A call without arguments has an empty object for them in this dialect.
        wanted = [(*call[:3], call[3] or "{}") for call in calls]
        assert [part for part in said(read) if part[0] == "call"] == wanted
        texts = "".join(p.text for p in choice.parts if not isinstance(p, ToolCall | Reasoning))
        assert "".join(p.text for p in read.parts if isinstance(p, Text)) == texts


def test_own_answer_reads_back_whole() -> None:
    parts = (
        Reasoning(text="hm", field="thinking", signature="sig"),
        Text(text="Let me look."),
        ToolCall(id="toolu_1", name="look", arguments='{"at": 1}'),
        ToolCall(id="toolu_2", name="look", arguments='{"at": 2}'),
    )
    choice = Choice(index=0, parts=parts, finish="tool_calls", native_finish="tool_use")
    whole = Completion(model="m", choices=(choice,), created=0, usage=USAGE)
    assert folded(decoded(DIALECT, encoded(DIALECT, crumbled(events_of(whole))))) == whole


def test_blocks_of_other_types_pass_as_they_came() -> None:
    search = {"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {}}
    piece = {"type": "input_json_delta", "partial_json": '{"query":"x"}'}
    cited = {"type": "citations_delta", "citation": {"url": "u"}}
    stream = b"".join(
        (
            opening(),
            event("content_block_start", index=0, content_block=search),
            event("content_block_delta", index=0, delta=piece),
            event("content_block_stop", index=0),
            _block_events(1, {"type": "text", "text": ""}),
            event("content_block_start", index=2, content_block={"type": "text", "text": ""}),
            event("content_block_delta", index=2, delta={"type": "text_delta", "text": "a"}),
            event("content_block_delta", index=2, delta=cited),
            event("content_block_stop", index=2),
            event(
                "message_delta",
                delta={"stop_reason": "stop_sequence", "stop_sequence": "x", "container": {}},
                usage={"output_tokens": 9},
                context_management={"applied_edits": []},
            ),
            event("message_stop"),
        )
    )
    read = decoded(DIALECT, stream)
    again = decoded(DIALECT, encoded(DIALECT, read))
    assert folded(again) == folded(read)


def test_calls_sent_in_turns_follow_one_another() -> None:
    first, second = blocks(
        ToolCallDelta(index=0, id="a", name="f", arguments='{"x":'),
        ToolCallDelta(index=1, id="b", name="g", arguments='{"y":'),
        ToolCallDelta(index=0, arguments="1}"),
        ToolCallDelta(index=1, arguments="2}"),
        *END,
    )
    assert (first["id"], first["json"]) == ("a", '{"x":1}')
    assert (second["id"], second["json"]) == ("b", '{"y":2}')


def test_call_whose_arguments_are_whole_does_not_hold_up_the_next() -> None:
    encoder = DIALECT.encoder("msg_1", 7, include_usage=False)
    encoder.feed((ToolCallDelta(index=0, id="a", name="f", arguments="{}"),))
    assert b'"name":"g"' in encoder.feed((ToolCallDelta(index=1, id="b", name="g"),))


def test_text_after_a_call_is_a_block_of_its_own() -> None:
    kinds = [
        block["type"]
        for block in blocks(
            TextDelta(text="a"),
            ToolCallDelta(index=0, id="a", name="f", arguments="{}"),
            TextDelta(text="b"),
            *END,
        )
    ]
    assert kinds == ["text", "tool_use", "text"]


def test_usage_known_at_the_start_is_told_there_and_the_true_one_at_the_end() -> None:
    said = (UsageReported(usage={"input_tokens": 2}), TextDelta(text="a"), *END)
    start, *_, ending, _ = events(*said)
    assert start["message"]["usage"] == {"input_tokens": 2, "output_tokens": 0}
    assert ending["usage"] == USAGE


@pytest.mark.parametrize(
    ("finish", "said", "reason"),
    [
        (Finished(reason="stop"), TextDelta(text="a"), "end_turn"),
        (Finished(reason="stop", native="STOP"), TextDelta(text="a"), "end_turn"),
        (Finished(reason="stop", native="stop_sequence"), TextDelta(text="a"), "stop_sequence"),
        (Finished(reason="length"), TextDelta(text="a"), "max_tokens"),
        (Finished(reason="content_filter", native="SAFETY"), TextDelta(text="a"), "refusal"),
        (Finished(reason="pause_turn"), TextDelta(text="a"), "pause_turn"),
        (Finished(reason="stop"), RefusalDelta(text="no"), "refusal"),
        (Finished(reason="stop"), ToolCallDelta(index=0, id="a", name="f"), "tool_use"),
    ],
)
def test_stop_reason_is_the_apis_own(finish: Finished, said: StreamEvent, reason: str) -> None:
    assert events(said, finish, Ended())[-2]["delta"]["stop_reason"] == reason


def test_reasoning_that_nobody_signed_here_begins_the_message_and_is_left_out() -> None:
    thought = ReasoningDelta(text="hm", field="reasoning_content")
    assert [each["type"] for each in events(thought)] == ["message_start"]


def test_other_choices_are_left_out() -> None:
    (block,) = blocks(TextDelta(text="a"), TextDelta(text="b", choice=1), *END)
    assert block["text"] == "a"


def test_fields_of_other_dialects_are_left_out() -> None:
    (block,) = blocks(ExtraDelta(fields={"annotations": []}), TextDelta(text="a"), *END)
    assert block == {"type": "text", "text": "a", "json": ""}


def test_unknown_fields_of_a_block_stay_with_it() -> None:
    fields = {CONTENT_BLOCKS: [{"citations": [], "index": 0}]}
    (block,) = blocks(ExtraDelta(fields=fields), TextDelta(text="a", block=0), *END)
    assert block["citations"] == []


def test_nothing_follows_an_error() -> None:
    encoder = DIALECT.encoder("msg_1", 7, include_usage=False)
    encoder.feed((START, TextDelta(text="a")))
    assert b"overloaded_error" in encoder.feed((ErrorReported(message="x", status=529),))
    assert encoder.feed((TextDelta(text="b"), *END)) == b""


def test_encoder_that_was_fed_the_head_goes_on_after_it() -> None:
    head = (START, TextDelta(text="a", block=0), TextDelta(text="b", block=0))
    tail = (TextDelta(text="c", block=0), ToolCallDelta(index=0, id="t", name="f"), *END)
    first = DIALECT.encoder("id-1", 7, include_usage=True)
    second = DIALECT.encoder("id-1", 7, include_usage=True)
    second.feed(head)
    assert first.feed(head) + second.feed(tail) == encoded(DIALECT, (*head, *tail))


def test_sdk_reads_the_stream() -> None:
    said = (
        START,
        TextDelta(text="Hi"),
        ToolCallDelta(index=0, id="toolu_1", name="f", arguments='{"x":'),
        ToolCallDelta(index=0, arguments="1}"),
        *END,
    )
    content = encoded(DIALECT, said)

    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, content=content, headers={"content-type": "text/event-stream"})

    with (
        anthropic.Anthropic(
            api_key="k", http_client=httpx2.Client(transport=httpx2.MockTransport(answer))
        ) as client,
        client.messages.stream(
            model="m", max_tokens=9, messages=[{"role": "user", "content": "x"}]
        ) as stream,
    ):
        message = stream.get_final_message()
    assert message.stop_reason == "tool_use"
    assert message.usage.input_tokens == 3
    text, call = message.content
    assert text.type == "text"
    assert text.text == "Hi"
    assert call.type == "tool_use"
    assert call.input == {"x": 1}


def test_a_call_with_fields_of_its_own_is_replayed_as_it_would_be_streamed() -> None:
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {"city": "Bonn"}, "mood": "calm"}
    whole = {
        "id": "m", "type": "message", "role": "assistant", "model": "c", "content": [call],
        "stop_reason": "tool_use", "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 2},
    }  # fmt: skip
    answer = folded(DIALECT.decode_body(200, json.dumps(whole).encode()))
    replay = DIALECT.render(answer).sse("m", 1, include_usage=True)
    events = [json.loads(line[6:]) for line in replay.splitlines() if line.startswith(b"data: ")]
    (begun,) = [each["content_block"] for each in events if each["type"] == "content_block_start"]
    assert begun == {**call, "input": {}}
    deltas = [each["delta"] for each in events if each["type"] == "content_block_delta"]
    assert {delta["type"] for delta in deltas} == {"input_json_delta"}
    assert json.loads("".join(delta["partial_json"] for delta in deltas)) == call["input"]
