"""Keys: what separates answers, what does not, and who may share them."""

from __future__ import annotations

import json
from base64 import b64encode, urlsafe_b64encode
from hashlib import sha256
from string import ascii_letters, digits
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.dialects.dialect import FieldUse
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.dialects.request_form import decoded_digest
from headstart.policies.key import (
    KeyContext,
    chat_key,
    keyed_headers,
    raw_key,
    scope_of,
    variant,
)
from headstart.types import CacheKey, ChatRequest

STANDARD = ascii_letters[26:] + ascii_letters[:26] + digits + "+/"
"""The alphabet of base64, in order."""

# The request fields of OpenAI Chat Completions, from the published API reference.
DOCUMENTED = [
    "model",
    "messages",
    "audio",
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "max_completion_tokens",
    "max_tokens",
    "metadata",
    "modalities",
    "moderation",
    "n",
    "parallel_tool_calls",
    "prediction",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "reasoning_effort",
    "response_format",
    "safety_identifier",
    "seed",
    "service_tier",
    "stop",
    "store",
    "stream",
    "stream_options",
    "temperature",
    "tool_choice",
    "tools",
    "top_p",
    "user",
    "verbosity",
    "web_search_options",
    "functions",
    "function_call",
]

CONTEXT = KeyContext(
    dialect="openai-chat", path=b"/v1/chat/completions", upstream="https://api.example.com"
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)


def document(text: str = "What is a monad?", **fields: Any) -> dict[str, Any]:
    return {
        "model": "m-1",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": text},
        ],
        **fields,
    }


def key(body: dict[str, Any], context: KeyContext = CONTEXT, scope: str = "s") -> CacheKey:
    messages = body["messages"]
    content = messages[-1].get("content") if isinstance(messages, list) and messages else None
    if isinstance(content, list):
        texts = [part.get("text") for part in content]
        content = None if None in texts else "\n".join(texts)
    query = content if isinstance(content, str) and messages[-1]["role"] == "user" else None
    request = ChatRequest(model="m-1", stream=False, document=body, query=query)
    return chat_key(request, scope=scope, context=context)


def shuffled(value: Any, reverse: bool = True) -> Any:
    if isinstance(value, dict):
        return {name: shuffled(value[name]) for name in sorted(value, reverse=reverse)}
    return [shuffled(item) for item in value] if isinstance(value, list) else value


def test_every_documented_field_is_classified() -> None:
    assert set(DOCUMENTED) <= OPENAI_CHAT.key.fields.keys()


@given(
    name=st.sampled_from([name for name in DOCUMENTED if name != "messages"])
    | st.text(min_size=1, max_size=9).filter(lambda name: name != "messages"),
    values=st.tuples(JSON, JSON).filter(lambda pair: json.dumps(pair[0]) != json.dumps(pair[1])),
)
def test_a_field_changes_the_key_unless_its_table_says_otherwise(
    name: str, values: tuple[Any, Any]
) -> None:
    before, after = (key({**document(), name: value}) for value in values)
    if OPENAI_CHAT.key.fields.get(name, FieldUse.KEYED) is FieldUse.KEYED:
        assert before.partition != after.partition
        assert before.exact != after.exact
    else:
        assert before == after == key(document())


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=4))
def test_json_key_order_does_not_matter(extra: dict[str, Any]) -> None:
    body = {**document(), "extra": extra, "temperature": 0.3}
    assert key(shuffled(body)) == key(body)


@pytest.mark.parametrize(
    "schema_at",
    [
        lambda schema: {"tools": [{"type": "function", "function": {"parameters": schema}}]},
        lambda schema: {"functions": [{"name": "f", "parameters": schema}]},
        lambda schema: {
            "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}
        },
    ],
    ids=["tools", "functions", "response_format"],
)
def test_property_order_of_a_schema_matters(schema_at: Any) -> None:
    first: dict[str, Any] = {"properties": {"why": {}, "answer": {}}}
    second: dict[str, Any] = {"properties": {"answer": {}, "why": {}}}
    assert key(document(**schema_at(first))) != key(document(**schema_at(second)))


def test_absent_field_is_not_its_default() -> None:
    assert key(document()) != key(document(temperature=1))


