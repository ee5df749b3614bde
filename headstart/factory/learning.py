"""Builds the match policy, the store of its labels, and the audits of its hits."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.errors import ConfigError
from headstart.factory.context import clock
from headstart.factory.upstreams import price_of
from headstart.types import new_ulid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.embeddings.encoder_worker import EncoderWorker
    from headstart.factory.context import BuildContext
    from headstart.factory.upstreams import Opened
    from headstart.middleware.learning.domains import Domains
    from headstart.middleware.learning.learner import SecondOpinion
    from headstart.middleware.learning.oversight import Oversight
    from headstart.policies.match import StaticMatch, VerifiedMatch
    from headstart.policies.ratchet.settings import Promise
    from headstart.settings import CacheSettings


def make_domains(build: BuildContext) -> Domains | None:
    """Return the learning domains, or None with a static threshold. Raises ConfigError."""
    cache = build.settings.cache
    if cache.effective_match == "static":
        return None
    from headstart.middleware.learning.domains import Domains
    from headstart.policies.match import version_of
    from headstart.policies.ratchet.domain import Domain

    promise = promise_of(cache)
    version = version_of(cache.guards)
    prior = read_prior(cache, promise, version)
    return Domains(
        build.store,
        fresh=lambda: Domain(promise, prior, version=version),
        restore=lambda snapshot: Domain.restore(promise, snapshot, version=version),
        observer=build.observers,
    )


def make_policy(cache: CacheSettings, domains: Domains | None) -> StaticMatch | VerifiedMatch:
    """Return the policy that decides whether a neighbour may answer."""
    if domains is None:
        from headstart.policies.match import StaticMatch

        return StaticMatch(cache.threshold, cache.guards)
    from headstart.policies.match import VerifiedMatch

    return VerifiedMatch(promise_of(cache), domains.get, cache.guards)


def make_second_opinion(build: BuildContext, upstreams: Sequence[Opened]) -> SecondOpinion | None:
    """Return the model that judges answers when the agreement judge is unsure, if one is set."""
    judge = build.settings.cache.judge
    named = (each for each in upstreams if judge and each.settings.name == judge.upstream)
    chosen = next(named, None)
    if judge is None or chosen is None:
        return None
    from headstart.middleware.learning.audits import CallBudget
    from headstart.middleware.learning.model_judge import ModelJudge

    return ModelJudge(
        chosen.http,
        OPENAI_CHAT,
        judge.model,
        CallBudget(judge.max_calls_per_hour, judge.max_usd_per_day, clock),
        price=partial(price_of, chosen.settings),
        clock=clock,
        new_id=partial(new_ulid, clock),
        observer=build.observers,
    )


async def open_oversight(
    build: BuildContext,
    domains: Domains | None,
    encoder: EncoderWorker | None,
    version: str,
    second: SecondOpinion | None,
) -> Oversight | None:
    """Start learning; return None where the policy learns nothing. The store must be open."""
    if domains is None or encoder is None:
        return None
    from headstart.embeddings.sketch import load_sketcher
    from headstart.middleware.learning.audits import Audits, CpuBudget
    from headstart.middleware.learning.learner import AnswerJudge, Learner
    from headstart.middleware.learning.oversight import Oversight

    chosen = build.settings.encoder
    folder = None if chosen.model == "default" else Path(chosen.model)
    sketcher = await asyncio.to_thread(load_sketcher, folder, max_tokens=chosen.max_tokens)
    budget = CpuBudget(build.settings.learning.cpu_share, time.monotonic)
    build.observers.add(budget)
    learner = Learner(
        build.store,
        domains,
        AnswerJudge(
            encoder,
            build.observers,
            second,
            budget,
            sketch=None if sketcher is None else sketcher.sketch,
        ),
        version=version,
        clock=clock,
        observer=build.observers,
    )
    build.stack.push_async_callback(learner.aclose)
    running = build.supervisor.spawn(learner.run)
    build.stack.callback(running.cancel)
    cache = build.settings.cache
    return Oversight(
        learner,
        Audits(cache.audit, clock),
        budget=budget,
        promise=promise_of(cache),
        shadow=cache.mode == "shadow",
        shadow_first=cache.shadow_first,
        observer=build.observers,
    )


def promise_of(cache: CacheSettings) -> Promise:
    """Return the share of wrong answers that each learning domain has to keep."""
    from headstart.policies.ratchet.settings import Promise

    default = Promise()
    return Promise(
        max_error=default.max_error if cache.max_error is None else cache.max_error,
        error_of=cache.error_of,
        confidence=default.confidence if cache.confidence is None else cache.confidence,
        cold_start=cache.cold_start,
    )


def read_prior(cache: CacheSettings, promise: Promise, version: str) -> bytes | None:
    """Read the operator's prior and check that this version can use it. Raises ConfigError."""
    if cache.state is None:
        return None
    from headstart.policies.ratchet.domain import Domain

    try:
        prior = Path(cache.state).read_bytes()
        Domain(promise, prior, version=version)
    except OSError as error:
        raise ConfigError(f"cache.state: {cache.state} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"cache.state: {cache.state}: {error}") from error
    return prior
