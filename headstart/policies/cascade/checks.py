"""How often a cascade asks both models although one would do, so that its scores are checked.

Escalated drafts are compared with the strong model's answer at no cost; those that pass would
never be. A check costs the other model's call, and so is rarer the dearer that one is.
"""

from __future__ import annotations

import msgspec

from headstart.types import Frozen

CHECKED = 0.02
"""Share of the calls that is checked where that is cheap enough."""
LEAST_CHECKED = 0.001
"""Whatever it costs: without any checks, nothing is ever learned of drafts that pass. It is a
thousandth of what the strong model alone would cost."""
_MEMORY = 1000.0
"""Drafts over which their escalations are averaged."""


class Escalations(Frozen):
    """Which share of the late drafts was escalated. Immutable: ``after`` returns the next one."""

    share: float = 0.0
    drafts: float = 0.0

    def after(self, *, escalated: bool) -> Escalations:
        """Return what is known after one more draft."""
        drafts = min(_MEMORY, self.drafts + 1.0)
        share = self.share + (escalated - self.share) / drafts
        return msgspec.structs.replace(self, share=share, drafts=drafts)


def check_share(call_usd: float, check_usd: float, *, checked: float, extra_cost: float) -> float:
    """Return the probability with which to check a call.

    It is ``checked``, or as much less as it takes for checks to cost a share ``extra_cost`` of
    what calls cost: ``call_usd`` is the mean of such a call by itself, ``check_usd`` what a check
    adds to it. It is never less than ``LEAST_CHECKED`` unless one of the two shares is.
    """
    if check_usd <= 0.0:
        return checked
    least = min(LEAST_CHECKED, extra_cost)
    return min(checked, max(least, extra_cost * call_usd / check_usd))
