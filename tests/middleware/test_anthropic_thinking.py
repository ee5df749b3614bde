"""Thinking without a signature of Anthropic's API: who gets it, and who gets it back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headstart.canonical_request import Quirks
from headstart.dialects.anthropic_messages import ANTHROPIC_MESSAGES
from headstart.dialects.cohere_chat import COHERE_CHAT
from headstart.dialects.dialect import translate_events
from headstart.dialects.gemini_generate import GEMINI_GENERATE
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.dialects.requests import apply_quirks
from headstart.errors import InvalidRequest
from headstart.types import Ended, Finished, ReasoningDelta, Started, TextDelta
from support.events import folded
from support.translated import translate

OPENAI, ANTHROPIC = OPENAI_CHAT, ANTHROPIC_MESSAGES
USER = {"role": "user", "content": "Hi"}
MARKED = {"type": "thinking", "thinking": "Hm.", "signature": "headstart:reasoning"}
SIGNED = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
TEXT = {"type": "text", "text": 'It says "headstart:".'}
ANSWER = (
    Started(id="i", model="m"),
    TextDelta(text=""),
    ReasoningDelta(text="Let me ", field="reasoning"),
    ReasoningDelta(text="see.", field="reasoning"),
    TextDelta(text="So"),
    Finished(reason="stop"),
    Ended(),
)


def conversation(*blocks: dict[str, Any]) -> dict[str, Any]:
    messages = [USER, {"role": "assistant", "content": list(blocks)}, USER]
    return {"model": "m", "max_tokens": 9, "messages": messages}


def edited(document: dict[str, Any], quirks: Quirks | None = None) -> tuple[Any, tuple[str, ...]]:
    body = json.dumps(document).encode()
    request = ANTHROPIC.parse_request(body)
    after, dropped = apply_quirks(body, request, quirks or Quirks(), ANTHROPIC.name)
    return json.loads(after), dropped


@pytest.mark.parametrize("shown", [True, False])
def test_a_stream_and_a_replay_show_it_with_our_signature_to_who_asked(shown: bool) -> None:
    events = translate_events(ANSWER, OPENAI, ANTHROPIC, shows_reasoning=shown)
    encoder = ANTHROPIC.encoder("i", 0, include_usage=True)
    streamed = b"".join(encoder.feed([event]) for event in events)
    rendered = ANTHROPIC.render(folded(events))
    thought = {"type": "thinking", "thinking": "Let me see.", "signature": "headstart:reasoning"}
    whole = json.loads(rendered.json("i", 0))["content"]
    assert whole == [*([thought] if shown else []), {"type": "text", "text": "So"}]
    for stream in (streamed, rendered.sse("i", 0, include_usage=True)):
        assert stream.count(b'"type":"signature_delta"') == shown
        assert (b"Let me" in stream) == shown
        # Clients expect it as the last word of its block.
        before, _, after = stream.partition(b'"signature_delta"')
        assert not shown or b"see." in before
        assert not shown or after.index(b"content_block_stop") < after.index(b"content_block_start")


@pytest.mark.parametrize(
    ("thinking", "shown"),
    [
        (None, False),
        ("on", False),
        ({"type": "disabled"}, False),
        ({"type": "enabled", "budget_tokens": 1024}, True),
        ({"type": "adaptive"}, True),
        ({"type": "adaptive", "display": "summarized"}, True),
        ({"type": "adaptive", "display": "omitted"}, False),
    ],
)
def test_asking_for_thinking_is_asking_to_see_it(thinking: Any, shown: bool) -> None:
    document = {**conversation(TEXT), **({"thinking": thinking} if thinking else {})}
    request = ANTHROPIC.parse_request(json.dumps(document).encode())
    assert ANTHROPIC.shows_reasoning(request) is shown


def test_the_provider_whose_model_thought_it_gets_it_back() -> None:
    body, dropped = translate("anthropic", "openai", conversation(MARKED, TEXT))
    assert body["messages"][1] == {
        "role": "assistant",
        "content": TEXT["text"],
        "reasoning": "Hm.",
    }
    assert dropped == ()


def test_anthropic_never_sees_our_signature() -> None:
    document = conversation(MARKED, SIGNED, TEXT)
    assert edited(document) == (conversation(SIGNED, TEXT), ("thinking",))


@pytest.mark.parametrize("target", [ANTHROPIC, GEMINI_GENERATE, COHERE_CHAT])
def test_reasoning_with_our_mark_is_never_refused(target: Any) -> None:
    strict = Quirks(refuse=True)
    assert edited(conversation(MARKED, TEXT), strict)[1] == ("thinking",)
    for thought in (MARKED, SIGNED):
        request = ANTHROPIC.parse_request(json.dumps(conversation(thought, TEXT)).encode())
        asked = ANTHROPIC.read_request(request)
        if thought is MARKED:
            assert target.write_request(asked, strict).dropped == ("reasoning",)
        else:
            with pytest.raises(InvalidRequest, match="thinking"):
                target.write_request(asked, strict)


def test_a_turn_that_held_nothing_else_goes_with_it() -> None:
    assert edited(conversation(MARKED))[0]["messages"] == [USER, USER]


@pytest.mark.parametrize("content", [[SIGNED, TEXT], [], "headstart:", [{"type": "thinking"}]])
def test_reasoning_without_our_mark_passes_byte_for_byte(content: Any) -> None:
    document = conversation()
    document["messages"][1]["content"] = content
    body = json.dumps(document).encode()
    request = ANTHROPIC.parse_request(body)
    assert apply_quirks(body, request, Quirks(), ANTHROPIC.name) == (body, ())
