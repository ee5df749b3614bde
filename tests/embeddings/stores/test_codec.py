"""The envelope of stored values: lossless and versioned; values of other versions are skipped."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given

from headstart.decisions import Label, Outcome
from headstart.embeddings.stores.records import (
    VERSION,
    StoreLimits,
    decode,
    encode,
    encode_put,
)
from headstart.errors import StoreError
from headstart.observe import Served
from headstart.types import Completion, Entry, Put, RawResponse
from support.completions import completions
from support.entries import NOW, answer, entry, full_entry, put, raw_entry
from support.labels import full_label, label


def sealed_value(stored: Entry) -> bytes:
    return encode_put(Put(entry=stored), StoreLimits()).value


def fields_at_default(value: Any) -> list[str]:
    """Name the fields, of a struct and of the structs in it, that have their default."""
    if isinstance(value, tuple):
        return [name for item in value for name in fields_at_default(item)]
    if not isinstance(value, msgspec.Struct):
        return []
    unset = []
    for field in msgspec.structs.fields(value):
        content = getattr(value, field.name)
        default: Any = field.default
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        if content == default:
            unset.append(f"{type(value).__name__}.{field.name}")
        unset += fields_at_default(content)
    return unset


def test_the_full_entry_of_these_tests_leaves_no_field_out() -> None:
    # The second choice is there for the order of choices; the first has every field.
    assert [
        name for name in fields_at_default(full_entry()) if not name.startswith("Choice.")
    ] == []
    answered = full_entry().answer
    assert isinstance(answered, Completion)
    assert fields_at_default(answered.choices[0]) == []


@pytest.mark.parametrize("stored", [full_entry(), raw_entry(), entry("plain")])
def test_an_entry_comes_back_as_it_was(stored: Entry) -> None:
    assert decode(Entry, sealed_value(stored)) == stored


@given(completions())
def test_any_completion_comes_back_as_it_was_or_is_refused(completion: Completion) -> None:
    stored = entry("id", answer=completion)
    try:
        value = sealed_value(stored)
    except StoreError:  # an integer beyond 64 bits
        return
    assert decode(Entry, value) == stored


def test_a_value_of_another_version_is_skipped() -> None:
    value = sealed_value(entry("id"))
    assert value.startswith(VERSION)
    assert decode(Entry, b"\x02" + value[1:]) is None
    assert decode(Entry, b"") is None


@pytest.mark.parametrize(
    "damaged",
    [
        sealed_value(entry("id"))[:-5],
        VERSION,
        VERSION + b"\xc1",
        VERSION + b"\x80",
        VERSION + b"\x81\xa1a" * 100_000,
        sealed_value(entry("id", text="word")).replace(b"word", b"\xff\xfe\xff\xfe"),
    ],
    ids=["cut", "empty", "no msgpack", "no entry", "nested too deep", "no UTF-8"],
)
def test_a_damaged_value_is_skipped(damaged: bytes) -> None:
    assert decode(Entry, damaged) is None


@pytest.mark.parametrize("value", [2**70, object(), "\ud800"], ids=["int", "object", "surrogate"])
def test_a_value_that_cannot_be_encoded_is_a_store_error(value: object) -> None:
    completion = msgspec.structs.replace(answer(), extra={"field": value})
    with pytest.raises(StoreError):
        sealed_value(entry("id", answer=completion))


def test_an_entry_that_was_encoded_before_is_stored_alike() -> None:
    stored = full_entry()
    known = Put(entry=stored, value=msgspec.msgpack.encode(stored))
    assert encode_put(known, StoreLimits()) == encode_put(Put(entry=stored), StoreLimits())
    undated = msgspec.structs.replace(stored, expires=None)
    known = Put(entry=undated, value=msgspec.msgpack.encode(undated))
    dated = decode(Entry, encode_put(known, StoreLimits(ttl_s=60)).value)
    assert dated is not None
    assert dated.expires == stored.created + 60


def test_the_default_life_is_for_entries_that_state_none() -> None:
    limits = StoreLimits(ttl_s=60)
    assert encode_put(Put(entry=entry("id")), limits).expires == NOW + 60
    assert encode_put(Put(entry=entry("id", expires=NOW + 5)), limits).expires == NOW + 5
    dated = decode(Entry, encode_put(Put(entry=entry("id")), limits).value)
    assert dated is not None
    assert dated.expires == NOW + 60


def test_an_entry_beyond_max_bytes_alone_is_refused() -> None:
    size = encode_put(put("id"), StoreLimits()).size
    assert encode_put(put("id"), StoreLimits(max_bytes=size)).size == size
    with pytest.raises(StoreError, match="max_bytes"):
        encode_put(put("id"), StoreLimits(max_bytes=size - 1))


def test_a_row_of_the_books_comes_back_as_it_was() -> None:
    row = Served(
        id="r", at=NOW, endpoint="e", outcome=Outcome.SEMANTIC, status=200, stream=True,
        total_s=0.1, similarity=0.93, saved_usd=0.01,
    )  # fmt: skip
    assert decode(Served, encode(row)) == row
    assert decode(Served, b"\x02" + encode(row)[1:]) is None


def test_the_full_label_of_these_tests_leaves_no_field_out() -> None:
    assert fields_at_default(full_label()) == []


@pytest.mark.parametrize("stored", [full_label(), label("plain"), label("other", same=False)])
def test_a_label_comes_back_as_it_was(stored: Label) -> None:
    assert decode(Label, encode(stored)) == stored


def test_a_label_that_is_not_known_here_is_skipped() -> None:
    value = encode(label("id"))
    assert decode(Label, b"\x02" + value[1:]) is None
    assert decode(Label, value[:-5]) is None
    assert decode(Label, value.replace(b"miss", b"mist")) is None


def test_an_answer_of_a_version_that_knew_no_status_has_status_200() -> None:
    earlier = entry("raw", answer=RawResponse(headers=((b"content-type", b"a/b"),), body=b"x"))
    stored = encode_put(Put(entry=earlier), StoreLimits()).value
    assert b"status" not in stored
    assert decode(Entry, stored) == earlier
    created = entry("raw", answer=RawResponse(headers=(), body=b"x", status=201))
    assert decode(Entry, encode_put(Put(entry=created), StoreLimits()).value) == created


def test_the_draw_of_a_label_keeps_its_stored_name() -> None:
    value = encode(full_label())
    assert b"drawn" in value
    assert b"draw_probability" not in value
