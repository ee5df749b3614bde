"""``headstart reload``: a running server reads its configuration again."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import anyio
import click

from headstart.cli import data_sources
from headstart.cli.options import command, config_field, token_field, url_field

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class ReloadOptions:
    """The options of ``headstart reload``."""

    url: str | None = url_field()
    config: Path | None = config_field()
    token_env: str | None = token_field()


@command(ReloadOptions)
def reload(options: ReloadOptions) -> None:
    """Let a running server read its configuration again, without a lost request.

    New requests are served by the new configuration as soon as it has started; running ones end
    under the old one. If the configuration is wrong, the command says why and exits with 1, and the
    server goes on as before. SIGHUP does the same, and the log says what became of it.

    Examples:
      headstart reload
      headstart reload --url http://127.0.0.1:9000
    """
    ask = partial(data_sources.ask_server, method="POST", timeout_s=600.0)
    url = data_sources.chosen_url(options.url, options.config)
    token_env = data_sources.chosen_token_env(options.token_env, options.config)
    anyio.run(ask, url, "reload", token_env)
    click.echo("the configuration was reloaded")
