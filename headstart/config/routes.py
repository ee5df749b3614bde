"""``[[route]]``: rules for some requests, and the strategies by which they are answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import msgspec

from headstart.config.compression import CompressionMode  # noqa: TC001 - msgspec reads it
from headstart.config.output import EditMode, Level, MaxOutput  # noqa: TC001 - the same
from headstart.config.section import Dollars, Seconds, Section, Share

if TYPE_CHECKING:
    from headstart.interfaces import DraftJudge

StrategyName: TypeAlias = Literal[
    "single", "fallback", "race", "hedge", "fastest", "cheapest", "cascade"
]
Use: TypeAlias = Literal["autocomplete", "voice", "chat", "agent", "batch", "regulated"]
Judge: TypeAlias = Literal["format", "refusal", "logprob", "prompt", "agreement"]
OnRepeat: TypeAlias = Literal["hit", "fresh"]
Rescue: TypeAlias = Literal["restart", "prefill", "off"]


class JudgeInCode:
    """Holds a function that judges drafts, which no file can name: see ``composing.cascade``."""

    def __init__(self, ask: DraftJudge) -> None:
        self.ask = ask

    def __repr__(self) -> str:
        return repr(self.ask)


class StrategySettings(Section):
    """How upstreams answer together: a route, or a table in place of one of its upstreams.

    None is what the user did not write: the route's ``use`` decides, then the table around this
    one, then the default. ``strategies.strategy_of`` returns the values in force.
    """

    strategy: StrategyName | None = None
    upstreams: tuple[str | StrategySettings, ...] = ()
    """Names of upstreams, or strategies in their own right."""
    extra_calls: Share | None = None
    """Calls beyond the first, as a share of all requests."""
    extra_cost: Share | None = None
    """Their cost, as a share of all that the route costs."""
    hedge_floor_s: Seconds | None = None
    """Least wait before a hedge."""
    retries: Annotated[int, msgspec.Meta(ge=0, le=10)] | None = None
    """On the same upstream."""
    within_s: Seconds | None = None
    """``cheapest``: only among those that are expected to be done by then."""
    max_usd: Dollars | None = None
    """``fastest``: only among those that are expected to cost no more."""
    race_billed: bool | None = None
    """Race also providers that bill a cancelled call in full."""
    equal_models: Literal["check", "assume"] | None = None
    """Whether the model table has to know that racing models are the same."""
    first_complete: bool | None = None
    """The first whole answer wins, not the first token: pays for all."""
    judge: tuple[Judge, ...] | None = None
    """``cascade``: what has to let the fast model's draft pass."""
    judges: tuple[JudgeInCode, ...] | None = None
    """``cascade``: and judges of the user's own."""
    min_confidence: Share | None = None
    escalate_early: bool | None = None
    """``cascade``: start the slow model at once where the draft is likely to fail."""


class RouteMatch(Section):
    """What a ``[[route]]`` is for: patterns with ``*``, ``?`` and ``[abc]``; all have to fit."""

    model: str = "*"
    path: str = "*"
    header: dict[str, str] = msgspec.field(default_factory=dict)
    """By header name; a header that is absent fits no pattern."""


class RouteSettings(StrategySettings, kw_only=True):
    """``[[route]]``: other rules for some requests; the first that fits is taken."""

    name: Annotated[
        str, msgspec.Meta(pattern=r"^[!-~]+$", description="ASCII letters and signs, no space")
    ]
    match: RouteMatch = RouteMatch()
    use: Use | None = None
    """Defaults for a kind of traffic."""
    deadline_s: Seconds | None = None
    early_200_s: Seconds | None = None
    """Answer 200 with a comment when no content has come by then; None: never."""
    rescue: Rescue | None = None
    """What becomes of an answer that breaks off."""
    compression: CompressionMode | None = None
    """None: ``compression.mode``."""
    max_output: MaxOutput | None = None
    """None: ``output.max_tokens``."""
    concise: Level | None = None
    """None: ``output.concise``."""
    edits: EditMode | None = None
    """None: ``output.edits``."""
    quotes: bool | None = None
    """None: ``output.quotes``."""
    predictions: bool | None = None
    """None: ``output.predictions``."""
    max_error: float | None = None
    query: str | None = None
    """Regular expression whose group ``query`` is the question in the last user text."""
    semantic: bool = True
    ttl_s: Seconds | None = None
    on_repeat: OnRepeat = "hit"
    """What a caller gets that sends the same request again."""
    repeat_window_s: Seconds | None = None
    """``fresh``: how soon after its answer; None: ``terms.REPEAT_WINDOW_S``."""
