"""Real answers of Anthropic's, kept beside the repository; skipped where they are absent."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anthropic
import httpx2
import msgspec
import pytest
import yaml
from anthropic.types import Message

from headstart.dialects.anthropic_messages import ANTHROPIC_MESSAGES
from headstart.middleware.reading import SSEDecoder
from headstart.reply import Transcript
from headstart.types import ErrorReported, Reasoning, StreamEvent, Text, ToolCall
from support.events import events_of, folded

if TYPE_CHECKING:
    from collections.abc import Iterable


RECORDINGS = Path(__file__).parents[3] / "shared" / "data" / "recordings"
pytestmark = pytest.mark.skipif(not RECORDINGS.is_dir(), reason="recordings are not here")

DIALECT = ANTHROPIC_MESSAGES
THINKING = "pydantic-ai/test_anthropic_model_thinking_part_stream.yaml"
TOOLS = "openllmetry/anthropic_test_tools_streaming_legacy.yaml"
NO_ARGUMENTS = "vercel-ai/anthropic-tool-no-args.chunks.txt"
REFUSED = "pydantic-ai/test_anthropic_explicit_effort_xhigh_unsupported_model_errors.yaml"
STREAMS = (THINKING, TOOLS, NO_ARGUMENTS)


def response(name: str) -> Any:
    return yaml.safe_load((RECORDINGS / name).read_text())["interactions"][0]["response"]


def stream(name: str) -> bytes:
    if name.endswith(".yaml"):
        body: str = response(name)["body"]["string"]
        return body.encode()
    lines = filter(None, (RECORDINGS / name).read_text().split("\n"))
    return b"".join(
        f"event: {json.loads(line)['type']}\ndata: {line}\n\n".encode() for line in lines
    )


def events_in(pieces: Iterable[bytes]) -> list[StreamEvent]:
    frames, decoder = SSEDecoder(), DIALECT.decoder()
    events = [
        event for data in pieces for frame in frames.feed(data) for event in decoder.feed(frame)
    ]
    assert frames.rest() == b""
    return events


def heard(raw: bytes) -> dict[str, Any]:
    """Return what Anthropic's own client makes of a stream."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=raw)

    with (
        httpx2.Client(transport=httpx2.MockTransport(answer)) as http,
        anthropic.Anthropic(api_key="k", http_client=http) as client,
        client.messages.stream(model="m", max_tokens=9, messages=[]) as said,
    ):
        message: dict[str, Any] = said.get_final_message().to_dict()
    return {**message, "id": ""}


def without_nulls(message: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if value is not None}


@pytest.mark.parametrize("name", STREAMS)
def test_a_cut_at_any_byte_changes_nothing(name: str) -> None:
    raw = stream(name)
    events = events_in([raw])
    assert events_in(raw[at : at + 1] for at in range(len(raw))) == events
    # Between frames the decoder holds nothing, so a cut matters to its neighbours alone.
    frames = SSEDecoder().feed(raw)
    for before, after in pairwise(frames):
        pair = before.raw + after.raw
        for cut in range(len(pair)):
            decoder = SSEDecoder()
            assert [*decoder.feed(pair[:cut]), *decoder.feed(pair[cut:])] == [before, after]


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_cut_at_any_event_is_never_whole(name: str) -> None:
    transcript, decoder = Transcript(), DIALECT.decoder()
    for frame in SSEDecoder().feed(stream(name))[:-1]:
        transcript.feed(decoder.feed(frame))
        assert transcript.completion(now=0) is None
    assert transcript.finished
    assert transcript.error is None


@pytest.mark.parametrize("name", STREAMS)
def test_the_client_hears_the_same_from_the_replay(name: str) -> None:
    raw = stream(name)
    completion = folded(events_in([raw]))
    assert folded(events_of(completion)) == completion
    stored = msgspec.json.decode(msgspec.json.encode(completion), type=type(completion))
    rendered = DIALECT.render(stored)
    replay = rendered.sse("msg_1", 0, include_usage=True)
    original = heard(raw)
    assert heard(replay) == original
    assert folded(events_in([replay])) == completion
    document = rendered.json("msg_1", 0)
    whole = {**Message.model_validate_json(document).to_dict(), "id": ""}
    assert without_nulls(whole) == without_nulls(original)
    read = folded(DIALECT.decode_body(200, document))
    # Spaces in a tool's streamed arguments have no place in a document's object.
    assert json.loads(DIALECT.render(read).json("msg_1", 0)) == json.loads(document)


def test_thinking_keeps_its_signature() -> None:
    thinking, text = folded(events_in([stream(THINKING)])).choices[0].parts
    assert isinstance(thinking, Reasoning)
    assert thinking.signature is not None
    assert thinking.signature.startswith("EvMCCkYICxgCKkCH")
    assert thinking.text.startswith("This is a straightforward question")
    assert isinstance(text, Text)


def test_tool_calls_are_read_in_order() -> None:
    completion = folded(events_in([stream(TOOLS)]))
    calls = [part for part in completion.choices[0].parts if isinstance(part, ToolCall)]
    assert [call.name for call in calls] == ["get_weather", "get_time"]
    assert all(json.loads(call.arguments) for call in calls)
    (silent,) = folded(events_in([stream(NO_ARGUMENTS)])).choices[0].parts[1:]
    assert isinstance(silent, ToolCall)
    assert silent.arguments == "{}"


def test_an_error_body_is_read() -> None:
    recorded = response(REFUSED)
    body = json.dumps(recorded["parsed_body"]).encode()
    (error,) = DIALECT.decode_body(recorded["status"]["code"], body)
    assert isinstance(error, ErrorReported)
    assert (error.status, error.code) == (400, "invalid_request_error")
    assert error.message.startswith("This model does not support effort level")
