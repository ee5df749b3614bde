"""Errors about prompts that are too long, told to clients of other dialects in their own words."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from headstart.errors import is_context_exceeded, prompt_too_long
from support.proxied import CHAT, Reply, proxied, reply_of
from support.scripted import ScriptedUpstream

OPENAI = "This model's maximum context length is 131072 tokens. However, your request has "
OPENAI += "145112 input tokens. Please reduce the length of the messages."
GOOGLE = "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575)."
ANTHROPIC = "prompt is too long: 215692 tokens > 200000 maximum"


@pytest.mark.parametrize(
    "message",
    [
        OPENAI,
        GOOGLE,
        ANTHROPIC,
        "Your input exceeds the context window of this model. Please adjust your input.",
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens",
        "Please reduce the length of the messages or completion.",
        "the request exceeds the available context size, try increasing it",
        "prompt token count of 200000 exceeds the limit of 128000",
        "invalid params, context window exceeds limit (2013)",
        "Invalid request: Your request exceeded model token limit: 262144 (requested: 300000)",
        "Prompt contains 40000 tokens, too large for model with 32768 maximum context length",
        "Input is too long for requested model.",
        "prompt too long; exceeded max context length by 4 tokens",
        "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
        "too many tokens: total number of tokens in the prompt cannot exceed 128000",
        "`inputs` tokens + `max_new_tokens` must be <= 2048. Given: 3000 + 20",
        "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 129024]",
        "The decoder prompt (length 5000) is longer than the maximum model length of 4096.",
        "Prompt exceeds max length",
        "the maximum supported sequence length is just 4096!",
    ],
)
def test_the_words_of_providers_are_known(message: str) -> None:
    assert is_context_exceeded(400, None, message)
    assert not is_context_exceeded(429, None, message)


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("The limit is 131,072 tokens. You sent 145,112.", ": 145112 tokens > 131072 maximum"),
        ("The limit is 131,072 tokens.", ""),
        ("<400> Range of input length should be [1, 129024]", ""),
    ],
)
def test_only_numbers_of_tokens_are_told(message: str, told: str) -> None:
    assert prompt_too_long(message) == f"prompt is too long{told} ({message})"


def test_other_errors_are_left_as_they_are() -> None:
    assert not is_context_exceeded(400, "invalid_request", "messages: at least one is required")
    assert is_context_exceeded(None, "exceed_context_size_error", "")


class Refusing(ScriptedUpstream):
    """Answers each request with this status and document."""

    def __init__(self, document: Any) -> None:
        super().__init__()
        self.status, self.body = 400, json.dumps(document).encode()


async def ask(path: str, document: Any, dialect: str) -> Reply:
    body: dict[str, Any] = {"model": "m", "max_tokens": 9}
    body["messages"] = [{"role": "user", "content": "Hi"}]
    if path.endswith("generateContent"):
        body = {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]}
    elif path.endswith("responses"):
        body = {"model": "m", "input": "Hi", "store": False}
    async with proxied(Refusing(document), provider={"dialect": dialect}) as proxy:
        headers = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
        async with proxy.session.post(proxy.url + path, json=body, headers=headers) as response:
            return await reply_of(response)


@pytest.mark.anyio
async def test_a_client_of_anthropic_reads_anthropics_words() -> None:
    """Claude Code compacts on these words, and computes from the two numbers by how much."""
    for dialect, document, tokens in (
        ("openai", {"error": {"message": OPENAI, "code": 400}}, ("145112", "131072")),
        ("gemini", {"error": {"message": GOOGLE, "code": 400}}, ("1196265", "1048575")),
        ("bedrock", {"message": "Input is too long for requested model."}, None),
    ):
        reply = await ask("/v1/messages", document, dialect)
        error = json.loads(reply.body)["error"]
        assert (reply.status, error["type"]) == (400, "invalid_request_error")
        assert error["message"].startswith("prompt is too long")
        found = re.search(r"prompt is too long[^0-9]*(\d+)\s*tokens?\s*>\s*(\d+)", error["message"])
        assert (found and found.groups()) == tokens


@pytest.mark.anyio
@pytest.mark.parametrize("path", [CHAT, "/v1/responses"])
async def test_a_client_of_openai_reads_openais_code(path: str) -> None:
    document = {"type": "error", "error": {"type": "invalid_request_error", "message": ANTHROPIC}}
    reply = await ask(path, document, "anthropic")
    error = json.loads(reply.body)["error"]
    assert (reply.status, error["code"]) == (400, "context_length_exceeded")
    assert error["message"] == ANTHROPIC


@pytest.mark.anyio
async def test_a_client_of_gemini_reads_googles_words() -> None:
    document = {"type": "error", "error": {"type": "invalid_request_error", "message": ANTHROPIC}}
    reply = await ask("/v1beta/models/m:generateContent", document, "anthropic")
    error = json.loads(reply.body)["error"]
    assert (reply.status, error["status"]) == (400, "INVALID_ARGUMENT")
    assert re.match("The input token count.* exceeds the maximum number of", error["message"])


@pytest.mark.anyio
async def test_other_errors_keep_their_words() -> None:
    document = {"error": {"message": "No such tool.", "code": "bad"}}
    reply = await ask("/v1/messages", document, "openai")
    assert json.loads(reply.body)["error"]["message"] == "No such tool."
