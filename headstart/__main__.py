"""The ``headstart`` command. Subcommands load when they run, so that ``--help`` is quick."""

from __future__ import annotations

import os
from importlib import import_module

signal: Any = import_module("_signal")  # unlike ``signal``, it loads nothing more


def _end_at_once(number: int, _: object) -> None:
    os._exit(128 + number)


FIRST_PROCESS = os.getpid() == 1
"""In a container. Such a process ignores a signal for which it has no handler."""


def _handle(number: int, handler: Any) -> None:
    try:
        signal.signal(number, handler)
    except ValueError:  # another thread than the first sets no handlers
        return


class Loading:
    """Lets Ctrl-C end the process at once, without a traceback, while libraries load.

    A KeyboardInterrupt would leave them half loaded. Handlers of others stay.
    """

    def __enter__(self) -> None:
        self._usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self._usual:
            _handle(signal.SIGINT, _end_at_once if FIRST_PROCESS else signal.SIG_DFL)

    def __exit__(self, *_: object) -> None:
        if self._usual:
            _handle(signal.SIGINT, signal.default_int_handler)


if FIRST_PROCESS and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
    _handle(signal.SIGTERM, _end_at_once)  # until the server has handlers of its own
with Loading():
    import atexit
    import errno
    import io
    import sys
    from difflib import get_close_matches
    from pathlib import Path
    from typing import TYPE_CHECKING

    import click

    from headstart import __version__
    from headstart.errors import ConfigError, HeadstartError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

FIRST = {
    "serve": "Run the sidecar proxy.",
    "demo": "Show the savings with simulated providers and scripted traffic.",
    "tune": "Learn from a log, and show the hits that each error target gives.",
    "report": "Show the savings: hits, times, tokens and money.",
    "wrap": "Run a coding agent against a sidecar, and show the savings.",
    "batch": "Answer a file of requests, as fast as the providers allow.",
    "bench": "Measure providers with your own prompts, and recommend a route.",
}
MORE = {
    "watch": "Measure providers on a schedule, and report when one becomes worse.",
    "simulate": "Run simulated providers on loopback.",
    "evaluate": "Count the wrong hits of a match policy on labelled prompts.",
    "replay": "Compare several match policies on a log.",
    "audit": "Show the share of wrong hits that audits have measured.",
    "cache": "Count, export, import, delete and prepare stored answers.",
    "reload": "Make a running server read its configuration again.",
    "explain": "Show why a request was, or was not, a hit.",
    "encoder": "Inspect the encoder, or export another model.",
    "config": "Check or show the configuration.",
    "doctor": "Check a deployment, and say what to fix.",
    "prices": "Import the prices of models from a public list.",
}
OF_LAB = {"demo", "tune", "bench", "watch", "simulate", "evaluate", "replay"}
"""Commands in ``headstart/lab/commands``. An installation may leave out that folder."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The errors of a full disk."""
_TOO_MANY = (errno.EMFILE, errno.ENFILE)
"""The errors of a process, or a system, that may open no more files."""
ONE_THREAD = "OPENBLAS_NUM_THREADS", "1"
"""For numpy, which reads it when it loads. With more threads, a product of two small matrices waits
for all of them: on busy cores 45 ms instead of 0.1 ms, and each of them spins."""
LAB = Path(__file__).parent / "lab" / "commands"


class LazyGroup(click.Group):
    """A group of commands. The module of a command is imported when the command runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands that are installed, the everyday ones first."""
        has_lab = LAB.is_dir()
        return [name for name in (*FIRST, *MORE) if has_lab or name not in OF_LAB]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command, or None for an unknown name.

        Raises UsageError for a command of the laboratory where the laboratory is not installed.
        """
        if cmd_name not in FIRST and cmd_name not in MORE:
            return None
        if cmd_name in OF_LAB and not LAB.is_dir():
            raise click.UsageError(
                f"{cmd_name!r} is a command of Headstart's laboratory, and this installation lacks "
                f"the laboratory's folder, {LAB.parent}. Reinstall the complete package, for "
                "example with: pip install --force-reinstall headstart"
            )
        if cmd_name != "wrap":  # the wrapped tool, which gets our environment, may want threads
            os.environ.setdefault(*ONE_THREAD)
        room = "lab.commands" if cmd_name in OF_LAB else "cli"
        with Loading():
            command = getattr(import_module(f"headstart.{room}.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of ``args``. Raises UsageError that names the nearest command."""
        known = self.list_commands(ctx)
        if args[0] not in (*FIRST, *MORE) and (near := get_close_matches(args[0], known, 1)):
            ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command lists without importing any command."""
        installed = self.list_commands(ctx)
        for title, commands in (("Commands", FIRST), ("More commands", MORE)):
            with formatter.section(title):
                formatter.write_dl(
                    [(name, help) for name, help in commands.items() if name in installed]
                )


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="\b\nExamples:\n  headstart demo\n  headstart serve --upstream https://api.openai.com/v1",
)
@click.version_option(__version__, prog_name="headstart")
def cli() -> None:
    """Make LLM calls faster and cheaper, with a cache in front of one or several providers."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line. Exits 0 on success, 2 on bad settings or usage, 1 on other errors."""
    _replace_closed_streams()
    atexit.register(_end_output)
    if sys.platform == "win32":
        _write_utf_8()
    try:
        cli.main(args=arguments, prog_name="headstart", standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt):
        from headstart.cli.options import end

        end(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except HeadstartError as error:
        click.echo(f"headstart: {error}", err=True)
        sys.exit(2 if isinstance(error, ConfigError) else 1)
    except OSError as error:
        if error.errno in _TOO_MANY:
            told = f"{error.strerror}: raise the limit (ulimit -n, LimitNOFILE of a unit)"
        elif error.errno in _FULL:
            told = f"{error.filename or 'the output'}: {error.strerror}"  # the output has no name
        else:
            raise
        click.echo(f"headstart: {told}", err=True)
        sys.exit(1)


def _replace_closed_streams() -> None:
    """Open the null device for each standard stream that is closed.

    Libraries expect them to be there. A closed one would also leave its number to the next file or
    socket, and what a library prints would go there.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 - it stays open


def _end_output() -> None:
    """Write what is left of standard output. If that fails, the exit code stays what it is.

    Python tries again when it ends, and would then exit with the code 120.
    """
    if sys.stdout.closed:
        return
    try:
        sys.stdout.flush()
    except OSError:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _write_utf_8() -> None:
    """Write UTF-8 to a file or a pipe, as to a terminal and as on other systems.

    Python 3.15 does so. Before, it takes the code page of Windows, which lacks most characters.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and "PYTHONIOENCODING" not in os.environ:
            stream.reconfigure(encoding="utf-8")


if __name__ == "__main__":
    main()
