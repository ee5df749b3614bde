"""Names of headers and query parameters: which hold secrets."""

from __future__ import annotations

import pytest

from headstart.policies.callers import (
    identifying_cookies,
    identifying_query,
    is_secret,
    is_secret_parameter,
)

SECRETS = """
    authorization x-api-key api-key x-goog-api-key cookie set-cookie x-auth x-auth-token
    ocp-apim-subscription-key x-litellm-api-key x-litellm-key cf-aig-authorization
    x-portkey-api-key x-portkey-virtual-key helicone-auth proxy-authorization x-access-token
    x-amz-security-token x-forwarded-access-token x-csrf-token x-vault_token x-secret x-jwt
    dpop x-session x-sid x-passwd x-session-id x-amz-signature x-goog-iap-jwt-assertion
    x-vercel-proxy-signature x-github-token2 x-fern-token x-stainless-key sessionkey
"""
OPEN = """
    accept content-type user-agent idempotency-key x-idempotency-key x-request-id traceparent
    anthropic-version anthropic-beta openai-beta x-stainless-lang x-title http-referer x-user
    x-max-tokens x-author x-keyboard session_id helicone-cache-enabled
    helicone-session-id x-session-affinity x-claude-code-session-id x-assignment x-sidecar
"""


def test_secrets_are_known_by_the_words_of_their_names() -> None:
    assert {name for name in SECRETS.encode().split() if not is_secret(name)} == set()
    assert {name for name in OPEN.encode().split() if is_secret(name)} == set()


@pytest.mark.parametrize(
    "name",
    [b"key", b"KEY", b"api_key", b"api-key", b"apiKey", b"x-api-key",
     b"access_token", b"token", b"subscription-key", b"auth", b"X-Amz-Signature",
     b"X-Amz-Credential", b"X-Amz-Security-Token", b"api_token", b"apitoken", b"app_key",
     b"refresh_token", b"session", b"sessionToken", b"AWSAccessKeyId", b"key[]", b"api key",
     b"$key", b"access.key", b"page_access_token", b"token2", b"PASSWORD", b"clientSecret"],
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
        b"nextPageToken",
        b"pagetoken",
        b"continuation_token",
        b"sort_key",
        b"idempotency-key",
        b"api_key_ids[]",
        b"X-Amz-Date",
        b"author",
        b"max_tokens",
    ],
)
def test_a_parameter_that_holds_none(name: bytes) -> None:
    assert not is_secret_parameter(name)


@pytest.mark.parametrize(
    "query",
    [b"", b"alt=sse", b"%61lt=sse", b"$alt=json&prettyPrint=false", b"%24alt=json", b"beta=true",
     b"api-version=2024-10-21", b"alt", b"$prettyPrint=true&alt=media"],
)  # fmt: skip
def test_parameters_that_say_nothing_about_the_caller(query: bytes) -> None:
    assert identifying_query(query) == b""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"a=1", b"a=2"),
        (b"a=1", b"b=1"),
        (b"a=1&a=2", b"a=2&a=1"),
        (b"a=1&a=1", b"a=1"),
        (b"a%3Db=c", b"a=b=c"),
        (b"a%26b=c", b"a&b=c"),
        (b"a", b"a="),
        (b"alt=sse;key=1", b"alt=sse;key=2"),
        (b"alt=%3Bkey=1", b"alt=sse"),
        (b"%2561lt=1", b"alt=1"),
        (b"a=%31", b"a=1"),
    ],
)
def test_any_other_parameter_tells_callers_apart(one: bytes, other: bytes) -> None:
    assert identifying_query(one) != identifying_query(other)


def test_a_parameter_counts_by_its_decoded_name() -> None:
    assert identifying_query(b"%6bey=1&alt=sse") == identifying_query(b"alt=json&key=1")


@pytest.mark.parametrize(
    ("sent", "identifying"),
    [
        (b"__cf_bm=a.b-1; _cfuvid=x", b""),
        (b"AWSALB=q; AWSALBCORS=q; session=s", b"session=s"),
        (b"session=s; __cf_bm=a", b"session=s"),
        (b"__cf_bm_user=ann", b"__cf_bm_user=ann"),
        (b"awsalb", b""),
        (b"a=1;b=2", b"a=1;b=2"),
        (b"a=1; ;b=2", b"a=1;b=2"),
        (b" ; ", b""),
        (b"", b""),
    ],
)
def test_cookies_of_load_balancers_name_no_caller(sent: bytes, identifying: bytes) -> None:
    assert identifying_cookies(sent) == identifying