def test_last_user_text_changes_only_the_exact_key() -> None:
    one, other = key(document("What is a monad?")), key(document("What is a functor?"))
    assert one.partition == other.partition
    assert one.exact != other.exact
    assert one.query == "What is a monad?"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"role": "system", "content": "Be brief."}, {"role": "system", "content": "Be long."}),
        ({"role": "user", "content": "Hi", "name": "ann"}, {"role": "user", "content": "Hi"}),
        (
            {"role": "tool", "tool_call_id": "a", "content": "4"},
            {"role": "tool", "tool_call_id": "a", "content": "5"},
        ),
    ],
    ids=["system", "name", "tool result"],
)
def test_history_is_part_of_the_partition(one: dict[str, Any], other: dict[str, Any]) -> None:
    question = {"role": "user", "content": "And now?"}
    keys = [key({"model": "m-1", "messages": [message, question]}) for message in (one, other)]
    assert keys[0].partition != keys[1].partition


def test_request_without_a_question_is_keyed_whole() -> None:
    def ending(text: str) -> CacheKey:
        messages = [*document()["messages"], {"role": "assistant", "content": text}]
        return key(document(messages=messages))

    assert ending("Well").partition != ending("Hm").partition
    assert ending("Well").query is None


def test_text_parts_are_kept_apart_in_the_exact_key() -> None:
    def parts(*texts: str) -> CacheKey:
        content = [{"type": "text", "text": text} for text in texts]
        return key({"model": "m-1", "messages": [{"role": "user", "content": content}]})

    assert parts("a\nb").exact != parts("a", "b").exact
    assert parts("a", "bc").exact != parts("ab", "c").exact
    assert parts("a").partition == parts("b").partition


def tool_turn(call_id: str, result_id: str | None = None) -> dict[str, Any]:
    call = {"id": call_id, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    return document(
        messages=[
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": result_id or call_id, "content": "4"},
            {"role": "user", "content": "So?"},
        ]
    )


def test_random_tool_call_ids_do_not_matter_but_their_pairing_does() -> None:
    assert key(tool_turn("call_x9")) == key(tool_turn("call_7b"))
    assert key(tool_turn("call_x9")) != key(tool_turn("call_x9", "call_other"))


def image(data: str, detail: str = "auto") -> dict[str, Any]:
    part = {"type": "image_url", "image_url": {"url": data, "detail": detail}}
    return document(messages=[{"role": "user", "content": [part]}])


def test_images_are_keyed_by_their_bytes_and_detail() -> None:
    raw = bytes(range(80))
    url = "data:image/png;base64," + b64encode(raw).decode()
    named = {"detail": "auto", "url": url}
    part = {"image_url": named, "type": "image_url"}
    same = document(messages=[{"content": [part], "role": "user"}])
    assert key(image(url)) == key(same)
    assert key(image(url)) != key(image(url, detail="high"))
    assert key(image(url)) != key(image(url[:-8] + "AAAAAAA="))
    assert key(image("https://example.com/a.png")) != key(image("https://example.com/b.png"))


@pytest.mark.parametrize("kind", ["image", "file"])
def test_nothing_that_a_client_can_send_is_keyed_as_the_digest_of_media(kind: str) -> None:
    def sent(media: object) -> dict[str, Any]:
        named = {"image": {"image_url": {"url": media}}, "file": {"file": {"file_data": media}}}
        return document(messages=[{"role": "user", "content": [named[kind]]}])

    raw = bytes(range(80))
    digested = ["data:image/png;base64", sha256(raw).hexdigest()]
    real = "data:image/png;base64," + b64encode(raw).decode()
    shapes = [
        real,
        digested,
        {"came": digested},
        {"came": {"came": digested}},
        None,
        0,
        digested[0],
    ]
    assert len({key(sent(shape)).exact for shape in shapes}) == len(shapes)


@pytest.mark.parametrize(
    "unsaid",
    [
        {"refusal": None},
        {"refusal": None, "annotations": []},
        {"tool_calls": None, "function_call": None, "provider_specific_fields": None},
    ],
    ids=["refusal", "openai", "litellm"],
)
def test_an_answer_that_is_sent_back_with_empty_fields_is_a_plain_turn(
    unsaid: dict[str, Any],
) -> None:
    asked, more = ({"role": "user", "content": text} for text in ("A tent?", "What does it cost?"))
    told = {"role": "assistant", "content": "We have one."}
    plain = key(document(messages=[asked, told, more]))
    assert plain.conversation is not None
    assert key(document(messages=[asked, {**told, **unsaid}, more])) == plain


@pytest.mark.parametrize(
    "said",
    [{"refusal": "No."}, {"annotations": [{"type": "url_citation"}]}, {"tool_calls": []}],
    ids=["refusal", "annotation", "unknown emptiness"],
)
def test_fields_of_an_answer_that_say_something_are_keyed(said: dict[str, Any]) -> None:
    asked, more = ({"role": "user", "content": text} for text in ("A tent?", "What does it cost?"))
    told = {"role": "assistant", "content": "We have one."}
    plain = key(document(messages=[asked, told, more]))
    other = key(document(messages=[asked, {**told, **said}, more]))
    assert (other.conversation, other.partition == plain.partition) == (None, False)


def test_a_call_id_that_is_not_a_text_is_not_keyed_like_one_that_is() -> None:
    shapes: list[Any] = ["call_x9", 0, {"came": 0}, {"came": {"came": 0}}, [0], 0.0, False]
    assert len({key(tool_turn(shape)).exact for shape in shapes}) == len(shapes)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,A"}},
        {"type": "image_url", "image_url": {"url": "data:text/plain,AAAA"}},
    ],
)
def test_inline_media_are_part_of_the_key(part: dict[str, Any]) -> None:
    other = json.loads(json.dumps(part).replace('A"', 'B"').replace("AAAB", "BBBB"))
    bodies = [document(messages=[{"role": "user", "content": [p]}]) for p in (part, other)]
    assert part != other
    assert key(bodies[0]) != key(bodies[1])


