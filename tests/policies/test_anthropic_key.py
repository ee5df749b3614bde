"""Keys of Anthropic's requests: what separates answers there, and what does not."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.dialects.anthropic_messages import ANTHROPIC_MESSAGES
from headstart.dialects.dialect import FieldUse
from headstart.policies.admission import Admission
from headstart.policies.key import KeyContext, chat_key
from headstart.types import (
    CONTENT_BLOCKS,
    CacheKey,
    ChatRequest,
    Choice,
    Completion,
    Reasoning,
    Text,
)

# The request fields of Anthropic Messages, from the published API reference.
DOCUMENTED = [
    "cache_control",
    "container",
    "context_management",
    "diagnostics",
    "inference_geo",
    "max_tokens",
    "mcp_servers",
    "messages",
    "metadata",
    "model",
    "output_config",
    "output_format",
    "service_tier",
    "speed",
    "stop_sequences",
    "stream",
    "system",
    "temperature",
    "thinking",
    "tool_choice",
    "tools",
    "top_k",
    "top_p",
]
CONTEXT = KeyContext(dialect="anthropic-messages", path=b"/v1/messages", upstream="u")
MARK = {"cache_control": {"type": "ephemeral"}}
ASK = {"role": "user", "content": "Why?"}


def key(*messages: Any, **fields: Any) -> CacheKey:
    document = {"model": "m", "messages": list(messages) or [ASK], **fields}
    content = document["messages"][-1].get("content")
    query = content if isinstance(content, str) else None
    if isinstance(content, list) and all(part.get("type") == "text" for part in content):
        query = "\n".join(part["text"] for part in content)
    request = ChatRequest(model="m", stream=False, document=document, query=query)
    return chat_key(request, scope="s", context=CONTEXT)


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def text(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **more}


def test_every_documented_field_is_classified() -> None:
    assert set(DOCUMENTED) <= ANTHROPIC_MESSAGES.key.fields.keys()


@given(
    name=st.sampled_from([name for name in DOCUMENTED if name != "messages"]),
    values=st.tuples(st.integers(), st.integers()).filter(lambda pair: pair[0] != pair[1]),
)
def test_a_field_changes_the_key_unless_its_table_says_otherwise(
    name: str, values: tuple[int, int]
) -> None:
    before, after = (key(**{name: value}) for value in values)
    assert (before.exact != after.exact) == (ANTHROPIC_MESSAGES.key.fields[name] is FieldUse.KEYED)


def test_a_string_is_one_text_block_and_no_more() -> None:
    assert key(ASK) == key(user(text("Why?"))) == key(user(text("Why?", **MARK)))
    assert key(ASK).exact != key(user(text("Why?"), text(""))).exact
    assert key(ASK).exact != key(user(text("Why?", citations={"enabled": True}))).exact
    assert key(system="Be brief.") == key(system=[text("Be brief.", **MARK)])
    assert key(system="ab").exact != key(system=[text("a"), text("b")]).exact


def test_claude_codes_line_about_its_billing_does_not_matter() -> None:
    def asked(line: str) -> CacheKey:
        return key(system=[text(line), text("You help with code.", **MARK)])

    ours = asked("x-anthropic-billing-header: cc_version=2.1.197.7c8; cch=71fea;")
    assert ours == asked("x-anthropic-billing-header: cc_version=2.1.197.cfd; cch=0aaa9;")
    assert ours == key(system="You help with code.")
    assert ours == key(system="x-anthropic-billing-header: cch=1;\nYou help with code.")
    assert ours.exact != asked("Mind x-anthropic-billing-header: cch=1;").exact


def test_a_text_without_citations_is_like_one_whose_citations_are_null() -> None:
    plain = key(user(text("One?")))
    assert key(user(text("One?", citations=None))) == plain
    assert key(user(text("One?", citations=[{"type": "page_location"}]))) != plain


def test_conversations_in_blocks_have_a_history() -> None:
    talk = [user(text("How do I pay?")), {"role": "assistant", "content": "By card."}]
    found = key(*talk, user(text("What does it cost?", **MARK)))
    assert found.conversation is not None
    assert [turn.text for turn in found.history] == ["How do I pay?", "By card."]


def test_random_tool_ids_do_not_matter_but_their_pairing_does() -> None:
    def talk(first: str, second: str, answered: str) -> CacheKey:
        calls = [{"type": "tool_use", "id": id, "name": "f", "input": {}} for id in (first, second)]
        result = {"type": "tool_result", "tool_use_id": answered, "content": [text("1", **MARK)]}
        return key(ASK, {"role": "assistant", "content": calls}, user(result))

    assert talk("a", "b", "a") == talk("c", "d", "c")
    assert talk("a", "b", "a").exact != talk("a", "b", "b").exact


def test_media_are_keyed_by_their_bytes() -> None:
    def picture(data: str, kind: str = "image") -> CacheKey:
        source = {"type": "base64", "media_type": "image/png", "data": data}
        inner = {"type": kind, "source": source}
        return key(user({"type": "tool_result", "tool_use_id": "t", "content": [inner]}))

    once = b64encode(b"pixels").decode()
    assert picture(once) != picture(once[:4] + "\n" + once[4:])
    assert picture(once).exact != picture(b64encode(b"others").decode()).exact
    assert picture(once).exact != picture(once, "document").exact


def test_order_of_properties_matters_in_a_schema() -> None:
    one: dict[str, Any] = {"properties": {"a": {}, "b": {}}}
    other: dict[str, Any] = {"properties": {"b": {}, "a": {}}}
    for make in (
        lambda schema: {"tools": [{"name": "f", "input_schema": schema}]},
        lambda schema: {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
        lambda schema: {"output_format": {"type": "json_schema", "schema": schema}},
    ):
        assert key(**make(one)).exact != key(**make(other)).exact


# --- what is stored --------------------------------------------------------------------------


def answered(*parts: Text | Reasoning, blocks: Any = (), native: str = "end_turn") -> Completion:
    choice = Choice(
        index=0,
        parts=parts or (Text(text="So."),),
        finish="stop",
        native_finish=native,
        extra={CONTENT_BLOCKS: list(blocks)} if blocks else {},
    )
    return Completion(model="m", choices=(choice,), created=1)


def refusal(completion: Completion, **fields: Any) -> str | None:
    request = ChatRequest(
        model="m", stream=False, document={"messages": [ASK], **fields}, query="Why?"
    )
    return Admission().refuse_store(request, completion)


@pytest.mark.parametrize(
    ("blocks", "reason"),
    [
        ([{"index": 0, "type": "redacted_thinking", "data": "x"}], None),
        ([{"index": 0, "citations": [{"type": "char_location"}]}], None),
        ([{"index": 0, "type": "server_tool_use"}], "hosted-tools"),
        ([{"index": 1, "type": "web_search_tool_result"}], "hosted-tools"),
        ([{"index": 1, "type": "hologram"}], "hosted-tools"),
    ],
)
def test_only_what_the_model_says_itself_is_stored(blocks: Any, reason: str | None) -> None:
    assert refusal(answered(blocks=blocks)) == reason


def test_signed_thinking_is_stored_with_its_answer() -> None:
    thought = Reasoning(text="Hm", field="thinking", signature="s")
    assert refusal(answered(thought, Text(text="So."))) is None
    assert refusal(answered(thought)) == "empty"


@pytest.mark.parametrize("native", ["stop_sequence", "end_turn"])
def test_clean_ends_are_stored(native: str) -> None:
    assert refusal(answered(native=native)) is None


@pytest.mark.parametrize(
    ("native", "reason"),
    [
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("pause_turn", "unclean-finish"),
        ("refusal", "refusal"),
        ("tool_use", "tool-calls"),
        ("novel", "unclean-finish"),
    ],
)
def test_other_ends_are_not_stored(native: str, reason: str) -> None:
    assert refusal(answered(native=native)) == reason


def test_json_must_keep_the_requested_format() -> None:
    form = {"type": "json_schema", "schema": {"type": "object", "required": ["a"]}}
    for fields in ({"output_config": {"format": form}}, {"output_format": form}):
        assert refusal(answered(Text(text="{}")), **fields) == "broken-format"
        assert refusal(answered(Text(text='{"a":1}')), **fields) is None
    assert refusal(answered(), output_config={"effort": "low"}) is None


def test_results_of_tools_are_not_shared_between_users() -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": "42"}
    document = {"messages": [user(result), ASK]}
    request = ChatRequest(model="m", stream=False, document=document, query="Why?")
    alone = msgspec.structs.replace(request, document={"messages": [ASK]})
    assert Admission(share_users=True).refuse_semantic(request) == "tool-results"
    assert Admission(share_users=True).refuse_semantic(alone) is None
