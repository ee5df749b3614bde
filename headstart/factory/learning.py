"""Safe hits from their settings: the match policy, what it has learned, and its audits."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from headstart.errors import ConfigError
from headstart.factory.clock import clock
from headstart.factory.upstreams import price_of
from headstart.identifiers import new_ulid
from headstart.middleware.dialects.openai_chat import OpenAIChat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.config import CacheSettings
    from headstart.embeddings.encoder_worker import EncoderWorker
    from headstart.factory.site import Site
    from headstart.factory.upstreams import Opened
    from headstart.middleware.learning.domains import Domains
    from headstart.middleware.learning.judging import SecondOpinion
    from headstart.middleware.learning.oversight import Oversight
    from headstart.policies.match import StaticMatch
    from headstart.policies.ratchet.settings import Promise
    from headstart.policies.verified import VerifiedMatch


def make_domains(site: Site) -> Domains | None:
    """Return the holder of what is learned, or None with a static threshold. Raises ConfigError."""
    cache = site.settings.cache
    if cache.effective_match == "static":
        return None
    from headstart.middleware.learning.domains import Domains
    from headstart.policies.ratchet.domain import Domain
    from headstart.policies.verified import version_of

    promise = promise_of(cache)
    version = version_of(cache.guards)
    prior = read_prior(cache, promise, version)
    return Domains(
        site.store,
        fresh=lambda: Domain(promise, prior, version=version),
        restore=lambda snapshot: Domain.restore(promise, snapshot, version=version),
        observer=site.observers,
    )


def make_policy(cache: CacheSettings, domains: Domains | None) -> StaticMatch | VerifiedMatch:
    """Return what decides whether a neighbour may answer."""
    if domains is None:
        from headstart.policies.match import StaticMatch

        return StaticMatch(cache.threshold, cache.guards)
    from headstart.policies.verified import VerifiedMatch

    return VerifiedMatch(promise_of(cache), domains.get, cache.guards)


def make_second_opinion(site: Site, upstreams: Sequence[Opened]) -> SecondOpinion | None:
    """Return the model that is asked where two answers cannot be told apart, if one is set."""
    judge = site.settings.cache.judge
    named = (each for each in upstreams if judge and each.settings.name == judge.upstream)
    chosen = next(named, None)
    if judge is None or chosen is None:
        return None
    from headstart.middleware.learning.allowance import Allowance
    from headstart.middleware.learning.model_judge import ModelJudge

    return ModelJudge(
        chosen.http,
        OpenAIChat(),
        judge.model,
        Allowance(judge.max_calls_per_hour, judge.max_usd_per_day, clock),
        price=partial(price_of, chosen.settings),
        clock=clock,
        new_id=partial(new_ulid, clock),
        observer=site.observers,
    )


def open_oversight(
    site: Site,
    domains: Domains | None,
    encoder: EncoderWorker | None,
    version: str,
    second: SecondOpinion | None,
) -> Oversight | None:
    """Start learning; None when nothing is learned. The store must be open."""
    if domains is None or encoder is None:
        return None
    from headstart.middleware.learning.audits import AuditOptions, Audits
    from headstart.middleware.learning.judging import AnswerJudge
    from headstart.middleware.learning.learner import Learner
    from headstart.middleware.learning.oversight import Oversight

    learner = Learner(
        site.store,
        domains,
        AnswerJudge(encoder, site.observers, second),
        version=version,
        clock=clock,
        observer=site.observers,
    )
    site.stack.push_async_callback(learner.aclose)
    running = site.supervisor.spawn(learner.run)
    site.stack.callback(running.cancel)
    cache = site.settings.cache
    audit = cache.audit
    options = AuditOptions(
        mode=audit.mode,
        floor=audit.rate,
        null_rate=audit.null_rate,
        max_calls_per_hour=audit.max_calls_per_hour,
        max_usd_per_day=audit.max_usd_per_day,
    )
    return Oversight(
        learner,
        Audits(options, clock),
        promise=promise_of(cache),
        shadow=cache.mode == "shadow",
        shadow_first=cache.shadow_first,
        observer=site.observers,
    )


def promise_of(cache: CacheSettings) -> Promise:
    """Return what a learning domain is held to."""
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
