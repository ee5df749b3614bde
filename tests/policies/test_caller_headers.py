"""Names of headers and query parameters: which hold secrets."""

from __future__ import annotations

import pytest

from headstart.policies.caller_headers import is_secret, is_secret_parameter

SECRETS = """
    authorization x-api-key api-key x-goog-api-key cookie set-cookie x-auth x-auth-token
    ocp-apim-subscription-key x-litellm-api-key x-litellm-key cf-aig-authorization
    x-portkey-api-key x-portkey-virtual-key helicone-auth proxy-authorization x-access-token
    x-amz-security-token x-forwarded-access-token x-csrf-token x-vault_token x-secret x-jwt
"""
OPEN = """
    accept content-type user-agent idempotency-key x-idempotency-key x-request-id traceparent
    anthropic-version anthropic-beta openai-beta x-stainless-lang x-title http-referer x-user
    x-max-tokens x-author x-keyboard session_id helicone-cache-enabled
"""


def test_secrets_are_known_by_the_words_of_their_names() -> None:
    assert {name for name in SECRETS.encode().split() if not is_secret(name)} == set()
    assert {name for name in OPEN.encode().split() if is_secret(name)} == set()


@pytest.mark.parametrize(
    "name",
    [b"key", b"KEY", b"api_key", b"api-key", b"apiKey", b"x-api-key",
     b"access_token", b"token", b"subscription-key", b"auth"],
)  # fmt: skip
def test_a_parameter_that_holds_a_key(name: bytes) -> None:
    assert is_secret_parameter(name)


@pytest.mark.parametrize(
    "name",
    [
        b"",
        b"alt",
        b"pageToken",
        b"page_token",
        b"after",
        b"limit",
        b"api-version",
        b"beta",
        b"$fields",
    ],
)
def test_a_parameter_that_holds_none(name: bytes) -> None:
    assert not is_secret_parameter(name)
