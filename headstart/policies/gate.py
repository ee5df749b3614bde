"""When a question is worth encoding (the gate), and how long it may wait for that.

A question is encoded if its nearest sketch is at least as similar as the gate. Each learning domain
has its own gate, which follows from its labels. They are counted in ranges of the similarity of the
nearest sketch. The gate is the upper end of the highest closed range. For example, a domain with a
learned rule compared 200 questions whose nearest sketch was at 0.3 to 0.4, and two of them had
equal answers. This range is closed, so questions below 0.4 are not encoded.

- **When a range is closed:** if less than the share ``WORTH`` of the questions in it and in all
  higher ranges had the same answer as their neighbour. The higher ranges count too, because a less
  similar neighbour has the same answer no more often. Once a rule is learned, a range is also
  closed if its own questions are below this share. Before that, a range stays open as long as the
  higher ones have equal answers, because the rule must be learned from less similar pairs, too.
- **Under the learned rule** the gate is at least the lowest similarity that the rule serves, less
  ``MARGIN``, the error of a sketch.
- **The lost hits are measured.** A small share of the questions below the gate is encoded
  nevertheless. If too many of them are hits, the gate is lowered. The share falls while such
  questions show no sign of a hit, and rises at the first sign.
- **While nothing is served,** a question is compared only for its label. So once the gate is at
  0.7 (``FEW_NEAR``), only a share of the questions is compared: all, if one in ten of those that
  reached the gate (``HOPEFUL``) had an equal answer, otherwise fewer in proportion, but at least
  one in eight (``LEAST_PASSING``). If pairs with the same words are served all the same, a
  question whose nearest sketch is above all ranges is always compared: nine of ten such pairs are.

**How long a question may wait** for the encoder: as long as the time that it is expected to save.
This is the time to the first byte of a fresh answer, which is learned by route and model, times the
share of hits among the encoded questions of the domain.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from math import inf, sqrt
from typing import TYPE_CHECKING

import msgspec

from headstart.decisions import GATE_SAMPLE, Gate, MatchContext
from headstart.types import Frozen, Latest

if TYPE_CHECKING:
    from headstart.policies.learned_rule.error_limit import JudgeNoise


LOWEST, WIDTH, RANGES = 0.3, 0.1, 6
"""The ranges that may be closed: from 0.3 to 0.9. Above, every question may be encoded."""
HIGHEST = LOWEST + RANGES * WIDTH
WORTH = 0.02
"""A range is closed if a smaller share of its questions had an equal answer. An encoding costs
about a hundredth of a call, so it would cost more than the hits save."""
OPEN = 0.0
"""The gate while no range is closed. Nearly every question passes it."""
UNKNOWN = 0.5
"""Prior: the number of equal answers, out of one question, with which each range begins."""
UNLABELLED = 0.25
"""The weight of a question that was encoded and gave no label. It counts as a different answer."""
FORGET_AT = 400
"""When a range has this number of labels, its counts are halved, so that newer labels weigh
more."""
MARGIN = 0.22
"""The similarity of two sketches is rarely lower than that of the encodings by more than this
(``docs/encoder.md``)."""
MOST_LOST = 0.02
"""The largest share of the hits that the gate may cost. If it costs more, it is lowered."""
ENOUGH_FOUND = 2
"""The fewest hits below the gate that lower it. A single one may be chance."""
WINDOW = 5000
"""Number of hits after which the count of hits starts again."""
STEP = 0.05
"""The distance by which the gate is lowered at a time."""
HALVED_AFTER = 50
"""The number of fruitless samples after which the share of sampled questions is halved."""
MOST_FRUITLESS = 3 * HALVED_AFTER
"""After this many fruitless samples the share is a quarter, and is not lowered further. Then fewer
than one question below the gate in fifty is a hit: by ``WORTH`` they are not worth encoding."""
CHANCE = 2.5
"""A sign needs more equal answers than the judge's errors explain, by this many standard
deviations. So with a judge that errs once in eight, a single equal answer is no sign."""
MOST_BY_CHANCE = 1.0
"""The count of equal answers starts again when the judge's errors explain this many of them. This
way many different answers in the past do not hide a change."""
NOTHING_SERVED = -1
"""The number that stands for every rule under which nothing is served, except for an alarm."""
HOPEFUL = 0.1
"""From this share of equal answers on, a domain that serves nothing gets all labels. Traffic from
which a rule can be learned has far more of them."""
FEW_NEAR = LOWEST + 4 * WIDTH
"""With a lower gate all questions are compared. Under such a gate a question has many entries near
it. If only a share of the questions was compared, these entries would have no encodings yet, and
one comparison would encode up to eight of them."""
LEAST_PASSING = 1 / 8
"""The least share of the questions that are compared. Those of them that reach the gate show a
change of traffic. Two equal answers may be enough to show it; after 200 different answers, 22
are."""
SAME_GATE = STEP / 2
"""A gate that has moved farther than this stops other questions, so the samples start again."""
MOST_DOMAINS = 4096
"""Domains whose counts are kept. The least recently used is evicted first."""
FIRST_HIT_SHARE = 0.25
"""The assumed share of hits among a domain's encoded questions, before any was encoded."""
HIT_MEMORY = 32
"""Number of encoded questions over which this share is averaged."""


