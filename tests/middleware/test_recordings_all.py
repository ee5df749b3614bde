"""Every recording, whatever its dialect: cut anywhere, and said again in every other dialect.

They are kept beside the repository and never in it; skipped where they are absent.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from headstart.dialects.anthropic_messages import ANTHROPIC_MESSAGES
from headstart.dialects.cohere_chat import COHERE_CHAT
from headstart.dialects.dialect import Frame, translate_events
from headstart.dialects.gemini_generate import GEMINI_GENERATE
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.middleware.reading import SSEDecoder
from headstart.types import Completion, Ended, ErrorReported, Started, StreamEvent, Text, ToolCall
from support.events import folded

RECORDINGS = Path(__file__).parents[3] / "shared" / "data" / "recordings"
pytestmark = pytest.mark.skipif(not RECORDINGS.is_dir(), reason="recordings are not here")

DIALECTS: dict[str, Any] = {
    "openai": OPENAI_CHAT,
    "anthropic": ANTHROPIC_MESSAGES,
    "gemini": GEMINI_GENERATE,
    "cohere": COHERE_CHAT,
}
TARGETS = ("openai", "anthropic", "gemini")

ANSWERS = {
    "openllmetry/anthropic_test_tools_streaming_legacy.yaml": "anthropic",
    "openllmetry/groq_test_chat_streaming_legacy.yaml": "openai",
    "openllmetry/mistral_test_streaming_chat_legacy.yaml": "openai",
    "otel-python-contrib/test_chat_completion_multiple_choices_streaming.yaml": "openai",
    "otel-python-contrib/test_chat_completion_multiple_tools_streaming_no_content.yaml": "openai",
    "pydantic-ai/test_anthropic_model_thinking_part_stream.yaml": "anthropic",
    "pydantic-ai/test_cerebras_model_simple.yaml": "openai",
    "pydantic-ai/test_google_model_iter_stream.yaml": "gemini",
    "pydantic-ai/test_google_model_iter_stream.yaml#1": "gemini",
    "pydantic-ai/test_google_model_iter_stream.yaml#2": "gemini",
    "pydantic-ai/test_google_streaming_tool_call_thought_signature.yaml": "gemini",
    "pydantic-ai/test_google_streaming_tool_call_thought_signature.yaml#1": "gemini",
    "pydantic-ai/test_openai_moderation_stream.yaml": "openai",
    "pydantic-ai/test_run_stream_sync_streams_real_model.yaml": "openai",
    "pydantic-ai/test_run_stream_sync_streams_real_model.yaml#1": "openai",
    "pydantic-ai/test_tool_use_failed_error_streaming.yaml#1": "openai",
    "pydantic-ai/test_tool_use_failed_error_streaming.yaml#2": "openai",
    "vercel-ai/anthropic-tool-no-args.chunks.txt": "anthropic",
    "vercel-ai/azure-model-router.1.chunks.txt": "openai",
    "vercel-ai/cohere-tool-call.chunks.txt": "cohere",
    "vercel-ai/deepseek-tool-call.chunks.txt": "openai",
    "vercel-ai/groq-tool-call.chunks.txt": "openai",
    "vercel-ai/mistral-tool-call.chunks.txt": "openai",
}
"""Whole answers, by dialect; all but Cerebras's are streams."""
FAILURES = {
    "pydantic-ai/test_anthropic_explicit_effort_xhigh_unsupported_model_errors.yaml": "anthropic",
    "pydantic-ai/test_openrouter_errors_raised.yaml": "openai",
    "pydantic-ai/test_openrouter_stream_error.yaml": "openai",
    "pydantic-ai/test_tool_use_failed_error_streaming.yaml": "openai",
}
RELAYED = (
    "pydantic-ai/test_openai_responses_stream.yaml",
    "pydantic-ai/test_openai_responses_stream.yaml#1",
    "vercel-ai/openai-completion-text.chunks.txt",
    "vercel-ai/openai-error.1.chunks.txt",
)
"""Streams of APIs whose answers are passed on unread."""
WHOLE = {
    "pydantic-ai/test_cerebras_model_simple.yaml",
    "pydantic-ai/test_anthropic_explicit_effort_xhigh_unsupported_model_errors.yaml",
    "pydantic-ai/test_openrouter_errors_raised.yaml",
}
"""Those that are no streams."""
SHORT = (
    "openllmetry/anthropic_test_tools_streaming_legacy.yaml",
    "pydantic-ai/test_google_streaming_tool_call_thought_signature.yaml",
    "pydantic-ai/test_run_stream_sync_streams_real_model.yaml",
)
"""A short stream of each of three providers."""
GEMINI = tuple(name for name, dialect in ANSWERS.items() if dialect == "gemini")


class Heard(NamedTuple):
    """What dialects have in common of an answer."""

    texts: list[str]
    calls: list[list[tuple[str, Any]]]
    finishes: list[str]
    tokens: tuple[int, int] | None


@cache
def response(name: str) -> Any:
    path, _, number = name.partition("#")
    loaded = yaml.safe_load((RECORDINGS / path).read_text())
    return loaded["interactions"][int(number or 0)]["response"]


def stream(name: str, dialect: str = "openai") -> bytes | None:
    """Return a recorded stream's bytes, framed; None if the answer was none."""
    if ".yaml" in name:
        recorded = response(name)
        if "parsed_body" in recorded:
            return None
        body: str = recorded["body"]["string"]
        return body.encode()
    lines = [*filter(None, (RECORDINGS / name).read_text().split("\n"))]
    if dialect == "openai":
        lines.append("[DONE]")
    return "".join(
        f"{_event_line(line) if dialect != 'openai' else ''}data: {line}\n\n" for line in lines
    ).encode()


