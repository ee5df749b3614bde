from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from headstart.dialects.anthropic_messages import ANTHROPIC_MESSAGES
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.errors import UpstreamProtocolError
from headstart.middleware import reading
from headstart.middleware.reading import MOST_TRIES, BodyReader, DocumentReader, FrameReader
from headstart.middleware.translated_reading import (
    AnswerNames,
    DocumentTranslator,
    Reencoder,
    StreamAssembler,
)
from headstart.reply import Transcript
from headstart.types import Ended, ErrorReported, Piece, StreamEvent, UsageReported
from support.events import decoded, folded, said
from support.scripted import USAGE_CHUNK, chunk
from support.scripted_messages import _block_events, event, opening

if TYPE_CHECKING:
    from collections.abc import Callable

    from headstart.dialects.dialect import Dialect, UpstreamDialect

OPENAI, ANTHROPIC = OPENAI_CHAT, ANTHROPIC_MESSAGES
NAMING = AnswerNames("01H", "own-id", 7)
DONE = b"data: [DONE]\n\n"
CHAT = (
    chunk({"role": "assistant", "content": ""})
    + chunk({"content": "Hé 🙂"})
    + chunk({}, "stop")
    + USAGE_CHUNK
    + DONE
)
MESSAGE = b"".join(
    (
        opening(),
        _block_events(0, {"type": "thinking", "thinking": "hm", "signature": "s"}),
        _block_events(1, {"type": "text", "text": "Hé 🙂"}),
        _block_events(2, {"type": "tool_use", "id": "t", "name": "f", "input": {"x": 1}}),
        event("message_delta", delta={"stop_reason": "tool_use"}, usage={"output_tokens": 20}),
        event("message_stop"),
    )
)


def read(reader: BodyReader, *pieces: bytes) -> tuple[bytes, list[StreamEvent]]:
    data = b""
    events: list[StreamEvent] = []
    for arrived in pieces:
        piece = reader.feed(arrived)
        data += piece.data
        events += piece.events
        if reader.failed:
            break
    last = reader.end()
    return data + last.data, [*events, *last.events]


class RecordedAssembler(StreamAssembler):
    """Adds its pieces to their transcript, as a reader of the upstream does."""

    def __init__(self, source: UpstreamDialect, target: Dialect, naming: AnswerNames) -> None:
        self._recorded = Transcript()
        super().__init__(source, target, naming, self._recorded)

    def feed(self, data: bytes) -> Piece:
        piece = super().feed(data)
        self._recorded.add(piece)
        return piece


def to_chat() -> Reencoder:
    encoder = OPENAI.encoder(NAMING.answer_id, NAMING.created, include_usage=True)
    return Reencoder(ANTHROPIC, OPENAI, NAMING, encoder)


def to_messages() -> Reencoder:
    encoder = ANTHROPIC.encoder(NAMING.answer_id, NAMING.created, include_usage=True)
    return Reencoder(OPENAI, ANTHROPIC, NAMING, encoder)


READERS: dict[str, tuple[Callable[[], BodyReader], bytes]] = {
    "passed": (lambda: FrameReader(OPENAI, "01H"), CHAT),
    "stripped": (lambda: FrameReader(OPENAI, "01H", strip_usage=True), CHAT),
    "to OpenAI": (to_chat, MESSAGE),
    "to Anthropic": (to_messages, CHAT),
    "folded": (lambda: RecordedAssembler(OPENAI, OPENAI, NAMING), CHAT),
    "folded to OpenAI": (lambda: RecordedAssembler(ANTHROPIC, OPENAI, NAMING), MESSAGE),
}


@pytest.mark.parametrize(("make", "stream"), READERS.values(), ids=READERS)
def test_every_split_gives_the_same_bytes_and_events(
    make: Callable[[], BodyReader], stream: bytes
) -> None:
    whole = read(make(), stream)
    for at in range(1, len(stream)):
        assert read(make(), stream[:at], stream[at:]) == whole
    assert isinstance(whole[1][-1], Ended)


@pytest.mark.parametrize(("make", "stream"), READERS.values(), ids=READERS)
@pytest.mark.parametrize(
    "more",
    [b": bye\n\n", b"\n", b"data: {", chunk({"content": "x"}), DONE, event("error", error={})],
)
def test_bytes_after_the_terminal_event_are_not_part_of_the_answer(
    make: Callable[[], BodyReader], stream: bytes, more: bytes
) -> None:
    whole, reader = read(make(), stream), make()
    for at in (len(stream) - 1, len(stream), len(stream) + 1, len(stream + more)):
        assert read(make(), (stream + more)[:at], (stream + more)[at:]) == whole
    reader.feed(stream[:-1])
    begun = reader.ended
    reader.feed(stream[-1:] + more)
    assert (begun, reader.ended) == (False, True)