def range_of(similarity: float) -> int | None:
    """Return the range of a similarity; ``RANGES``: it is above all; None: it is below all."""
    return min(int((similarity - LOWEST) / WIDTH), RANGES) if similarity >= LOWEST else None


class SketchLabels(Frozen, frozen=True, array_like=True):
    """The labels of a domain by the range of the nearest sketch."""

    compared: tuple[float, ...] = (0.0,) * RANGES
    same: tuple[float, ...] = (0.0,) * RANGES
    """Labels with equal answers, without pairs that a guard vetoed."""
    compared_above: float = 0.0
    """Labels above all ranges."""
    same_above: float = 0.0

    def with_label(self, similarity: float, *, same: bool) -> SketchLabels:
        """Return the counts with one more label."""
        place = range_of(similarity)
        if place is None:
            return self
        compared = [*self.compared, self.compared_above]
        equal = [*self.same, self.same_above]
        if compared[place] >= FORGET_AT:
            compared[place], equal[place] = compared[place] / 2, equal[place] / 2
        compared[place] += 1
        equal[place] += same
        return SketchLabels(
            compared=tuple(compared[:RANGES]),
            same=tuple(equal[:RANGES]),
            compared_above=compared[RANGES],
            same_above=equal[RANGES],
        )


class GateCounts(Frozen, frozen=True):
    """The questions of a domain that this process compared with its gate. Immutable."""

    passed: tuple[float, ...] = (0.0,) * (RANGES + 1)
    """Number of questions that were encoded and no hits, by the range of their nearest sketch."""
    hits: float = 0.0
    """Hits whose sketches reached the gate, since the gate was last changed."""
    found: int = 0
    """Hits below the gate that came through the sample."""
    missed: float = 0.0
    """The estimated number of all hits below the gate. A hit that was found in a sample of one
    question in fifty counts for fifty."""
    fruitless: int = 0
    """Sampled questions since the last sign of a hit among them. A sign is a hit, or an equal
    answer. The count also starts again when the gate has moved, and when another rule decides
    about hits."""
    fruitless_at: Gate | None = None
    """The gate for which ``fruitless`` was counted."""
    lowered: float = 0.0
    """The distance by which the gate was lowered."""
    hit_share: float = FIRST_HIT_SHARE
    """The share of the encoded questions that were hits lately, without the sampled ones."""

    def share_below(
        self, least: float, rule: int = 0, equal: float = 0.0, by_chance: float = 0.0
    ) -> float:
        """Return the share of the questions below a gate that are encoded nevertheless."""
        count = min(self._fruitless_below(least, rule, equal, by_chance), MOST_FRUITLESS)
        return GATE_SAMPLE * HALVED_AFTER / (HALVED_AFTER + count)

    def _fruitless_below(self, least: float, rule: int, equal: float, by_chance: float) -> int:
        """Return the fruitless samples that say something about the questions below a gate.

        If nothing is served, the gate costs no hits. Then only equal answers or a gate that was
        lowered are a sign.
        """
        known, nothing_served = self.fruitless_at, rule == NOTHING_SERVED
        if known is None:
            return MOST_FRUITLESS if nothing_served else 0
        if nothing_served and least > known.least + SAME_GATE:
            return self.fruitless
        other_rule = known.rule != rule and not nothing_served
        other_gate = abs(known.least - least) > SAME_GATE
        errors = max(by_chance - known.by_chance, 0.0)  # the equal answers that chance explains
        sign_of_hits = equal - known.equal > errors + CHANCE * sqrt(errors)
        return 0 if other_rule or other_gate or sign_of_hits else self.fruitless

    @property
    def lost(self) -> float:
        """The estimated share of all hits that the gate costs."""
        return self.missed / (self.hits + self.missed) if self.missed else 0.0

    def with_question(
        self, similarity: float, gate: Gate, *, sampled: bool, served: bool, judged: bool = True
    ) -> GateCounts:
        """Return the counts with one more question that was encoded.

        ``gate`` is the gate that let it pass, with the share of questions that was sampled then.
        ``judged``: the rule judged a neighbour, so the question may also give a label. If there was
        none (all neighbours are too far, or guards vetoed them), the question counts like a label
        for a different answer.
        """
        passed, place = self.passed, range_of(similarity)
        if place is not None and not served:
            seen = passed[place] + (1.0 if judged else 1 / UNLABELLED)
            seen = seen / 2 if seen >= FORGET_AT / UNLABELLED else seen
            passed = (*passed[:place], seen, *passed[place + 1 :])
        if sampled:
            return self._with_sample(passed, gate, served=served)
        hits = self.hits + served
        counts = msgspec.structs.replace(
            self,
            passed=passed,
            hits=hits,
            hit_share=self.hit_share + (served - self.hit_share) / HIT_MEMORY,
        )
        if hits < WINDOW:
            return counts
        lowered = self.lowered if self.found else max(self.lowered - STEP, 0.0)
        return _restarted(counts, lowered)

    def _with_sample(self, passed: tuple[float, ...], gate: Gate, *, served: bool) -> GateCounts:
        if not served:
            count = self._fruitless_below(gate.least, gate.rule, gate.equal, gate.by_chance)
            kept = self.fruitless_at if count else None
            if kept is None or _is_outdated(kept, gate):
                kept = gate
            return msgspec.structs.replace(
                self, passed=passed, fruitless=count + 1, fruitless_at=kept
            )
        counts = msgspec.structs.replace(
            self,
            passed=passed,
            found=self.found + 1,
            missed=self.missed + 1 / gate.share,
            fruitless=0,
        )
        if counts.found >= ENOUGH_FOUND and counts.lost > MOST_LOST:
            return _restarted(counts, self.lowered + STEP)
        return counts


