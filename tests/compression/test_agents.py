"""The costs of agents: generated sessions through the whole proxy and a provider with a cache."""

from __future__ import annotations

import pytest

from benchmarks.agent_sessions import coding, shares, tools
from benchmarks.agents import Kind, measure
from headstart.compression.tokens import load


@pytest.fixture(scope="module", autouse=True)
def tokenizer() -> None:
    load("gpt-4o")


def test_sessions_have_the_shares_of_published_ones() -> None:
    found = shares(160)
    assert found["reads"] == pytest.approx(0.5, abs=0.06)
    assert found["edits"] == pytest.approx(0.2, abs=0.04)
    assert found["shell"] == pytest.approx(0.17, abs=0.04)
    assert found["user"] == pytest.approx(0.075, abs=0.03)


def test_marks_halve_what_a_client_without_marks_pays_and_no_session_is_dearer() -> None:
    sessions = Kind(list(coding(4)), tools(), marked=False)
    found = measure(sessions, ["off", "safe", "safe, prompt cache"], None)
    assert found["safe"]["tokens"] < -0.03
    assert found["safe, prompt cache"]["cost"] < -0.5
    assert found["safe, prompt cache"]["cached"] > 0.7
    assert all(mode["dearer"] == 0 for mode in found.values())


def test_a_client_with_marks_keeps_its_own_cache_and_pays_less() -> None:
    sessions = Kind(list(coding(3)), tools(), marked=True)
    found = measure(sessions, ["off", "safe, prompt cache"], None)
    assert found["off"]["cached"] > 0.7
    assert found["safe, prompt cache"]["cached"] == pytest.approx(found["off"]["cached"], abs=0.01)
    assert found["safe, prompt cache"]["cost"] < -0.02
    assert found["safe, prompt cache"]["dearer"] == 0
