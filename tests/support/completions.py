"""Completions of every shape that the OpenAI dialect can carry, for property tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from headstart.types import Choice, Completion, Part, Reasoning, Refusal, Text, ToolCall

# Lone surrogates cannot be written as UTF-8.
text = st.text(st.characters(codec="utf-8"))
some_text = text.filter(bool) | st.integers(1, 500).map(lambda n: "añ🙂"[n % 3] * n)
unknown_fields = st.dictionaries(
    st.sampled_from(("x_annotations", "x_citations", "x_channel")),
    st.integers() | some_text | st.lists(st.integers()) | st.just({"a": {"b": 1}}),
    max_size=2,
)


@st.composite
def completions(draw: st.DrawFn) -> Completion:
    indices = draw(st.lists(st.integers(0, 4), min_size=1, max_size=3, unique=True))
    return Completion(
        model=draw(some_text),
        choices=tuple(draw(_choices(index)) for index in sorted(indices)),
        created=draw(st.integers(1, 2**31)),
        usage=draw(st.none() | st.just({"prompt_tokens": 3, "details": {"cached_tokens": 1}})),
        fingerprint=draw(st.none() | some_text),
        tier=draw(st.none() | some_text),
        extra=draw(unknown_fields),
    )


@st.composite
def _choices(draw: st.DrawFn, index: int) -> Choice:
    parts = tuple(draw(_parts()))
    return Choice(
        index=index,
        parts=parts,
        finish=draw(st.sampled_from(("stop", "tool_calls", "length", "eos"))),
        logprobs=draw(st.none() | st.just(_logprobs(parts))),
        extra=draw(unknown_fields),
        beside=draw(unknown_fields),
    )


@st.composite
def _parts(draw: st.DrawFn) -> list[Part]:
    parts: list[Part] = []
    for part in draw(st.lists(_part, max_size=4)):
        # What follows its own kind would be one part.
        if not parts or type(part) is not type(parts[-1]) or isinstance(part, ToolCall):
            parts.append(part)
    return parts


_part: st.SearchStrategy[Part] = st.one_of(
    some_text.map(lambda value: Text(text=value)),
    st.builds(Reasoning, text=some_text, field=st.sampled_from(("reasoning", "reasoning_content"))),
    some_text.map(lambda value: Refusal(text=value)),
    st.builds(
        ToolCall,
        id=some_text,
        name=some_text,
        arguments=text,
        kind=st.sampled_from(("function", "custom")),
        extra=unknown_fields,
    ),
)


def _logprobs(parts: tuple[Part, ...]) -> dict[str, Any]:
    """Return a token for each byte, as byte-level tokenizers split a character."""
    spelled = "".join(part.text for part in parts if isinstance(part, Text)).encode()
    tokens = [{"token": f"\\x{b:02x}", "bytes": [b], "logprob": -0.5} for b in spelled]
    return {"content": tokens, "refusal": None}
