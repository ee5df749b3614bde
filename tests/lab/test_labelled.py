"""Labelled files: the lines that are read, and the messages of errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from headstart.lab.rates import LabelledDataError, Pairs, Stream, read_labelled

if TYPE_CHECKING:
    from headstart.types import CacheKey


def lines(*rows: object) -> list[bytes]:
    return [msgspec.json.encode(row) for row in rows]


def turn(text: str, *history: str, **fields: object) -> list[dict[str, object]]:
    said: list[dict[str, object]] = [{"role": "assistant", "content": line} for line in history]
    return [*said, {"role": "user", "content": text, **fields}]


def prompts(*values: object) -> list[CacheKey]:
    stream = read_labelled(lines(*({"prompt": value, "class": 1} for value in values)))
    assert isinstance(stream, Stream)
    return [row.prompt for row in stream.rows]


def test_pairs_are_read_with_their_category() -> None:
    pairs = read_labelled(
        lines({"a": "x", "b": "y", "same_answer": True, "category": "c", "id": 5})
    )
    assert isinstance(pairs, Pairs)
    assert (pairs.rows[0].a.query, pairs.rows[0].b.query, pairs.rows[0].category) == ("x", "y", "c")


def test_blank_lines_are_skipped() -> None:
    stream = read_labelled([b"\n", *lines({"prompt": "x", "class": "c"}), b"  \n"])
    assert isinstance(stream, Stream)
    assert [row.label for row in stream.rows] == ["c"]


def test_conversations_keep_history_and_text_apart() -> None:
    one, other, longer = prompts(turn("Yes", "Sure?"), turn("Yes", "Really?"), turn("No", "Sure?"))
    assert one.query == other.query == "Yes"
    assert one.partition != other.partition
    assert one.partition == longer.partition


def test_only_the_users_own_text_can_be_similar() -> None:
    parts = [{"role": "user", "content": [{"type": "image_url"}]}]
    ends, image, named, plain = prompts(
        [*turn("Hi"), {"role": "assistant", "content": "Yes?"}],
        parts,
        turn("Hi", name="ann"),
        turn("Hi"),
    )
    assert ends.query is image.query is None
    assert ends.partition != image.partition
    assert named.partition != plain.partition


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "empty"),
        ([b"\n"], "empty"),
        ([b"{oops"], "line 1"),
        ([b"\xff\xfe"], "line 1"),
        (lines(["a"]), "line 1"),
        (lines({"question": "x"}), r"line 1: found \['question'\].*same_answer.*class"),
        (lines({"prompt": "x", "answer": "y"}), r"line 1: found \['answer', 'prompt'\].*class"),
        (lines({"a": "x", "b": "y"}), "line 1.*same_answer"),
        (lines({"prompt": "x", "class": "c"}, {"prompt": "x"}), "line 2.*class"),
        (lines({"prompt": "x", "class": "c"}, {"prompt": 5, "class": "c"}), "line 2.*prompt"),
    ],
)
def test_errors_name_the_line_and_the_field(content: list[bytes], message: str) -> None:
    with pytest.raises(LabelledDataError, match=message):
        read_labelled(content)


def test_a_named_question_is_compared_and_all_around_it_must_be_equal() -> None:
    def read(prompt: object, query: str) -> CacheKey:
        stream = read_labelled(lines({"prompt": prompt, "class": 1, "query": query}))
        assert isinstance(stream, Stream)
        return stream.rows[0].prompt

    one, other = read("Doc. Q: why? A:", "why?"), read("Doc. Q: how? A:", "how?")
    assert (one.query, other.query) == ("why?", "how?")
    assert one.partition == other.partition
    assert one.partition != read("Other doc. Q: why? A:", "why?").partition
    assert one.partition != read(turn("Doc. Q: why? A:", "Hi"), "why?").partition
    with pytest.raises(LabelledDataError, match="line 1: query"):
        read("Doc. Q: why?", "who?")


def test_a_stream_may_have_categories() -> None:
    stream = read_labelled(lines({"prompt": "x", "class": 1, "category": "c"}))
    assert isinstance(stream, Stream)
    assert stream.rows[0].category == "c"
