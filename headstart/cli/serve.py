"""``headstart serve``: the sidecar."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from headstart.config import checked, discover_upstreams, load_settings
from headstart.config.masking import masked_url

if TYPE_CHECKING:
    import socket

    from headstart.config import Settings

EPILOG = """\b
Examples:
  headstart serve --upstream https://api.openai.com/v1
  OPENAI_API_KEY=… headstart serve --port 8080
  headstart serve --config headstart.toml

Then point any OpenAI client at it: OpenAI(base_url="http://127.0.0.1:8080/v1").
"""


@click.command(epilog=EPILOG)
@click.option(
    "--config", "path", type=click.Path(path_type=Path, dir_okay=False), help="headstart.toml"
)
@click.option("--host", help="Address to bind.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to bind.  [default: 8080]")
@click.option("--upstream", metavar="URL", help="One OpenAI-dialect upstream; callers' keys pass.")
@click.option("--store", metavar="URL", help="sqlite:///path, memory: or redis://…")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="warning",
    show_default=True,
)
def serve(
    path: Path | None,
    host: str | None,
    port: int | None,
    upstream: str | None,
    store: str | None,
    log_level: str,
) -> None:
    """Run the sidecar proxy: chat completions and messages cached, all else under /v1/ relayed.

    With no configuration it uses the providers whose key variables are set. Ready when
    /_headstart/ready answers 200.
    """
    overrides = {
        "server.host": host,
        "server.port": port,
        "cache.store": store,
        "upstream": None if upstream is None else [{"base_url": upstream}],
    }
    settings = load_settings(path, os.environ, overrides)
    if not settings.upstream:
        found, notes = discover_upstreams(os.environ)
        settings = checked(msgspec.structs.replace(settings, upstream=found))
        for note in notes:
            click.echo(note)
    logging.basicConfig(level=log_level.upper(), format="%(levelname)s %(name)s: %(message)s")
    run_sidecar(settings, log_level)


def run_sidecar(settings: Settings, log_level: str = "warning") -> None:
    """Serve until interrupted. Raises ConfigError or StoreError when it cannot start."""
    import uvicorn

    from headstart.errors import HeadstartError
    from headstart.middleware.http_protocol import BoundedHeadProtocol
    from headstart.sidecar import build_sidecar
    from headstart.sockets import bind

    sidecar = build_sidecar(settings)
    failures: list[HeadstartError] = []

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            # Before uvicorn's own start-up, which would print a traceback over the reason.
            try:
                await sidecar.running()
            except HeadstartError as error:
                failures.append(error)
                self.should_exit = True
                return
            await super().startup(sockets)
            click.echo(banner(settings, listening.getsockname()[1]))

    with bind(settings.server.host, settings.server.port) as listening:
        config = uvicorn.Config(
            sidecar,
            log_level=log_level,
            access_log=False,
            # The upstream's own Date and Server headers pass; ours would double them.
            date_header=False,
            server_header=False,
            http=BoundedHeadProtocol,
            lifespan="on",
            timeout_graceful_shutdown=int(settings.server.shutdown_s) + 1,
        )
        Server(config).run([listening])
    if failures:
        raise failures[0]


def banner(settings: Settings, port: int) -> str:
    """Return the start message: where it listens, what it caches, where misses go."""
    server, cache = settings.server, settings.cache
    if not cache.enabled:
        caching = "off"
    elif cache.mode == "exact-only":
        caching = "exact repeats only"
    else:
        guards = f"{len(cache.guards)} guards" if cache.guards else "no guards"
        caching = (
            f"exact repeats, and rewordings at similarity {cache.effective_threshold} with {guards}"
        )
    upstreams = ", ".join(f"{up.name} ({up.base_url})" for up in settings.upstream)
    return "\n".join(
        (
            f"headstart is ready on http://{server.host}:{port}  (Ctrl-C stops it)",
            f"  upstream  {upstreams}",
            f"  cache     {caching}; shared by {cache.scope}; store {masked_url(cache.store)}",
            "  learning  off (static policy in this version)",
            f"  admin     http://{server.host}:{port}/_headstart/stats",
        )
    )
