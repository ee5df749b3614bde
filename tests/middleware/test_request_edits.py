from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from headstart.dialects.gemini_generate import GEMINI_GENERATE
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.middleware.shaping.steps import is_editable, with_document
from support.candidates import make_call
from support.gemini_stream import OPERATIONS

if TYPE_CHECKING:
    from headstart.types import Call

BODY = (
    b'{"model": "m",  "temperature": 1.0, "seed":10000000000000000000000,'
    b' "messages": [{"role": "user",\t"content": "one \\u0041"}, {"role":"tool","content":"two"}]}'
)


def a_call(body: bytes = BODY) -> Call:
    return make_call(body, OPENAI_CHAT, prompt_tokens=1000)


def test_unchanged_members_keep_their_bytes() -> None:
    call = a_call()
    assert call.request is not None
    old = call.request.document
    first, second = old["messages"]
    document = {**old, "messages": [first, {**second, "content": "2"}]}
    edited = with_document(call, document)
    assert b'{"role": "user",\t"content": "one \\u0041"}' in edited.body
    assert b'"temperature":1.0' in edited.body
    assert b'"seed":10000000000000000000000' in edited.body
    assert msgspec.json.decode(edited.body) == document
    assert edited.request is not None
    assert edited.request.document is document
    assert edited.request.query == call.request.query


def test_members_and_messages_come_and_go() -> None:
    call = a_call()
    assert call.request is not None
    document = {**call.request.document, "max_tokens": 7}
    del document["temperature"]
    document["messages"] = [
        {"role": "system", "content": "short"},
        *document["messages"],
        {"role": "user", "content": "more"},
    ]
    edited = with_document(call, document, max_tokens=7)
    assert msgspec.json.decode(edited.body) == document
    assert edited.request is not None
    assert edited.request.max_tokens == 7
    assert b'{"role": "user",\t"content": "one \\u0041"}' in edited.body


def test_a_shorter_body_means_fewer_prompt_tokens() -> None:
    body = msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": "x" * 800}]})
    call = a_call(body)
    assert call.request is not None
    document = {**call.request.document, "messages": [{"role": "user", "content": ""}]}
    assert with_document(call, document).prompt_tokens == 800


@pytest.mark.parametrize("name", ["generationConfig", "generation_config"])
def test_geminis_body_stays_without_what_its_path_says(name: str) -> None:
    body = b'{"%b":{"temperature":1},"contents":[{"parts":[{"text":"a"}]}]}' % name.encode()
    path = b"/v1beta/models/m:generateContent"
    call = msgspec.structs.replace(
        a_call(),
        dialect=GEMINI_GENERATE.name,
        path=path,
        body=body,
        request=OPERATIONS.parse(path, b"", body),
    )
    assert call.request is not None
    document = {**call.request.document, "contents": [{"parts": [{"text": "b"}]}]}
    edited = with_document(call, document)
    assert OPERATIONS.parse(path, b"", edited.body).document == document
    assert "model" not in msgspec.json.decode(edited.body)


def test_only_calls_that_were_read_by_one_meaning_may_be_shaped() -> None:
    assert is_editable(a_call())
    assert not is_editable(msgspec.structs.replace(a_call(), editable=False))
    assert not is_editable(msgspec.structs.replace(a_call(), request=None))
    assert not is_editable(msgspec.structs.replace(a_call(), dialect=""))
    assert not is_editable(msgspec.structs.replace(a_call(), dialect="unknown"))
    assert not is_editable(a_call(BODY[:-1] + b',"model":"m"}'))