# What decoders are lenient about: foreign characters, padding, and bits that stand for no byte.
LOOSE = st.text("AQUJDR/+-_=\n \u00e9", max_size=12)


def strictly_decoded(text: str, *, url_safe: bool) -> bytes | None:
    """Decode as RFC 4648 says, section 3: what a strict reader refuses is None."""
    if url_safe and not set(text) & set("+/"):
        text = text.replace("-", "+").replace("_", "/")
    body = text.rstrip("=")
    if not set(body) <= set(STANDARD) or len(text) % 4 or len(text) - len(body) > 2:
        return None
    bits = "".join(f"{STANDARD.index(each):06b}" for each in body)
    whole = len(bits) // 8 * 8
    if "1" in bits[whole:] or len(bits) - whole >= 6:
        return None
    return bytes(int(bits[at : at + 8], 2) for at in range(0, whole, 8))


@pytest.mark.parametrize("url_safe", [False, True])
@given(text=LOOSE)
def test_a_text_counts_by_its_bytes_only_if_a_strict_reader_can_decode_it(
    text: str, *, url_safe: bool
) -> None:
    decoded = strictly_decoded(text, url_safe=url_safe)
    digest = text if decoded is None else sha256(decoded).hexdigest()
    assert decoded_digest(text, url_safe=url_safe) == digest


@given(st.binary(max_size=100))
def test_base64_in_either_alphabet_of_the_provider_is_keyed_by_its_bytes(raw: bytes) -> None:
    plain, safe = b64encode(raw).decode(), urlsafe_b64encode(raw).decode()
    digest = sha256(raw).hexdigest()
    assert decoded_digest(plain) == decoded_digest(plain, url_safe=True) == digest
    assert decoded_digest(safe, url_safe=True) == digest
    assert decoded_digest(safe) == (digest if safe == plain else safe)


def thinking(text: str, signature: str) -> dict[str, Any]:
    block = {"type": "thinking", "thinking": text, "signature": signature}
    return document(
        messages=[
            {"role": "assistant", "content": "4", "thinking_blocks": [block]},
            {"role": "user", "content": "Why?"},
        ]
    )


def test_signature_matters_only_without_the_text_it_signs() -> None:
    assert key(thinking("two and two", "abc")) == key(thinking("two and two", "xyz"))
    assert key(thinking("", "abc")) != key(thinking("", "xyz"))


def test_prompt_cache_marks_do_not_matter() -> None:
    def body(**mark: Any) -> dict[str, Any]:
        text = {"type": "text", "text": "Long.", **mark}
        tool = {"type": "function", "function": {"name": "f"}, **mark}
        history = {"role": "user", "content": [text], **mark}
        messages = [history, {"role": "user", "content": "And?"}]
        return {"model": "m-1", "messages": messages, "tools": [tool], **mark}

    assert key(body(cache_control={"type": "ephemeral"})) == key(body())


