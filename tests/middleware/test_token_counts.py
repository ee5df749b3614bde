"""The token counts that providers report, also where a count is no number."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import astuple

from headstart.dialects.anthropic_messages import ANTHROPIC_MESSAGES
from headstart.dialects.cohere_chat import COHERE_CHAT
from headstart.dialects.dialect import MOST_TOKENS, UpstreamDialect
from headstart.dialects.gemini_generate import GEMINI_GENERATE
from headstart.dialects.openai_chat import OPENAI_CHAT

DIALECTS: list[UpstreamDialect] = [
    OPENAI_CHAT, ANTHROPIC_MESSAGES, GEMINI_GENERATE, COHERE_CHAT,
]  # fmt: skip
FIELDS = (
    "prompt_tokens", "completion_tokens", "prompt_cache_hit_tokens", "cached_tokens",
    "cache_write_tokens", "reasoning_tokens", "input_tokens", "output_tokens",
    "cache_read_input_tokens", "cache_creation_input_tokens", "promptTokenCount",
    "toolUsePromptTokenCount", "candidatesTokenCount", "thoughtsTokenCount",
    "cachedContentTokenCount",
)  # fmt: skip
NESTED = ("prompt_tokens_details", "completion_tokens_details", "tokens", "billed_units")
VALUES: st.SearchStrategy[object] = (
    st.integers()
    | st.floats()
    | st.sampled_from((2**63, 2**64, 10**400, True, None, "7", [], {}, 1e308))
)
COUNTS = st.dictionaries(st.sampled_from(FIELDS), VALUES)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.name)
@given(usage=COUNTS, nested=st.dictionaries(st.sampled_from(NESTED), COUNTS | VALUES))
def test_any_usage_is_a_few_counts(
    dialect: UpstreamDialect, usage: dict[str, Any], nested: dict[str, Any]
) -> None:
    for count in astuple(dialect.tokens({**usage, **nested})):
        assert type(count) is int
        assert 0 <= count <= 3 * MOST_TOKENS  # some are sums


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.name)
def test_a_count_within_bounds_is_believed(dialect: UpstreamDialect) -> None:
    usage = {
        **dict.fromkeys(FIELDS, 7),
        "tokens": {"input_tokens": 7.0, "output_tokens": 7.0},
    }
    counted = dialect.tokens(usage)
    assert counted.prompt in {7, 14, 21}
    assert counted.completion in {7, 14}


@pytest.mark.parametrize(("total", "completion"), [(331, 319), (14, 2), (None, 2)])
def test_reasoning_that_is_counted_beside_the_completion_is_added(
    total: int | None, completion: int
) -> None:
    usage: dict[str, Any] = {"prompt_tokens": 12, "completion_tokens": 2, "total_tokens": total}
    details = {"reasoning_tokens": 317 if total != 14 else 1}
    counted = OPENAI_CHAT.tokens({**usage, "completion_tokens_details": details})
    assert counted.completion == completion
    assert counted.reasoning == details["reasoning_tokens"]
