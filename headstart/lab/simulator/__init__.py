"""Simulated providers: real sockets, the real dialects, seeded delays and scripted faults.

The tests, the benchmarks and the demo use them as upstreams. Nothing here imports the cache.
"""

from __future__ import annotations

from headstart.lab.simulator.app import Simulator, serve
from headstart.lab.simulator.faults import Spell, find_weather
from headstart.lab.simulator.oracle import (
    AnswerKey,
    AnswerKeyRow,
    Oracle,
    TrafficPrompt,
    Truth,
    read_answer_key,
    traffic,
)
from headstart.lab.simulator.profiles import PROFILES, ProviderProfile, find_profile
from headstart.lab.simulator.simulated_calls import EndedCall

__all__ = [
    "PROFILES",
    "AnswerKey",
    "AnswerKeyRow",
    "EndedCall",
    "Oracle",
    "ProviderProfile",
    "Simulator",
    "Spell",
    "TrafficPrompt",
    "Truth",
    "find_profile",
    "find_weather",
    "read_answer_key",
    "serve",
    "traffic",
]