@pytest.mark.parametrize("name", ["request_id", "rid"])
def test_the_name_of_one_call_is_not_keyed(name: str) -> None:
    """Servers take it in the body (vLLM, SGLang), and each call has another."""
    asked = {"model": "m-1", "messages": [{"role": "user", "content": "And?"}]}
    assert key({**asked, name: "call-1"}) == key({**asked, name: "call-2"}) == key(asked)


@pytest.mark.parametrize(
    "messages",
    [[], None, "hi", [None], [{}], [{"role": "user"}], [{"role": "user", "content": 5}]],
)
def test_odd_shapes_are_keyed_as_they_came(messages: Any) -> None:
    request = ChatRequest(
        model="m", stream=False, document={"messages": messages, "tools": 1}, query="q"
    )
    odd = chat_key(request, scope="s", context=CONTEXT)
    assert odd.exact != key(document()).exact


@pytest.mark.parametrize(
    "change",
    [
        {"dialect": "other"},
        {"path": b"/v2/chat/completions"},
        {"upstream": "https://other.example.com"},
        {"query_string": b"api-version=2"},
        {"headers": ((b"openai-project", b"p1"),)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_context_separates_answers(change: dict[str, Any]) -> None:
    fields = {name: getattr(CONTEXT, name) for name in ("dialect", "path", "upstream")}
    assert key(document(), KeyContext(**{**fields, **change})) != key(document())


def test_key_in_the_query_string_is_left_to_the_scope() -> None:
    def at(query_string: bytes) -> CacheKey:
        fields = {name: getattr(CONTEXT, name) for name in ("dialect", "path", "upstream")}
        return key(document(), KeyContext(**fields, query_string=query_string))

    assert at(b"alt=sse&key=one") == at(b"alt=sse&key=two") == at(b"alt=sse")
    assert at(b"monkey=one") != at(b"monkey=two")


def test_wrapped_app_may_read_metadata() -> None:
    context = KeyContext(dialect="openai-chat", path=b"/ask", upstream="app", wrapped_app=True)
    bodies = [document(metadata={"tenant": tenant}) for tenant in ("a", "b")]
    assert key(bodies[0], context) != key(bodies[1], context)


def test_scopes_never_share_a_key() -> None:
    one, other = key(document(), scope="a"), key(document(), scope="b")
    assert {one.partition, one.exact}.isdisjoint({other.partition, other.exact})


def test_scope_depends_on_everything_it_is_made_of() -> None:
    scopes = {
        scope_of(b"secret", credential=b"k1"),
        scope_of(b"other", credential=b"k1"),
        scope_of(b"secret", credential=b"k2"),
        scope_of(b"secret", credential=None),
        scope_of(b"secret", credential=b"k1", subdivision="eu"),
        scope_of(b"secret", credential=b"k1", user="eu"),
        scope_of(b"secret", credential=b"k1", subdivision="eu", user="eu"),
    }
    assert len(scopes) == 7
    assert scope_of(b"secret", credential=b"k1") in scopes


def test_keyed_headers_are_the_protocols_and_the_configured_ones() -> None:
    headers = (
        (b"x-tenant", b"t"),
        (b"accept", b"*/*"),
        (b"openai-organization", b"o"),
        (b"anthropic-beta", b"b1"),
        (b"anthropic-beta", b"b2"),
    )
    assert keyed_headers(headers, {b"x-tenant"}) == (
        (b"anthropic-beta", b"b1"),
        (b"anthropic-beta", b"b2"),
        (b"openai-organization", b"o"),
        (b"x-tenant", b"t"),
    )
    assert keyed_headers(((b"accept", b"*/*"),)) == ()


def test_custom_endpoint_is_keyed_by_all_but_its_prompt() -> None:
    def ask(rest: Any, query: str | None) -> CacheKey:
        return raw_key(rest, query=query, scope="s", context=CONTEXT)

    assert ask({"lang": "en"}, "hi").partition == ask({"lang": "en"}, "ho").partition
    assert ask({"lang": "en"}, "hi").exact != ask({"lang": "en"}, "ho").exact
    assert ask({"lang": "en"}, "hi").partition != ask({"lang": "de"}, "hi").partition
    assert ask({"a": 1}, None).exact != ask({"a": 2}, None).exact


def test_variants_have_partitions_of_their_own() -> None:
    base = key(document())
    variants = [variant(base, number) for number in range(3)]
    assert len({v.partition for v in variants} | {v.exact for v in variants}) == 6
    assert {(v.scope, v.query) for v in variants} == {(base.scope, base.query)}
    assert variant(base, 1) == variants[1]