def _event_line(line: str) -> str:
    return f"event: {json.loads(line)['type']}\n"


def events_of(raw: bytes, dialect: str) -> list[StreamEvent]:
    frames, decoder = SSEDecoder(), DIALECTS[dialect].decoder()
    events = [each for frame in frames.feed(raw) for each in decoder.feed(frame)]
    assert frames.rest() == b""
    return events if Ended() in events or dialect == "cohere" else [*events, Ended()]


def recorded(name: str, dialect: str) -> list[StreamEvent]:
    raw = stream(name, dialect)
    if raw is not None:
        return events_of(raw, dialect)
    answer = response(name)
    body = json.dumps(answer["parsed_body"]).encode()
    return list(DIALECTS[dialect].decode_body(answer["status"]["code"], body))


def heard(completion: Completion, dialect: str) -> Heard:
    usage = completion.usage
    counted = None if usage is None else DIALECTS[dialect].tokens(usage)
    return Heard(
        texts=["".join(p.text for p in c.parts if isinstance(p, Text)) for c in completion.choices],
        calls=[
            [(p.name, json.loads(p.arguments or "{}")) for p in c.parts if isinstance(p, ToolCall)]
            for c in completion.choices
        ],
        finishes=[choice.finish for choice in completion.choices],
        tokens=None if counted is None else (counted.prompt, counted.completion),
    )


def test_every_recording_is_tried() -> None:
    files = {
        f"{path.parent.name}/{path.name}"
        for path in RECORDINGS.glob("*/*")
        if path.parent.name != "LICENSES"
    }
    tried = {name.partition("#")[0] for name in (*ANSWERS, *FAILURES, *RELAYED)}
    assert tried == files
    assert len(files) == 24


@pytest.mark.parametrize(
    ("name", "end"),
    [
        *((name, b"\n") for name in (*ANSWERS, *FAILURES, *RELAYED) if name not in WHOLE),
        *((name, end) for name in SHORT for end in (b"\r\n", b"\r")),
    ],
)
def test_a_cut_at_any_byte_changes_nothing(name: str, end: bytes) -> None:
    dialect = {**ANSWERS, **FAILURES}.get(name, "openai")
    raw = stream(name, dialect)
    assert raw is not None
    raw = raw.replace(b"\r\n", b"\n").replace(b"\n", end) + b":"  # what comes after the last
    frames = SSEDecoder().feed(raw)
    assert b"".join(frame.raw for frame in frames) == raw[:-1]
    one_by_one = SSEDecoder()
    assert [f for at in range(len(raw)) for f in one_by_one.feed(raw[at : at + 1])] == frames
    # Between frames the decoder holds nothing, so a cut matters to its neighbours alone.
    for start in range(0, len(frames), 2):
        window: list[Frame] = frames[start : start + 2]
        part = b"".join(frame.raw for frame in window) + b":"
        for cut in range(len(part)):
            decoder = SSEDecoder()
            assert [*decoder.feed(part[:cut]), *decoder.feed(part[cut:])] == window


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("name", "source"), ANSWERS.items())
def test_every_dialect_says_the_same(name: str, source: str, target: str) -> None:
    events = recorded(name, source)
    original = heard(folded(events), source)
    if len(original.texts) > 1 and target == "anthropic":
        pytest.skip("the dialect has one choice alone")
    dialect = DIALECTS[target]
    translated = translate_events(events, DIALECTS[source], dialect)
    encoder = dialect.encoder("id", 1, include_usage=True)
    streamed = b"".join(encoder.feed([event]) for event in translated)
    stored = dialect.render(folded(list(translated)))
    for completion in (
        folded(events_of(streamed, target)),
        folded(events_of(stored.sse("id", 1, include_usage=True), target)),
        folded(list(dialect.decode_body(200, stored.json("id", 1)))),
    ):
        said = heard(completion, target)
        expected = original if original.tokens else original._replace(tokens=said.tokens)
        assert said == expected


@pytest.mark.parametrize(("name", "dialect"), FAILURES.items())
def test_failures_are_read(name: str, dialect: str) -> None:
    errors = [event for event in recorded(name, dialect) if isinstance(event, ErrorReported)]
    assert errors
    assert errors[0].status in (400, 429)
    assert errors[0].message


@pytest.mark.parametrize("name", GEMINI)
def test_geminis_streams_are_replayed_value_by_value(name: str) -> None:
    """Compares leaf values of the original chunks, read without our decoder."""
    raw = stream(name, "gemini")
    assert raw is not None
    events = events_of(raw, "gemini")
    completion = folded(events)
    id = next(event.id for event in events if isinstance(event, Started))
    replay = DIALECTS["gemini"].render(completion).sse(id, 1, include_usage=True)
    assert folded(events_of(replay, "gemini")) == completion
    original, replayed = (_leaves(each) for each in (raw, replay))
    assert {path: replayed.get(path) for path in original} == original
    assert set(replayed) - set(original) <= {".candidates.index"}


def _leaves(raw: bytes) -> dict[str, Any]:
    """Join texts by path; of other values the last stands, as counts do."""
    found: dict[str, Any] = {}
    for frame in SSEDecoder().feed(raw):
        for path, value in _walk(json.loads(frame.data or b""), ""):
            if path.endswith(".text"):
                found[path] = found.get(path, "") + value
            else:
                found[path] = value
    return {path: value for path, value in found.items() if value != ""}


def _walk(value: Any, path: str) -> Any:
    if isinstance(value, dict):
        for name, child in value.items():
            yield from _walk(child, f"{path}.{name}")
    elif isinstance(value, list):
        for child in value:
            yield from _walk(child, path)
    else:
        yield path, value