def _is_outdated(kept: Gate, gate: Gate) -> bool:
    """Tell whether the count of equal answers must start again at ``gate``; it started at ``kept``.

    It must if the rule or the gate has changed, if labels were halved, or after enough labels.
    """
    by_chance = gate.by_chance - kept.by_chance
    return (
        kept.rule != gate.rule
        or abs(kept.least - gate.least) > SAME_GATE
        or gate.equal < kept.equal
        or not 0 <= by_chance <= MOST_BY_CHANCE
    )


def _restarted(counts: GateCounts, lowered: float) -> GateCounts:
    """Return the counts for a gate that is lowered by this distance: no hits yet."""
    return msgspec.structs.replace(counts, hits=0.0, found=0, missed=0.0, lowered=lowered)


def gate_of(
    labels: SketchLabels,
    counts: GateCounts,
    noise: JudgeNoise,
    *,
    learned: bool,
    least_served: float | None,
    rule: int = 0,
    refusal: str | None = None,
    same_words: bool = False,
) -> Gate:
    """Return the gate of a domain.

    ``learned`` tells whether the domain has a learned rule. ``least_served`` is the lowest
    similarity that this rule serves, or None if it serves nothing; ``refusal`` is the reason for
    that. ``rule`` changes when another rule decides about hits, and may be ``NOTHING_SERVED``.
    ``same_words``: the domain serves pairs with the same words, and nothing else.
    """
    least, equal_share = _close_ranges(labels, counts, noise, learned=learned)
    if least_served is not None:
        least = max(least, min(least_served - MARGIN, HIGHEST))
    if learned:
        least = max(least, LOWEST)
    if least != OPEN:
        least = max(least - counts.lowered, LOWEST)
    passing = 1.0
    if rule == NOTHING_SERVED and least >= FEW_NEAR:
        passing = min(max(equal_share / HOPEFUL, LEAST_PASSING), 1.0)
    # The labels of the ranges below the gate; a range ends where the next begins.
    below = max(int((least - LOWEST) / WIDTH + 0.001), 0)
    equal, by_chance = sum(labels.same[:below]), noise.false_agree * sum(labels.compared[:below])
    return Gate(
        least=least,
        share=counts.share_below(least, rule, equal, by_chance),
        passing=passing,
        refusal=refusal,
        rule=rule,
        equal=equal,
        by_chance=by_chance,
        same_words_from=HIGHEST if same_words else inf,
    )


