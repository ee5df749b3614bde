"""Live drafts: when a call for a half-typed prompt pays, and which request the draft became.

The client sends its request once, with ``{{draft}}`` in the place of the text (``DraftTemplate``).
Each revision of the text fills that place. A call that is made before the client asks pays only if
the final text is the same. How often this is the case is learned for each kind of ending of the
text (``TriggerUse``). The wasted dollars are limited to a share of the cost of answers
(``WasteAccount``).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from headstart.attempts import CHARS_PER_TOKEN, PREFIX_TOKENS, RoutingEstimate
from headstart.errors import InvalidRequest
from headstart.policies.output.sentences import SentenceCutter
from headstart.types import json_or_none

if TYPE_CHECKING:
    from collections.abc import Sequence


# --- the request of a draft -----------------------------------------------------------------------

PLACEHOLDER = "{{draft}}"
"""Stands for the text in the request that a client gives when it begins a draft."""
MOST_TEXT = 64 * 1024
"""Longest text of a draft in characters."""
_FINAL = ".?!\u3002\uff1f\uff01"


class Trigger(StrEnum):
    """The reason to call before the client asks: the end of the text, or a pause in typing."""

    QUESTION = "question"
    SENTENCE = "sentence"
    PAUSE = "pause"


class DraftTemplate(NamedTuple):
    """A request's JSON body with a gap in the place of the text, inside a JSON string."""

    before: bytes
    after: bytes

    def body(self, text: str) -> bytes:
        """Return the request with this text."""
        return self.before + msgspec.json.encode(text)[1:-1] + self.after

    @property
    def prefix_tokens(self) -> int:
        """The estimated tokens before the text, which stay the same while it is typed."""
        return len(self.before) // CHARS_PER_TOKEN


def read_template(body: bytes) -> DraftTemplate:
    """Return the template of a JSON body. Raises InvalidRequest unless it has one placeholder."""
    before, mark, after = body.partition(PLACEHOLDER.encode())
    if not mark or PLACEHOLDER.encode() in after:
        raise InvalidRequest(
            f"request: exactly one text must contain {PLACEHOLDER}, in the place of the draft"
        )
    if not _is_object(before + after):  # this also refuses a placeholder outside of a string
        raise InvalidRequest("request: must be a JSON object")
    return DraftTemplate(before, after)


def _is_object(body: bytes) -> bool:
    return json_or_none(body, dict[str, Any]) is not None


def submitted_text(template: DraftTemplate, body: bytes) -> str | None:
    """Return the text that a final request has in the place of the draft.

    None: another part of the request differs. Fields that are null, and ``"stream": false``, count
    as absent.
    """
    pattern = json_or_none(template.body(PLACEHOLDER), dict[str, Any])
    final = json_or_none(body, dict[str, Any])
    if pattern is None or final is None:
        return None
    found: list[str] = []
    try:
        same = _matches(_plain(pattern), _plain(final), found)
    except RecursionError:
        return None
    return found[0] if same and found else None


def _plain(document: dict[str, Any]) -> dict[str, Any]:
    plain = {name: value for name, value in document.items() if value is not None}
    if plain.get("stream") is False:
        del plain["stream"]
    return plain


def _matches(pattern: Any, value: Any, found: list[str]) -> bool:
    if type(pattern) is not type(value):
        return False
    if isinstance(pattern, dict):
        return pattern.keys() == value.keys() and all(
            _matches(inner, value[name], found) for name, inner in pattern.items()
        )
    if isinstance(pattern, list):
        return len(pattern) == len(value) and all(
            _matches(inner, other, found) for inner, other in zip(pattern, value, strict=True)
        )
    if not isinstance(pattern, str) or PLACEHOLDER not in pattern:
        return bool(pattern == value)
    before, _, after = pattern.partition(PLACEHOLDER)
    fits = value.startswith(before) and value.endswith(after)
    if not fits or len(value) < len(before) + len(after):
        return False
    found.append(value[len(before) : len(value) - len(after)])
    return True


def same_prompt(draft: str, final: str) -> bool:
    """Tell whether the answer to a draft answers the final text.

    They may differ in space at the end, and in a final ``.``, ``?`` or ``!``.
    """
    return draft == final or (bool(_core(draft)) and _core(draft) == _core(final))


def _core(text: str) -> str:
    return text.rstrip().rstrip(_FINAL).rstrip()


