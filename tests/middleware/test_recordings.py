"""Real provider traffic, kept beside the repository and never in it; skipped where it is absent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import yaml
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.middleware.reading import SSEDecoder
from headstart.reply import Transcript
from headstart.types import Completion, Ended, ErrorReported, Reasoning, StreamEvent, Text, ToolCall
from support.events import events_of, folded

if TYPE_CHECKING:
    from headstart.dialects.dialect import Frame

RECORDINGS = Path(__file__).parents[3] / "shared" / "data" / "recordings"
pytestmark = pytest.mark.skipif(not RECORDINGS.is_dir(), reason="recordings are not here")

DIALECT = OPENAI_CHAT

STREAMS = (
    "openllmetry/groq_test_chat_streaming_legacy.yaml",
    "openllmetry/mistral_test_streaming_chat_legacy.yaml",
    "otel-python-contrib/test_chat_completion_multiple_choices_streaming.yaml",
    "otel-python-contrib/test_chat_completion_multiple_tools_streaming_no_content.yaml",
    "pydantic-ai/test_openai_moderation_stream.yaml",
    "pydantic-ai/test_run_stream_sync_streams_real_model.yaml",
    "pydantic-ai/test_run_stream_sync_streams_real_model.yaml#1",
    "pydantic-ai/test_tool_use_failed_error_streaming.yaml#1",
    "pydantic-ai/test_tool_use_failed_error_streaming.yaml#2",
    "vercel-ai/azure-model-router.1.chunks.txt",
    "vercel-ai/deepseek-tool-call.chunks.txt",
    "vercel-ai/groq-tool-call.chunks.txt",
    "vercel-ai/mistral-tool-call.chunks.txt",
)
FAILED_STREAMS = {
    "pydantic-ai/test_tool_use_failed_error_streaming.yaml": ("tool_use_failed", 400),
    "pydantic-ai/test_openrouter_stream_error.yaml": ("400", 400),
}


def interaction(name: str) -> Any:
    path, _, number = name.partition("#")
    loaded = yaml.safe_load((RECORDINGS / path).read_text())
    return loaded["interactions"][int(number or 0)]["response"]


def stream(name: str) -> bytes:
    if ".yaml" in name:
        body: str = interaction(name)["body"]["string"]
        return body.encode()
    lines = (RECORDINGS / name).read_text().split("\n")
    return "".join(f"data: {line}\n\n" for line in (*filter(None, lines), "[DONE]")).encode()


def frames_of(raw: bytes) -> list[Frame]:
    decoder = SSEDecoder()
    frames = decoder.feed(raw)
    assert decoder.rest() == b""
    return frames


def events_in(raw: bytes) -> list[StreamEvent]:
    decoder = DIALECT.decoder()
    return [event for frame in frames_of(raw) for event in decoder.feed(frame)]


def completion_of(raw: bytes) -> Completion:
    return folded(events_in(raw))


@pytest.mark.parametrize("name", STREAMS)
def test_stream_cut_at_any_event_is_never_whole(name: str) -> None:
    transcript, decoder = Transcript(), DIALECT.decoder()
    for frame in frames_of(stream(name))[:-1]:
        transcript.feed(decoder.feed(frame))
        assert transcript.completion(now=0) is None
    assert transcript.finished
    assert transcript.error is None


@pytest.mark.parametrize(("name", "error"), FAILED_STREAMS.items())
def test_failed_stream_reports_its_error_and_is_never_whole(
    name: str, error: tuple[str, int]
) -> None:
    transcript = Transcript()
    transcript.feed([*events_in(stream(name)), Ended()])
    assert transcript.error is not None
    assert (transcript.error.code, transcript.error.status) == error
    assert transcript.completion(now=0) is None


@pytest.mark.parametrize("name", STREAMS)
def test_answer_survives_storage_and_both_renderings(name: str) -> None:
    completion = completion_of(stream(name))
    stored = msgspec.json.decode(msgspec.json.encode(completion), type=type(completion))
    assert stored == completion
    unfolded = Transcript()
    unfolded.feed(events_of(completion))
    assert unfolded.completion(now=0) == completion

    rendered = DIALECT.render(stored)
    asked = not completion.usage_beside
    replay = rendered.sse("id", completion.created, include_usage=asked)
    assert completion_of(replay) == completion
    body = Transcript()
    body.feed(DIALECT.decode_body(200, rendered.json("id", completion.created)))
    assert body.completion(now=0) == msgspec.structs.replace(completion, usage_beside=False)


@pytest.mark.parametrize("name", STREAMS)
def test_nothing_that_was_sent_is_missing_from_the_replay(name: str) -> None:
    """Compares leaf values of the original chunks, read without our decoder."""
    original, replayed = (
        leaves(json.loads(frame.data or b"") for frame in frames_of(raw) if frame.data != b"[DONE]")
        for raw in (
            stream(name),
            DIALECT.render(completion_of(stream(name))).sse("id", 1, include_usage=True),
        )
    )
    # The replay may say more: indices that Mistral omits, usage that Groq sends elsewhere.
    assert {path: replayed.get(path) for path in original} == original


def leaves(chunks: Any) -> dict[str, Any]:
    """Join texts by path; other values are sets. Leaves out ids, times, padding and nulls."""
    found: dict[str, Any] = {}
    for chunk in chunks:
        for path, value in walk(chunk, ""):
            if value in (None, "") or path in _FRESH or path.startswith(".choices.index"):
                continue
            if path.endswith((".content", ".arguments", ".reasoning", ".reasoning_content")):
                found[path] = found.get(path, "") + value
            else:
                found.setdefault(path, set()).add(value)
    return found


_FRESH = frozenset({".id", ".created", ".obfuscation", ".p", ".choices.delta.tool_calls.type"})


def walk(value: Any, path: str) -> Any:
    if isinstance(value, dict):
        index = f"[{value['index']}]" if value.get("index") else ""
        for name, child in value.items():
            yield from walk(child, f"{path}{index}.{name}" if name != "index" else f"{path}.index")
    elif isinstance(value, list):
        for child in value:
            yield from walk(child, path)
    else:
        yield path, value


@pytest.mark.parametrize("name", STREAMS)
def test_openai_sdk_reads_the_replay(name: str) -> None:
    completion = completion_of(stream(name))
    rendered = DIALECT.render(completion)
    whole = ChatCompletion.model_validate_json(rendered.json("id", 1))
    assert len(whole.choices) == len(completion.choices)
    for frame in frames_of(rendered.sse("id", 1, include_usage=True))[:-1]:
        ChatCompletionChunk.model_validate_json(frame.data or b"")


def test_cerebras_answer_is_field_equal() -> None:
    answer = interaction("pydantic-ai/test_cerebras_model_simple.yaml")["parsed_body"]
    completion = folded(DIALECT.decode_body(200, json.dumps(answer).encode()))
    replay = json.loads(DIALECT.render(completion).json(answer["id"], answer["created"]))
    assert without_nulls(replay) == answer


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    return [without_nulls(v) for v in value] if isinstance(value, list) else value


def test_openrouter_error_answer_is_read() -> None:
    response = interaction("pydantic-ai/test_openrouter_errors_raised.yaml")
    body = json.dumps(response["parsed_body"]).encode()
    (event,) = DIALECT.decode_body(response["status"]["code"], body)
    assert isinstance(event, ErrorReported)
    assert (event.status, event.code, event.message) == (429, "429", "Provider returned error")


def test_parts_arrive_as_the_providers_sent_them() -> None:
    kinds = {
        name: [type(part) for part in completion_of(stream(name)).choices[0].parts]
        for name in STREAMS
    }
    assert kinds["vercel-ai/deepseek-tool-call.chunks.txt"] == [Reasoning, ToolCall]
    assert kinds["pydantic-ai/test_tool_use_failed_error_streaming.yaml#1"] == [Reasoning, ToolCall]
    assert kinds[
        "otel-python-contrib/test_chat_completion_multiple_tools_streaming_no_content.yaml"
    ] == [
        ToolCall,
        ToolCall,
    ]
    assert kinds["vercel-ai/azure-model-router.1.chunks.txt"] == [Text]