def _close_ranges(
    labels: SketchLabels, counts: GateCounts, noise: JudgeNoise, *, learned: bool
) -> tuple[float, float]:
    """Return the upper end of the highest closed range, and the share of equal answers above it.

    If no range is closed, the end is ``OPEN``. The share is an estimate that begins at ``UNKNOWN``.
    """
    least = OPEN
    seen_from_here_up = equal_from_here_up = 0.0  # without the questions above all ranges
    reached = equal_reached = 0.0  # the questions above this range
    discernment = 1 - noise.false_agree - noise.false_disagree
    compared, same = (*labels.compared, labels.compared_above), (*labels.same, labels.same_above)
    for place in range(RANGES, -1, -1):
        seen_here = max(compared[place], UNLABELLED * counts.passed[place])
        # The equal answers without the errors of the judge (Rogan and Gladen 1978).
        equal_here = (same[place] - noise.false_agree * compared[place]) / discernment
        if place < RANGES:
            seen_from_here_up += seen_here
            equal_from_here_up += equal_here
            share = (max(equal_from_here_up, 0.0) + UNKNOWN) / (seen_from_here_up + 1)
            if learned:
                share = min(share, (max(equal_here, 0.0) + UNKNOWN) / (seen_here + 1))
            if share < WORTH:
                least = LOWEST + (place + 1) * WIDTH
                break
        reached += seen_here
        equal_reached += equal_here
    return least, (max(equal_reached, 0.0) + UNKNOWN) / (reached + 1)


NOTHING_SEEN = GateCounts()


class Gates:
    """The counts of the domains that were used last."""

    def __init__(self) -> None:
        self._counts: OrderedDict[str, GateCounts] = OrderedDict()

    def of(self, context: MatchContext) -> GateCounts:
        """Return the counts of a request's domain."""
        return self._counts.get(context.domain, NOTHING_SEEN)

    def note(
        self,
        context: MatchContext,
        similarity: float,
        gate: Gate,
        *,
        sampled: bool,
        served: bool,
        judged: bool = True,
    ) -> None:
        """Count a question that was encoded."""
        counts = self.of(context).with_question(
            similarity, gate, sampled=sampled, served=served, judged=judged
        )
        self._counts[context.domain] = counts
        self._counts.move_to_end(context.domain)
        if len(self._counts) > MOST_DOMAINS:
            self._counts.popitem(last=False)


# --- how long a question may wait -----------------------------------------------------------------

SHORTEST_S = 0.02
LONGEST_S = 0.25
UNKNOWN_S = 0.1
"""The wait while nothing is known. Few providers answer in less than 0.4 s."""
MEMORY = 64
"""Number of answers of a route and model that are remembered. Their median is the usual time."""
MOST_KNOWN = 1024
"""Pairs of route and model that are remembered, some 2 KB each."""


class EncoderWaitLimit:
    """Learns from misses how long a question may wait.

    Each miss is noted, and few questions wait: so the median is computed for the question.
    """

    def __init__(self) -> None:
        self._first_bytes_s: Latest[tuple[str, str], deque[float]] = Latest(MOST_KNOWN)

    def learn(self, route: str, model: str, first_byte_s: float) -> None:
        """Note the time to the first byte of a fresh answer."""
        key, known = (route, model), self._first_bytes_s
        if key in known:
            known.move_to_end(key)
        else:
            known[key] = deque(maxlen=MEMORY)
        known[key].append(first_byte_s)

    def wait_s(self, route: str, model: str, hit_share: float = FIRST_HIT_SHARE) -> float:
        """Return the longest wait for the encoder, in seconds.

        ``hit_share`` is the share of such questions that are hits once they are encoded.
        """
        known = self._first_bytes_s.get((route, model))
        if known is None:
            return UNKNOWN_S
        usual_s = sorted(known)[len(known) // 2]
        return min(max(hit_share * usual_s, SHORTEST_S), LONGEST_S)
