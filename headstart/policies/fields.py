"""Which request fields make an answer what it is: the table behind ``key.py``."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Use(Enum):
    """What a body field means to the cache key."""

    KEYED = "keyed"
    """Changes the answer. Fields that no table names are keyed too."""
    IGNORED = "ignored"
    """Changes delivery, accounting or identity, not the answer."""
    RANGED = "ranged"
    """Compared with the stored answer when it is served (``Admission.refuse_serve``)."""


OPENAI_CHAT: Mapping[str, Use] = {
    "model": Use.KEYED,
    "messages": Use.KEYED,
    "audio": Use.KEYED,
    "frequency_penalty": Use.KEYED,
    "presence_penalty": Use.KEYED,
    "logit_bias": Use.KEYED,
    "modalities": Use.KEYED,
    "moderation": Use.KEYED,
    "parallel_tool_calls": Use.KEYED,
    "reasoning_effort": Use.KEYED,
    "response_format": Use.KEYED,
    "seed": Use.KEYED,
    "stop": Use.KEYED,
    "temperature": Use.KEYED,
    "tool_choice": Use.KEYED,
    "tools": Use.KEYED,
    "top_p": Use.KEYED,
    "verbosity": Use.KEYED,
    "web_search_options": Use.KEYED,
    "functions": Use.KEYED,
    "function_call": Use.KEYED,
    "n": Use.RANGED,
    "logprobs": Use.RANGED,
    "top_logprobs": Use.RANGED,
    "max_tokens": Use.RANGED,
    "max_completion_tokens": Use.RANGED,
    "stream": Use.IGNORED,
    "stream_options": Use.IGNORED,
    "metadata": Use.IGNORED,
    "prediction": Use.IGNORED,
    "prompt_cache_key": Use.IGNORED,
    "prompt_cache_options": Use.IGNORED,
    "prompt_cache_retention": Use.IGNORED,
    "safety_identifier": Use.IGNORED,
    "service_tier": Use.IGNORED,
    "store": Use.IGNORED,
    "user": Use.IGNORED,
    "cache_control": Use.IGNORED,
    # litellm's own cache controls, which its clients leave in the body
    "cache": Use.IGNORED,
}
"""OpenAI Chat Completions. ``user`` and ``safety_identifier`` join the scope instead."""

ANTHROPIC_MESSAGES: Mapping[str, Use] = {
    "model": Use.KEYED,
    "messages": Use.KEYED,
    "system": Use.KEYED,
    "container": Use.KEYED,
    "diagnostics": Use.KEYED,
    "context_management": Use.KEYED,
    "inference_geo": Use.KEYED,
    "mcp_servers": Use.KEYED,
    "output_config": Use.KEYED,
    "output_format": Use.KEYED,
    "stop_sequences": Use.KEYED,
    "temperature": Use.KEYED,
    "thinking": Use.KEYED,
    "tool_choice": Use.KEYED,
    "tools": Use.KEYED,
    "top_k": Use.KEYED,
    "top_p": Use.KEYED,
    "max_tokens": Use.RANGED,
    "stream": Use.IGNORED,
    "metadata": Use.IGNORED,
    "cache_control": Use.IGNORED,
    "service_tier": Use.IGNORED,
    "speed": Use.IGNORED,
    "cache": Use.IGNORED,
}
"""Anthropic Messages. ``metadata.user_id`` joins the scope instead."""

GEMINI_GENERATE: Mapping[str, Use] = {
    "model": Use.KEYED,
    "contents": Use.KEYED,
    "systemInstruction": Use.KEYED,
    "cachedContent": Use.KEYED,
    "generationConfig": Use.KEYED,
    "safetySettings": Use.KEYED,
    "toolConfig": Use.KEYED,
    "tools": Use.KEYED,
    "labels": Use.IGNORED,
    "serviceTier": Use.IGNORED,
    "store": Use.IGNORED,
}
"""Gemini, in the names that its reader gives a request. Of ``generationConfig``, the limits
``maxOutputTokens`` and ``candidateCount`` are ranged."""

DIALECTS: Mapping[str, Mapping[str, Use]] = {
    "openai-chat": OPENAI_CHAT,
    "anthropic-messages": ANTHROPIC_MESSAGES,
    "gemini-generate": GEMINI_GENERATE,
}
"""By ``Call.dialect``. A dialect without a table has every field keyed."""

STRING_IS_ONE_TEXT = frozenset({"anthropic-messages"})
"""Dialects in which a string is documented to say what a list of one text block says."""
