"""The estimate of the tokens of a whole prompt: which parts count."""

from __future__ import annotations

from typing import Any

import pytest

from headstart.compression.tokens import FRAME_TOKENS, MEDIA_TOKENS, count_prompt, count_tokens

MODEL = "gpt-4o"


def tokens(text: str) -> int:
    return count_tokens(text, MODEL).tokens


def said(content: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": content}]}


def count(document: dict[str, Any]) -> int:
    return count_prompt(document, MODEL)


def test_texts_count_as_the_models_tokenizer_counts_them() -> None:
    text = "A sentence of some words, and another."
    assert count(said(text)) == tokens(text) + FRAME_TOKENS
    assert count(said([{"type": "text", "text": text}])) == count(said(text))
    gemini = {"contents": [{"role": "user", "parts": [{"text": text}]}]}
    assert count(gemini) == count(said(text))
    assert count({"generateContentRequest": {"model": "models/x", **gemini}}) == count(said(text))


def test_a_model_without_a_tokenizer_here_is_estimated_by_characters() -> None:
    assert count_prompt(said("x" * 400), "claude-x") == 100 + FRAME_TOKENS


def test_system_texts_and_tools_count() -> None:
    alone = count(said("hi"))
    assert count({**said("hi"), "system": "Be short."}) > alone
    assert count({**said("hi"), "systemInstruction": {"parts": [{"text": "Be short."}]}}) > alone
    tool = {"name": "find", "input_schema": {"type": "object", "properties": {"city": {}}}}
    assert count({**said("hi"), "tools": [tool]}) > alone + 10


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "source": {"type": "base64", "data": "A" * 9999}},
        {"type": "document", "source": {"type": "url", "url": "https://x.test/" + "a" * 9999}},
        {"inlineData": {"mimeType": "image/png", "data": "A" * 9999}},
        {"fileData": {"mimeType": "video/mp4", "fileUri": "https://x.test/v"}},
    ],
)  # fmt: skip
def test_a_file_counts_as_one_number_whatever_its_bytes(block: dict[str, Any]) -> None:
    assert count(said([block])) == MEDIA_TOKENS + FRAME_TOKENS


def test_the_text_of_a_document_counts() -> None:
    text = "many words of a document " * 20
    blocks = [{"type": "text", "text": text}]
    for source in ({"type": "text", "data": text}, {"type": "content", "content": blocks}):
        assert count(said([{"type": "document", "source": source}])) == count(said(text))


def test_calls_and_results_of_tools_count_and_marks_do_not() -> None:
    id = "toolu_" + "1" * 99
    call = {"type": "tool_use", "id": id, "name": "find", "input": {"city": "Rome"}}
    result = {"type": "tool_result", "tool_use_id": id, "content": "sunny"}
    thought = {"type": "thinking", "thinking": "hm " * 99, "signature": "s" * 999}
    without = count(said([]))
    assert without < count(said([call])) < without + 20
    assert without < count(said([result])) < without + 5
    assert count(said([thought])) == without
