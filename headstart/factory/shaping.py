"""Builds the steps that change prompts and answers, by the settings of each route."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headstart.factory.context import clock, persist
from headstart.middleware.shaping.steps import ShapedCandidate, StepContext

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headstart.factory.context import BuildContext
    from headstart.factory.upstreams import Opened
    from headstart.interfaces import Candidate
    from headstart.middleware.shaping.prompt_compression import TextWorker
    from headstart.middleware.shaping.steps import Step
    from headstart.policies.output.answer_limits import Lengths
    from headstart.settings import CompressionSettings, OutputSettings, RouteSettings, Settings


def compression_by_route(settings: Settings) -> dict[str, CompressionSettings]:
    """Return the settings of compression by route; those of "" hold for all other routes."""
    own = {
        route.name: msgspec.structs.replace(settings.compression, mode=route.compression)
        for route in settings.route
        if route.compression is not None
    }
    return {"": settings.compression, **own}


LENGTHS_NAME = "output-lengths"


class Shaping:
    """Makes candidates with the steps that the settings of a route ask for."""

    def __init__(
        self,
        build: BuildContext,
        opened: tuple[Opened, ...],
        worker: TextWorker | None,
        lengths: Lengths,
    ) -> None:
        self.context = StepContext(build.observers, clock)
        self._settings = build.settings
        self._worker = worker
        self._lengths = lengths
        self._compression = compression_by_route(build.settings)
        self._prefill = {
            target.name: each.settings.quirks.prefill for each in opened for target in each.targets
        }

    def around(self, candidate: Candidate, route: RouteSettings | None) -> Candidate:
        """Return a candidate that runs a route's steps; ``candidate`` itself if it has no steps."""
        output = self._settings.output.at(route)
        steps = list(self._steps(output, "" if route is None else route.name))
        return ShapedCandidate(candidate, steps, self.context) if steps else candidate

    def _steps(self, output: OutputSettings, route: str) -> Iterator[Step]:
        """Yield steps in the order in which they see a call. Modules load where they are used."""
        if output.edits != "off":
            from headstart.middleware.shaping.edits import AskForEdits

            yield AskForEdits(output.edits)
        if output.quotes and self._worker is not None:
            from headstart.middleware.shaping.quotes import QuoteByNumber

            yield QuoteByNumber(self._worker)
        if output.concise or output.max_tokens != "off":
            from headstart.middleware.shaping.answer_length import AskBriefly, LimitAnswers

            if output.concise:
                yield AskBriefly(output)
            if output.max_tokens != "off":
                yield LimitAnswers(route, self._lengths, output, self._prefill)
        compression = self._compression.get(route) or self._compression[""]
        if self._worker is not None and compression.mode != "off":
            from headstart.middleware.shaping.prompt_compression import CompressPrompts

            recoverable = None
            if compression.mode == "recoverable":
                from headstart.middleware.shaping.recoverable import RecoverableCalls

                recoverable = RecoverableCalls(compression)
            yield CompressPrompts(compression, self._worker, recoverable)


def concise_levels(settings: Settings) -> dict[str, int]:
    """Return the level of brevity by route; "" stands for all other routes."""
    levels = {route.name: settings.output.at(route).concise for route in settings.route}
    return {"": settings.output.concise, **levels}


async def open_shaping(build: BuildContext, opened: tuple[Opened, ...]) -> Shaping:
    """Return the builder of steps. It starts with the answer lengths that earlier runs learned."""
    from headstart.policies.output.answer_limits import Lengths

    lengths = Lengths()
    outputs = [build.settings.output.at(route) for route in (None, *build.settings.route)]
    if any(each.max_tokens != "off" for each in outputs):
        await persist(build, LENGTHS_NAME, "output", saved=lengths.saved, load=lengths.load)
    quoting = any(each.quotes for each in outputs)
    return Shaping(build, opened, _open_worker(build, quoting=quoting), lengths)


def _open_worker(build: BuildContext, *, quoting: bool) -> TextWorker | None:
    """Return the worker for long texts; None if no step needs one."""
    from headstart.middleware.shaping.prompt_compression import TextWorker

    compressed = [each.mode != "off" for each in compression_by_route(build.settings).values()]
    if not quoting and not any(compressed):
        return None
    worker = TextWorker()
    build.stack.callback(worker.close)
    return worker