@pytest.mark.parametrize("translated", [False, True])
def test_a_document_ends_with_its_last_bracket(*, translated: bool) -> None:
    choice = {"index": 0, "message": {"content": "a}\n"}, "finish_reason": "stop"}
    body = json.dumps({"choices": [choice]}).encode() + b"\n"
    make = (
        (lambda: DocumentTranslator(OPENAI, ANTHROPIC, 200, NAMING))
        if translated
        else (lambda: DocumentReader(OPENAI, 200))
    )
    for at in range(1, len(body) - 1):
        reader = make()
        reader.feed(body[:at])
        begun = reader.ended
        reader.feed(body[at:])
        assert (begun, reader.ended) == (False, True)
        assert isinstance(reader.end().events[-1], Ended)


@pytest.mark.parametrize(
    "body", [b"{}", b'{"error":{"message":"no"}}', b'{"a":1}\n{"choices":[]}', b"[{}", b"<p>}"]
)
def test_a_body_that_is_not_an_answer_has_no_end_of_its_own(body: bytes) -> None:
    reader = DocumentReader(OPENAI, 200)
    reader.feed(body)
    assert not reader.ended


def test_a_document_is_not_decoded_at_each_of_its_brackets() -> None:
    decoded: list[int] = []

    def decode_body(status: int, body: bytes) -> tuple[StreamEvent, ...]:
        decoded.append(len(body))
        return OPENAI_CHAT.decode_body(status, body)

    reader = DocumentReader(replace(OPENAI_CHAT, decode_body=decode_body), 200)
    for _ in range(1000):
        reader.feed(b"{}")
        assert not reader.ended
    assert sum(decoded) <= MOST_TRIES * 2000


@pytest.mark.parametrize("make", [to_chat, lambda: RecordedAssembler(ANTHROPIC, OPENAI, NAMING)])
def test_translated_answer_says_the_same_and_has_the_clients_names(
    make: Callable[[], BodyReader],
) -> None:
    data, events = read(make(), MESSAGE)
    streamed = data.startswith(b"data:")
    there = decoded(OPENAI, data) if streamed else list(OPENAI.decode_body(200, data))
    (choice,) = folded(there).choices
    assert sorted(said(choice)) == sorted(
        [("reasoning", "hm"), ("text", "Hé 🙂"), ("call", "t", "f", '{"x": 1}')]
    )
    assert choice.finish == "tool_calls"
    assert (folded(there).created, folded(events).created) == (7, 7)
    assert b'"id":"own-id"' in data
    assert b'"signature"' not in data


def test_missing_terminal_event_is_made_up_for_a_finished_answer() -> None:
    data, events = read(to_messages(), CHAT.removesuffix(DONE))
    assert data == read(to_messages(), CHAT)[0]
    assert isinstance(events[-1], Ended)
    body, _ = read(RecordedAssembler(OPENAI, OPENAI, NAMING), CHAT.removesuffix(DONE))
    assert json.loads(body)["usage"]["total_tokens"] == 50


@pytest.mark.parametrize("target", [OPENAI, ANTHROPIC])
def test_a_folded_answer_without_usage_has_an_estimate_that_no_event_tells(target: Dialect) -> None:
    naming = AnswerNames("01H", "own-id", 7, prompt_tokens=12)
    uncounted = chunk({"content": "x" * 40}) + chunk({}, "stop") + DONE
    body, events = read(RecordedAssembler(OPENAI, target, naming), uncounted)
    used = target.tokens(json.loads(body)["usage"])
    assert (used.prompt, used.completion) == (12, 10)
    assert not any(isinstance(event, UsageReported) for event in events)


def test_cut_stream_is_never_ended_for_the_client() -> None:
    cut = CHAT[: CHAT.index(b'"stop"')]
    data, events = read(to_messages(), cut)
    assert b"message_stop" not in data
    assert not any(isinstance(event, Ended) for event in events)
    with pytest.raises(UpstreamProtocolError):
        read(RecordedAssembler(OPENAI, OPENAI, NAMING), cut)


ERROR = b'data: {"error":{"message":"over","code":503}}\n\n'


