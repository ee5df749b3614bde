"""Simulated providers: real sockets, the real dialects, seeded delays and scripted faults.

The upstream of our tests, benches and the demo. Nothing here imports the cache.
"""

from __future__ import annotations

from headstart.simulator.answer_key import AnswerKey, Scripted, read_answer_key
from headstart.simulator.app import Simulator
from headstart.simulator.oracle import Oracle, Truth
from headstart.simulator.profiles import PROFILES, Profile, find_profile
from headstart.simulator.server import serve
from headstart.simulator.stats import Record
from headstart.simulator.traffic import Prompt, traffic
from headstart.simulator.weather import Spell, find_weather

__all__ = [
    "PROFILES",
    "AnswerKey",
    "Oracle",
    "Profile",
    "Prompt",
    "Record",
    "Scripted",
    "Simulator",
    "Spell",
    "Truth",
    "find_profile",
    "find_weather",
    "read_answer_key",
    "serve",
    "traffic",
]
