"""What a log recommends after ``headstart tune``: in words, and as lines to paste."""

from __future__ import annotations

import json
from math import ceil
from typing import TYPE_CHECKING

from headstart.lab.tuning import Advice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.lab.tuning import Static, TargetResult

WORTH_IT = 0.01
"""With a lower share of late hits, matching by meaning gains next to nothing."""
FEW_HITS = 30
"""With fewer hits, the rates are rough."""


def advise(targets: Sequence[TargetResult], max_error: float, state: str) -> Advice:
    """Recommend a target, the wanted ``max_error`` if it is worth it and was kept.

    ``targets`` are sorted by their target. ``state`` is the file that holds what was learned.
    """
    wanted = next(each for each in targets if each.max_error == max_error)
    pick = _pick(targets, wanted)
    explained = tuple(_explain(each) for each in targets if _exceeds(each))
    if pick is None:
        nothing = (
            "Serve only exact repeats: no target gave hits by meaning for at least "
            f"{_percent(WORTH_IT)} of the prompts without breaking it."
        )
        return Advice(words=(nothing, *explained), toml='[cache]\nmode = "exact-only"')
    words = [f"Set max_error = {pick.max_error:g}: {_expect(pick)}."]
    if pick is not wanted:
        why = (
            f"gave hits for only {_percent(wanted.late.hit_rate)} of the prompts"
            if _kept(wanted)
            else "was not kept"
        )
        words.append(f"The target {_percent(max_error)} {why}.")
    if pick.rates.hits < FEW_HITS:
        words.append(
            f"The log is short: {pick.rates.hits:,} hits in {pick.rates.n:,} prompts. "
            "Some thousand prompts tell more."
        )
    toml = f"[cache]\nmax_error = {pick.max_error:g}\nstate = {json.dumps(state)}"
    return Advice(words=(*words, *explained), toml=toml)


def advise_static(found: Static) -> Advice:
    """Recommend a fixed threshold."""
    interval = found.rates.intervals["wrong_per_hit"]
    bound = "" if interval is None else f", at most {_percent(interval.high)} for 95 % certain"
    words = (
        f"Set threshold = {found.threshold:.2f}: {_percent(found.rates.hit_rate)} of the prompts "
        "of this log would have been hits by meaning, and "
        f"{_percent(found.rates.wrong_per_hit)} of these hits wrong{bound}."
    )
    toml = f'[cache]\nmatch = "static"\nthreshold = {found.threshold:.2f}'
    return Advice(words=(words,), toml=toml)


def _pick(targets: Sequence[TargetResult], wanted: TargetResult) -> TargetResult | None:
    """Return the wanted target; else a stricter one that was kept, else the next less strict."""
    stricter = [each for each in reversed(targets) if each.max_error < wanted.max_error]
    others = [each for each in targets if each.max_error > wanted.max_error]
    order = [wanted, *others] if _kept(wanted) else [*stricter, *others]
    return next((each for each in order if _kept(each) and _is_worth_it(each)), None)


def _is_worth_it(target: TargetResult) -> bool:
    return (target.late.hit_rate or 0.0) >= WORTH_IT


def _kept(target: TargetResult) -> bool:
    """Tell whether chance explains the wrong hits of a target that is kept."""
    return target.rates.wrong_per_hit_at_least <= target.max_error


def _exceeds(target: TargetResult) -> bool:
    return (target.rates.wrong_per_hit or 0.0) > target.max_error


def _expect(target: TargetResult) -> str:
    return (
        f"expect hits by meaning for about {_percent(target.late.hit_rate)} of the prompts, as in "
        f"the second half of this log, when most was learned. In the whole log {_wrong(target)}"
    )


def _wrong(target: TargetResult) -> str:
    rates = target.rates
    if not rates.wrong:
        return f"none of {rates.hits:,} hits was wrong"
    were, share = "was" if rates.wrong == 1 else "were", _percent(rates.wrong_per_hit)
    return f"{rates.wrong:,} of {rates.hits:,} hits {were} wrong ({share})"


def _explain(target: TargetResult) -> str:
    """Say why more hits were wrong than a target allows."""
    begin = f"Target {_percent(target.max_error)}: {_wrong(target)}."
    if _kept(target):
        enough = ceil(3 / target.max_error)
        return f"{begin} So few hits exceed it by chance; about {enough:,} hits would tell."
    late = target.late.wrong_per_hit
    if (late or 0.0) <= target.max_error:
        return (
            f"{begin} That was while little was learned: in the second half it was "
            f"{_percent(late)}. The state that was learned lets a server begin there."
        )
    return (
        f"{begin} Chance does not explain that. The borderline pairs of --html show whether these "
        "answers really differ."
    )


def _percent(share: float | None) -> str:
    return f"{100 * (share or 0.0):.3g} %"
