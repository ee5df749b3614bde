"""The ``headstart`` command. Subcommands load when they run, so that ``--help`` is quick."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

import click

from headstart import __version__
from headstart.errors import ConfigError, HeadstartError

if TYPE_CHECKING:
    from collections.abc import Sequence

FIRST = {
    "serve": "Run the sidecar proxy.",
    "demo": "Watch it work: simulated providers, scripted traffic, savings.",
    "tune": "Learn from a log, and say what each error target would give.",
    "report": "Show what the cache saved.",
    "bench": "Measure providers with your own prompts, and recommend a route.",
}
MORE = {
    "simulate": "Run simulated providers on loopback.",
    "evaluate": "Judge the match policy on labelled pairs or a stream.",
    "replay": "Play a log against several match policies.",
    "audit": "Show what audits prove about the hits that were served.",
    "explain": "Say why a request was, or was not, answered from the cache.",
    "encoder": "Inspect the encoder, or export another model.",
    "config": "Check or show the configuration.",
}


class LazyGroup(click.Group):
    """A group whose commands are modules of this package, imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all command names, the everyday ones first."""
        return [*FIRST, *MORE]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command, or None for an unknown name."""
        if cmd_name not in FIRST and cmd_name not in MORE:
            return None
        command = getattr(import_module(f"headstart.cli.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command lists without importing any command."""
        for title, commands in (("Commands", FIRST), ("More commands", MORE)):
            with formatter.section(title):
                formatter.write_dl(list(commands.items()))


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="\b\nExample:\n  headstart demo\n  headstart serve --upstream https://api.openai.com/v1",
)
@click.version_option(__version__, prog_name="headstart")
def cli() -> None:
    """Make every LLM call faster and cheaper without making an answer worse."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line. Exits 0 on success, 2 on bad settings or usage, 1 on other errors."""
    try:
        cli.main(args=arguments, prog_name="headstart", standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except HeadstartError as error:
        click.echo(f"headstart: {error}", err=True)
        sys.exit(2 if isinstance(error, ConfigError) else 1)
