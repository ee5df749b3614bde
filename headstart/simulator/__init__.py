"""Simulated providers: real sockets, the real dialect, seeded delays and scripted faults.

The upstream of our tests, benches and the demo. Nothing here imports the cache.
"""

from __future__ import annotations

from headstart.simulator.answer_key import AnswerKey, Scripted, read_answer_key
from headstart.simulator.app import Simulator
from headstart.simulator.oracle import Oracle, Truth
from headstart.simulator.profiles import PROFILES, Profile, find_profile
from headstart.simulator.server import serve
from headstart.simulator.traffic import Prompt, traffic

__all__ = [
    "PROFILES",
    "AnswerKey",
    "Oracle",
    "Profile",
    "Prompt",
    "Scripted",
    "Simulator",
    "Truth",
    "find_profile",
    "read_answer_key",
    "serve",
    "traffic",
]
