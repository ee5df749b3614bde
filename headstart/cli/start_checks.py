"""Which files and variables ``serve`` would miss, found without starting it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from headstart.config.masking import masked_variable
from headstart.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from headstart.config import Settings


def start_problems(settings: Settings, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield what would keep checked settings from starting here, as far as reading tells."""
    token = settings.server.admin_token_env
    if token is not None and not environ.get(token):
        yield f"server.admin_token_env names {masked_variable(token)}, which is not set"
    for upstream in settings.upstream:
        for variable in upstream.key_variables:
            if not environ.get(variable):
                shown = masked_variable(variable)
                yield f"upstream {upstream.name!r} names {shown}, which is not set"
    checks: tuple[Callable[[Settings], None], ...] = (
        _read_authorities, _read_encoder, _read_state, _find_record
    )  # fmt: skip
    for check in checks:
        try:
            check(settings)
        except ConfigError as error:
            yield str(error)


def _read_authorities(settings: Settings) -> None:
    from headstart.middleware.upstreams.authorities import trusting

    for upstream in settings.upstream:
        if upstream.ca_file is not None:
            trusting(upstream.name, upstream.ca_file)


def _read_encoder(settings: Settings) -> None:
    chosen, cache = settings.encoder, settings.cache
    if not cache.enabled or cache.mode == "exact-only" or chosen.model == "default":
        return
    from headstart.embeddings.encoder import OnnxEncoder

    OnnxEncoder(Path(chosen.model), threads=chosen.threads, max_tokens=chosen.max_tokens)


def _read_state(settings: Settings) -> None:
    cache = settings.cache
    if cache.state is None:
        return
    from headstart.factory.learning import promise_of, read_prior
    from headstart.policies.verified import version_of

    read_prior(cache, promise_of(cache), version_of(cache.guards))


def _find_record(settings: Settings) -> None:
    folder = Path(settings.record.path).parent
    if settings.record.enabled and not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        raise ConfigError(f"record.path: {folder} is no folder that can be written to")
