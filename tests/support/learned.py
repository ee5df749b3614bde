"""Labels of made-up pairs, and domains that learn from them."""

from __future__ import annotations

from contextlib import asynccontextmanager
from hashlib import blake2b
from typing import TYPE_CHECKING

import anyio
import numpy as np

from headstart.decisions import Label, LabelSource
from headstart.middleware.learning.domains import Domains
from headstart.middleware.observers import Observers
from headstart.observe import Observer, StageFailed
from headstart.policies.learned_rule.domain import Domain
from headstart.policies.learned_rule.error_limit import ErrorLimit
from headstart.policies.learned_rule.features import NAMES, VERSION, pack_features

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headstart.interfaces import Store
    from headstart.middleware.learning.learner import Learner
    from support.fakes import Recorder

ERROR_LIMIT = ErrorLimit(max_error=0.05)


@asynccontextmanager
async def running(part: Domains | Learner) -> AsyncIterator[None]:
    """Run a part that learns in the background, and close it at the end."""
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(part.run)
            yield
            tasks.cancel_scope.cancel()
    finally:
        await part.aclose()


def make_label(
    number: int,
    *,
    same: bool | None = True,
    domain: str = "d",
    source: LabelSource = LabelSource.MISS,
    closeness: float = 1.0,
    at: float = 1000.0,
    by: str = "",
    same_words: bool = False,
) -> Label:
    """Return a label of a pair that is more similar, the larger ``closeness`` is."""
    features = np.zeros(len(NAMES))
    features[0], features[1] = 1.0, closeness
    return Label(
        id=f"q{by}{number}",
        entry=f"e{number % 7}",
        domain=domain,
        source=source,
        same=same,
        at=at,
        similarity=0.9,
        version=VERSION,
        features=pack_features(features),
        stored=True,
        served=source is LabelSource.AUDIT,
        principal="someone",
        same_words=same_words,
    )


def make_domains(store: Store, observer: Observer | None = None, *, most: int = 8) -> Domains:
    return Domains(
        store,
        fresh=lambda: Domain(ERROR_LIMIT),
        restore=lambda snapshot: Domain.restore(ERROR_LIMIT, snapshot),
        observer=observer or Observers(),
        most=most,
    )


def digest(domain: Domain) -> str:
    """Return a digest of the knowledge of a domain, and its threshold."""
    return f"{blake2b(domain.snapshot(), digest_size=8).hexdigest()} {domain.threshold()}"


async def failed(recorder: Recorder, error: str) -> None:
    """Wait until the observers get this error of the learner."""
    with anyio.fail_after(10):
        while not any(
            isinstance(each, StageFailed) and (each.stage, each.error) == ("learner", error)
            for each in recorder.seen
        ):
            await anyio.sleep(0.005)


def labels_for(count: int, domain: str = "d") -> list[Label]:
    """Return labels, of which one in three says "different"."""
    return [
        make_label(number, same=number % 3 != 0, closeness=number % 3, domain=domain)
        for number in range(count)
    ]
