"""Whether a way of asking saves tokens: by model, and in an experiment with a holdout. Pure."""

from __future__ import annotations

from hashlib import blake2b

from headstart.observe import HELD_OUT

_RANGE = 2**64


def held_out(experiment: str, conversation: str, share: float) -> bool:
    """Tell whether a conversation, known by its digest, is in the ``share`` that is left alone.

    All turns of a conversation are on one side. So neither its prefix at the provider nor its tone
    changes from turn to turn, and every replica decides the same.
    """
    digest = blake2b(f"{experiment}\0{conversation}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) < share * _RANGE


def experiment_arm(experiment: str, conversation: str, share: float) -> str:
    """Return the arm of a conversation: the name of the experiment, or of its holdout."""
    return experiment + HELD_OUT if held_out(experiment, conversation, share) else experiment


ENOUGH = 5
"""Number of answers after which a judgement stands."""
MEMORY = 0.9
"""Weight of an answer when the next one comes."""
MOST_OF = 0.9
"""Highest share of the tokens that may still be spent: a smaller saving is not worth the wait."""
TRIES = 20
"""One in so many calls is asked in this way even where it does not pay: models change."""
MOST_MODELS = 1000


class SavingsByModel:
    """Tokens with and without a way of asking, by model. The latest answers count most."""

    def __init__(self) -> None:
        self._models: dict[str, _ModelSavings] = {}

    def pays(self, model: str) -> bool:
        """Tell whether to ask in this way. Unknown models are tried."""
        record = self._models.get(model)
        return record is None or record.pays()

    def add(self, model: str, before: int, after: int) -> None:
        """Learn that an answer of ``before`` tokens cost ``after`` tokens."""
        record = self._models.get(model)
        if record is None:
            if len(self._models) >= MOST_MODELS:
                return
            record = self._models[model] = _ModelSavings()
        record.add(before, after)


class _ModelSavings:
    def __init__(self) -> None:
        self._count = 0
        self._before = 0.0
        self._after = 0.0
        self._let_be = 0

    def pays(self) -> bool:
        if self._count < ENOUGH or self._after <= MOST_OF * self._before:
            return True
        self._let_be += 1
        return self._let_be % TRIES == 0

    def add(self, before: int, after: int) -> None:
        self._count += 1
        self._before = MEMORY * self._before + before
        self._after = MEMORY * self._after + after