@pytest.mark.parametrize("broken", [ERROR, b"data: {\n\n"])
@pytest.mark.parametrize("make", [lambda: FrameReader(OPENAI, "01H"), to_messages])
def test_error_comes_last_and_alone(make: Callable[[], BodyReader], broken: bytes) -> None:
    reader = make()
    first = reader.feed(chunk({"content": "a"}) + broken + chunk({"content": "b"}))
    assert reader.failed
    assert not any(isinstance(event, ErrorReported) for event in first.events)
    last = reader.end()
    assert isinstance(last.events[-1], ErrorReported)
    assert b"error" in last.data
    assert b'"b"' not in first.data + last.data


def test_errors_own_frame_passes_as_it_came() -> None:
    assert read(FrameReader(OPENAI, "01H"), chunk({"content": "a"}) + ERROR)[0].endswith(ERROR)


@pytest.mark.parametrize("end", [b"", b"\r\n", b"\n\n", b"\r\n\r\n"])
@pytest.mark.parametrize("make", [lambda: FrameReader(OPENAI, "01H"), to_messages])
def test_an_error_without_data_before_it_is_read(
    make: Callable[[], BodyReader], end: bytes
) -> None:
    # Google ends a stream so.
    bare = b'{\n  "error": {\n    "message": "over",\n    "code": 503\n  }\n}' + end
    data, events = read(make(), chunk({"content": "a"}), bare)
    assert isinstance(events[-1], ErrorReported)
    assert events[-1].message == "over"
    assert b"over" in data


@pytest.mark.parametrize("line", [b'{warn: "error"}', b'{"log":1,"error":null}', b': {"error":1}'])
def test_a_line_that_is_no_event_is_no_error(line: bytes) -> None:
    data, events = read(FrameReader(OPENAI, "01H"), chunk({"content": "a"}), line + b"\n\n", DONE)
    assert data.endswith(line + b"\n\n" + DONE)
    assert not any(isinstance(event, ErrorReported) for event in events)


ZEROS = b',"usage":{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}'


@pytest.mark.parametrize("null", [b',"usage":null', b', "usage": null', ZEROS])
def test_usage_that_we_asked_for_leaves_no_nulls(null: bytes) -> None:
    """Without ``include_usage`` the API's chunks have no usage at all."""
    told = [chunk({"content": text}) for text in ("a", 'b ,"usage":null}', "c", "d")]
    asked = [each[:-3] + null + b"}\n\n" for each in told]
    rest = USAGE_CHUNK + b"data: [DONE]\n\n"
    for pieces in ([b"".join(asked) + rest], [*asked, rest]):
        reader = FrameReader(OPENAI, "01H", strip_usage=True)
        passed = b"".join(reader.feed(each).data for each in pieces)
        assert passed == b"".join(told) + b"data: [DONE]\n\n"
        unchanged = FrameReader(OPENAI, "01H")
        assert b"".join(unchanged.feed(each).data for each in pieces) == b"".join(pieces)


def test_error_while_folding_becomes_the_body_and_an_event() -> None:
    body, events = read(
        RecordedAssembler(OPENAI, ANTHROPIC, NAMING), chunk({"content": "a"}) + ERROR
    )
    assert json.loads(body)["error"]["message"] == "over"
    assert json.loads(body)["request_id"] == "01H"
    assert isinstance(events[-1], ErrorReported)


def test_document_is_written_as_a_stream_where_the_client_asked_for_one() -> None:
    document = json.dumps(
        {"content": [{"type": "text", "text": "a"}], "stop_reason": "end_turn", "model": "m"}
    ).encode()
    encoder = OPENAI.encoder("own-id", 7, include_usage=False)
    data, events = read(DocumentTranslator(ANTHROPIC, OPENAI, 200, NAMING, encoder), document)
    assert data.endswith(DONE)
    assert said(folded(events).choices[0]) == [("text", "a")]


def test_a_document_that_is_not_an_answer_is_an_error() -> None:
    data, events = read(DocumentTranslator(ANTHROPIC, OPENAI, 200, NAMING), b"<html>")
    assert isinstance(events[0], ErrorReported)
    assert "error" in json.loads(data)


def test_document_past_the_bound_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_DOCUMENT_BYTES", 3)
    reader = DocumentTranslator(ANTHROPIC, OPENAI, 200, NAMING)
    with pytest.raises(UpstreamProtocolError, match="too long"):
        reader.feed(b"long")
