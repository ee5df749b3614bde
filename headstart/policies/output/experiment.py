"""Which conversations an experiment leaves alone. Pure.

All turns of a conversation are on one side, so neither its prefix at the provider nor its tone
changes from turn to turn, and any replica decides the same.
"""

from __future__ import annotations

from hashlib import blake2b

from headstart.observe import HELD_OUT

_RANGE = 2**64


def held_out(experiment: str, conversation: str, share: float) -> bool:
    """Is a conversation, known by its digest, one of the ``share`` that are left alone?"""
    digest = blake2b(f"{experiment}\0{conversation}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) < share * _RANGE


def arm(experiment: str, conversation: str, share: float) -> str:
    """Return the side of a conversation: the experiment's name, or that of its holdout."""
    return experiment + HELD_OUT if held_out(experiment, conversation, share) else experiment
