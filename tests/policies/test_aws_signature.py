"""Signature Version 4 against the requests and signatures of AWS's published test suite."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from headstart.middleware.upstreams.signers import AwsKeys, SignedRequest, sign

KEYS = AwsKeys("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
AT = datetime(2015, 8, 30, 12, 36, tzinfo=UTC).timestamp()
TOKEN = (
    "AQoDYXdzEPT//////////wEXAMPLEtc764bNrC9SAPBSM22wDOk4x4HIZ8j4FZTwdQWLWsKWHGBuFqwAeMicRXmxfpSPf"
    "IeoIYRqTflfKD8YUuwthAx7mSEI/qkPpKPi/kMcGdQrmGdeehM4IC1NtBmUpp2wUE8phUZampKsburEDy0KPkyQDYwT7W"
    "Z0wq5VSXDvp75YU9HFvlRd8Tx6q6fE8YQcHNVXAkiY9q6d+xo0rKwT38xVqr7ZD0u0iPPkUL64lIZbqBAz+scqKmlzm8F"
    "DrypNC9Yjc8fPOLn9FX9KSYvKTr4rvx3iSIlTJabIQwj2ICCR/oLxBA=="
)


def request(method: str = "GET", query: str = "", path: str = "/", **more: object) -> SignedRequest:
    headers, body = more.get("headers", ()), more.get("body", b"")
    assert isinstance(headers, tuple)
    assert isinstance(body, bytes)
    return SignedRequest(method, "example.amazonaws.com", path, query, headers, body)


FORM = (("content-type", "application/x-www-form-urlencoded"),)
VECTORS = {
    "get-vanilla": (
        request(),
        "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
    ),
    "get-vanilla-query-order-key-case": (
        request(query="Param2=value2&Param1=value1"),
        "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
    ),
    "get-utf8": (
        request(path="/\u1234"),
        "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85",
    ),
    "get-header-value-trim": (
        request(headers=(("My-Header1", " value1"), ("My-Header2", ' "a   b   c"'))),
        "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736",
    ),
    "post-vanilla": (
        request("POST"),
        "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b",
    ),
    "post-x-www-form-urlencoded": (
        request("POST", headers=FORM, body=b"Param1=value1"),
        "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a",
    ),
}


def proof_of(asked: SignedRequest, keys: AwsKeys = KEYS) -> str:
    return dict(sign(asked, keys, region="us-east-1", service="service", now=AT))["authorization"]


@pytest.mark.parametrize("name", VECTORS)
def test_published_vectors_have_the_published_signatures(name: str) -> None:
    asked, signature = VECTORS[name]
    assert proof_of(asked).endswith(f"Signature={signature}")


def test_a_session_token_is_sent_and_signed() -> None:
    added = sign(
        request("POST"), KEYS._replace(session_token=TOKEN), region="us-east-1", service="service",
        now=AT,
    )  # fmt: skip
    assert dict(added)["x-amz-security-token"] == TOKEN
    assert dict(added)["x-amz-date"] == "20150830T123600Z"
    proof = dict(added)["authorization"]
    assert "SignedHeaders=host;x-amz-date;x-amz-security-token," in proof
    assert proof.endswith("85d96828115b5dc0cfc3bd16ad9e210dd772bbebba041836c64533a82be05ead")


def test_a_path_is_encoded_once_more() -> None:
    """As AWS asks of all services but S3: the colon of a model's name goes out as %3A."""
    plain, encoded = (request(path=f"/model/a{colon}0") for colon in (":", "%3A"))
    assert proof_of(plain) != proof_of(encoded)


def test_the_keys_are_not_shown() -> None:
    assert "wJalr" not in repr(KEYS)