def ending(text: str) -> Trigger | None:
    """Return the trigger that the end of a text gives; None: only a pause can be the trigger."""
    end = text.rstrip()[-1:]
    if end not in _FINAL or not _core(text):
        return None
    return Trigger.QUESTION if end in "?\uff1f" else Trigger.SENTENCE


# --- when a call pays -----------------------------------------------------------------------------

_BEFORE = {Trigger.QUESTION: (4.0, 5.0), Trigger.SENTENCE: (2.0, 4.0), Trigger.PAUSE: (1.0, 4.0)}
"""Prior counts, before anything is learned: the calls that were used, and all calls."""


class TriggerUse:
    """How often a call that was made early was used, for each trigger."""

    def __init__(self) -> None:
        self._counts = {each: list(before) for each, before in _BEFORE.items()}

    def share(self, trigger: Trigger) -> float:
        """Return the share of its calls that are used."""
        used, made = self._counts[trigger]
        return used / made

    def learn(self, trigger: Trigger, *, used: bool) -> None:
        """Learn whether a call was used."""
        counts = self._counts[trigger]
        counts[0] += used
        counts[1] += 1


class WasteAccount:
    """Limits the cost of calls that nobody used to a ``share`` of the cost of answers.

    Dollars that are not wasted are saved up, at most for ``_SAVED_UP`` answers. The account starts
    with this maximum.
    """

    _SAVED_UP = 20.0
    _MEMORY = 0.9

    def __init__(self, share: float) -> None:
        self._share = share
        self._left_usd: float | None = None
        self._most_usd = 0.0
        self._reserved_usd = 0.0
        self.warm_extra = 0.25
        """The extra cost of a call that only fills the prompt cache, as a share of its own cost:
        the final call reads the cache and costs less. At most providers a read costs 0.1 to 0.5 of
        the price of input; it is learned."""
        self.net_waste = 0.5
        """The share of a wasted call's cost that is lost in the end: usually the next call finds
        the prompt in the provider's cache and costs less. It is learned, too."""

    def left_usd(self, cost_usd: float) -> float:
        """Return the dollars that may still be wasted, before a call of this cost."""
        if self._left_usd is None:
            self._left_usd = self._most_usd = self._SAVED_UP * self._share * cost_usd
        return self._left_usd - self._reserved_usd

    def reserve(self, usd: float) -> None:
        """Set aside the expected waste of a call that begins; a negative number gives it back."""
        self._reserved_usd = max(0.0, self._reserved_usd + usd)

    def spare_usd(self, cost_usd: float) -> float:
        """Return the dollars above half of the maximum.

        The lower half is for early answers, which save more time.
        """
        return self.left_usd(cost_usd) - self._most_usd / 2.0

    def answered(self, cost_usd: float) -> None:
        """Note an answer that a client asked for, with an estimate of its cost."""
        self._most_usd = max(self._most_usd, self._SAVED_UP * self._share * cost_usd)
        self._change(self._share * cost_usd)

    def warmed(self, cost_usd: float, discount_usd: float) -> None:
        """Note a call that filled the prompt cache, and the dollars that the next call saves."""
        extra_usd = max(0.0, cost_usd - discount_usd)
        self.wasted(extra_usd)
        self.warm_extra = self._learned(self.warm_extra, extra_usd, cost_usd)

    def wasted_before(self, cost_usd: float, discount_usd: float) -> None:
        """Note the cost of the unused calls of a draft whose answer came from a later call.

        ``discount_usd`` is what that call saved because of them.
        """
        lost_usd = max(0.0, cost_usd - discount_usd)
        self.wasted(lost_usd)
        self.net_waste = self._learned(self.net_waste, lost_usd, cost_usd)

    def _learned(self, share: float, part: float, whole: float) -> float:
        return self._MEMORY * share + (1.0 - self._MEMORY) * part / whole if whole else share

    def wasted(self, cost_usd: float) -> None:
        """Note the cost of an unused call."""
        self._change(-cost_usd)

    def _change(self, usd: float) -> None:
        left = self._most_usd if self._left_usd is None else self._left_usd
        self._left_usd = min(self._most_usd, left + usd)


def refuse_call(
    estimate: RoutingEstimate, use: float, account: WasteAccount, *, budget_usd: float
) -> str | None:
    """Return why the call is not made before the client asks, or None.

    ``use`` is the probability that its answer is used. The whole cost must fit in ``budget_usd``.
    The expected waste must be small compared with the dollars that are left for waste, and the
    smaller, the less likely the answer is used. So calls with a poor chance get only what better
    ones leave.
    """
    refusal = refuse_cost(estimate, budget_usd=budget_usd)
    if refusal is not None:
        return refusal
    left_usd = account.left_usd(estimate.cost_usd or 0.0)
    return "extra-cost" if expected_waste(estimate, use, account) > use * left_usd else None


