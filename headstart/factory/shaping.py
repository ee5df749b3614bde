"""What is done to prompts and answers on their way, from settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headstart.factory.clock import clock
from headstart.factory.compression import compressing_options
from headstart.factory.keeping import keep
from headstart.factory.upstreams import dialects

if TYPE_CHECKING:
    from headstart.config import RouteSettings, Settings
    from headstart.config.output import OutputSettings
    from headstart.factory.site import Site
    from headstart.factory.upstreams import Opened
    from headstart.interfaces import Candidate
    from headstart.middleware.shaping.compress import Workbench
    from headstart.middleware.upstreams.ledger import Ledger
    from headstart.policies.output.lengths import Lengths

KEPT_AS = "output-lengths"


class Shaping:
    """Puts shapers around candidates, as a route asks for them."""

    def __init__(
        self,
        site: Site,
        opened: tuple[Opened, ...],
        ledger: Ledger,
        bench: Workbench | None,
        lengths: Lengths,
    ) -> None:
        self._site = site
        self._ledger = ledger
        self._bench = bench
        self._lengths = lengths
        self._compressing = compressing_options(site.settings)
        self._dialects = dialects()
        self._prefill = {
            target.name: each.settings.quirks.prefill for each in opened for target in each.targets
        }

    def around(self, candidate: Candidate, route: RouteSettings | None) -> Candidate:
        """Return a candidate that shapes what goes to ``candidate`` and what comes from there."""
        output = self._site.settings.output.at(route)
        inner = candidate = self._compressed(candidate)
        candidate = self._limited(candidate, output, "" if route is None else route.name)
        candidate = self._concise(candidate, output)
        candidate = self._quoting(candidate, output)
        candidate = self._editing(candidate, output)
        if candidate is inner:
            return inner
        from headstart.middleware.shaping.fail_open import FailOpen

        return FailOpen(candidate, inner, self._site.observers)

    def _compressed(self, candidate: Candidate) -> Candidate:
        from headstart.middleware.shaping.compress import Compressing

        if self._bench is None or all(each.mode == "off" for each in self._compressing.values()):
            return candidate
        return Compressing(
            candidate,
            self._compressing,
            self._bench,
            ledger=self._ledger,
            observer=self._site.observers,
        )

    def _limited(self, candidate: Candidate, output: OutputSettings, place: str) -> Candidate:
        from headstart.middleware.shaping.guard import Guard, GuardOptions

        if output.max_tokens == "off":
            return candidate
        options = GuardOptions(
            place=place, budget=output.max_tokens, holdout=output.holdout, prefill=self._prefill
        )
        return Guard(
            candidate,
            options,
            self._lengths,
            dialects=self._dialects,
            ledger=self._ledger,
            observer=self._site.observers,
            clock=clock,
        )

    def _concise(self, candidate: Candidate, output: OutputSettings) -> Candidate:
        from headstart.middleware.shaping.concise import Concise, ConciseOptions

        if not output.concise:
            return candidate
        options = ConciseOptions(output.concise, output.concise_examples, output.holdout)
        return Concise(candidate, options, self._dialects, self._ledger)

    def _quoting(self, candidate: Candidate, output: OutputSettings) -> Candidate:
        from headstart.middleware.shaping.quotes import Quoting

        if not output.quotes or self._bench is None:
            return candidate
        return Quoting(
            candidate, self._dialects, self._bench, self._ledger, self._site.observers, clock
        )

    def _editing(self, candidate: Candidate, output: OutputSettings) -> Candidate:
        from headstart.middleware.shaping.edits import Editing

        if output.edits == "off":
            return candidate
        return Editing(candidate, self._dialects, self._ledger, clock, by=output.edits)


def concise_levels(settings: Settings) -> dict[str, int]:
    """Return how short answers are to be, by route; "" for all that do not say."""
    levels = {route.name: settings.output.at(route).concise for route in settings.route}
    return {"": settings.output.concise, **levels}


async def open_shaping(site: Site, opened: tuple[Opened, ...], ledger: Ledger) -> Shaping:
    """Return what puts shapers around candidates, with the lengths that earlier runs learned."""
    from headstart.policies.output.lengths import Lengths

    lengths = Lengths()
    outputs = [site.settings.output.at(route) for route in (None, *site.settings.route)]
    if any(each.max_tokens != "off" for each in outputs):
        await keep(site, KEPT_AS, "output", saved=lengths.saved, load=lengths.load)
    quoting = any(each.quotes for each in outputs)
    return Shaping(site, opened, ledger, _open_bench(site, quoting=quoting), lengths)


def _open_bench(site: Site, *, quoting: bool) -> Workbench | None:
    """Return where long texts are worked on, if any are."""
    from headstart.middleware.shaping.compress import Workbench

    modes = [each.mode for each in compressing_options(site.settings).values()]
    if not quoting and all(mode == "off" for mode in modes):
        return None
    bench = Workbench()
    site.stack.callback(bench.close)
    return bench
