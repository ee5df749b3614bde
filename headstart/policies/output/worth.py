"""Whether a way of asking pays with a model, judged by what it brought of late."""

from __future__ import annotations

ENOUGH = 5
"""Answers after which a judgement stands."""
MEMORY = 0.9
"""What an answer counts by the time of the next."""
MOST_OF = 0.9
"""Share of the tokens that may be spent: less saved is not worth the wait."""
TRIES = 20
"""Of so many calls that are let be, the last is made all the same: models change."""
MOST_MODELS = 1000


class Worth:
    """Tokens with and without, by model; the latest answers count most."""

    def __init__(self) -> None:
        self._models: dict[str, _Record] = {}

    def pays(self, model: str) -> bool:
        """Tell whether to ask in this way. Unknown models are tried."""
        record = self._models.get(model)
        return record is None or record.pays()

    def add(self, model: str, before: int, after: int) -> None:
        """Learn that an answer of ``before`` tokens was had for ``after``."""
        record = self._models.get(model)
        if record is None:
            if len(self._models) >= MOST_MODELS:
                return
            record = self._models[model] = _Record()
        record.add(before, after)


class _Record:
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