def refuse_cost(estimate: RoutingEstimate, *, budget_usd: float) -> str | None:
    """Return why a call cannot be made or paid now, or None. An inference needs no other reason."""
    if not estimate.ready:
        return "not-ready"
    if estimate.cost_usd is None:
        return "unknown-price"
    return "budget" if estimate.cost_usd > budget_usd else None


def expected_waste(estimate: RoutingEstimate, use: float, account: WasteAccount) -> float:
    """Return the dollars that a call is expected to waste, as its answer may not be used."""
    waste = estimate.cost_usd if estimate.waste_usd is None else estimate.waste_usd
    return (1.0 - use) * account.net_waste * (waste or 0.0)


# --- inferences -----------------------------------------------------------------------------------

INFER_TOKENS = 160
"""Most tokens of one inference."""
_SEGMENT = 60
"""Fewest characters of a segment. Shorter sentences are joined to one."""
_LONG = 200
"""Fewest characters of a prompt for which inferences are made."""
_INFER = (
    "Somebody is still writing the prompt below. Do not answer it. Say in one or two sentences "
    "what can be worked out from it already and will be needed for the answer: intermediate "
    "results, facts, constraints. If there is nothing to work out yet, say only: wait."
)
_NOTES = "Worked out already, while this was being written (check it; it may be wrong):"


class Inference(NamedTuple):
    """A result that a model has worked out from the beginning of a prompt."""

    prefix: str
    """The beginning, in whole sentences."""
    text: str
    """"" if there is nothing yet."""


def kept_inferences(inferences: Sequence[Inference], text: str) -> list[Inference]:
    """Return the inferences that are still valid: the text still begins as they read it."""
    return [each for each in inferences if text.startswith(each.prefix)]


def next_segment(text: str, inferences: Sequence[Inference]) -> str | None:
    """Return the beginning of a text that the next inference should read; None: there is none yet.

    It ends with a finished sentence that no inference has read. The last segment is held back,
    because the words after it may change its meaning (LiveMind, arXiv 2406.14319, section 3).
    """
    if len(text) < _LONG:
        return None
    read = len(inferences[-1].prefix) if inferences else 0
    cutter, end = SentenceCutter(), read
    for sentence in cutter.feed(text[read:]):
        end += len(sentence)
    return text[:end] if end - read >= _SEGMENT else None


def inference_prompt(segment: str, inferences: Sequence[Inference]) -> str:
    """Return the text that asks for an inference over the beginning of a prompt."""
    parts = [_INFER, f"The prompt so far:\n\n{segment}"]
    if notes := _notes(inferences):
        parts.append(f"You said about it so far:\n\n{notes}")
    return "\n\n".join(parts)


def read_inference(prefix: str, answer: str) -> Inference:
    """Return the inference in a model's answer."""
    said = answer.strip()
    return Inference(prefix, "" if said.lower().strip(".\"' ") in ("", "wait") else said)


def with_inferences(text: str, inferences: Sequence[Inference]) -> str | None:
    """Return the text that was sent in the end, with the inferences below; None without any."""
    notes = _notes(inferences)
    return f"{text}\n\n{_NOTES}\n\n{notes}" if notes else None


def _notes(inferences: Sequence[Inference]) -> str:
    return "\n".join(f"- {each.text}" for each in inferences if each.text)


def refuse_warming(
    template: DraftTemplate,
    estimate: RoutingEstimate,
    account: WasteAccount,
    *,
    budget_usd: float,
    only_warming: bool,
) -> str | None:
    """Return why the provider's prompt cache is not filled before the client asks, or None.

    Unless ``only_warming``, there may also be early calls for whole answers, which take precedence.
    """
    if template.prefix_tokens < PREFIX_TOKENS:
        return "short"
    if estimate.warm:
        return "warm"
    refusal = refuse_cost(estimate, budget_usd=budget_usd)
    if refusal is not None:
        return refusal
    cost_usd = estimate.cost_usd or 0.0
    left_usd = account.left_usd(cost_usd) if only_warming else account.spare_usd(cost_usd)
    return "extra-cost" if account.warm_extra * cost_usd > left_usd else None
