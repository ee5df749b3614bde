from __future__ import annotations

import pytest

from headstart.errors import ConfigError
from headstart.lab.bench import MIX, read_prompts


def test_text_is_a_prompt_a_line() -> None:
    found = read_prompts("p.txt", [b"Why?\n", b"\n", b"How?\n"])
    assert [prompt.messages[0]["content"] for prompt in found] == ["Why?", "How?"]


def test_json_lines_hold_prompts_or_messages() -> None:
    lines = [
        b'{"prompt": "Why?", "max_tokens": 9, "class": "x"}',
        b'{"prompt": [{"role": "user", "content": "How?"}]}',
        b'{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]}',
    ]
    first, second, third = read_prompts("p.jsonl", lines)
    assert (first.messages[0]["content"], first.max_tokens) == ("Why?", 9)
    assert second.messages[0]["content"] == "How?"
    assert len(third.messages) == 2


@pytest.mark.parametrize(
    ("name", "line", "reason"),
    [
        ("p.jsonl", b"Why?", "line 1"),
        ("p.jsonl", b"{}", "give 'prompt' or 'messages'"),
        ("p.txt", b"\xff", "line 1"),
        ("p.txt", b"\n", "no prompt"),
    ],
)
def test_an_unreadable_line_is_named(name: str, line: bytes, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        read_prompts(name, [line])


def test_the_built_in_mix_has_short_and_long_prompts_and_a_shared_prefix() -> None:
    heads = [prompt.messages[0]["content"] for prompt in MIX]
    shared = [head for head in heads if heads.count(head) > 1]
    assert len(shared) == 3
    assert len(shared[0]) > 4 * 1024
    assert min(map(len, heads)) < 80
