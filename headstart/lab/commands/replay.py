"""``headstart replay``: one log, several match policies, side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console

from headstart.cli.options import (
    OLD_FILE,
    argument,
    command,
    config_field,
    json_field,
    option,
    print_json,
)
from headstart.lab.commands import playing
from headstart.lab.rates import Ordering, ordering_report
from headstart.lab.stream import POLICIES, PolicySetup, policy_maker
from headstart.policies.learned_rule.error_limit import JudgeNoise

if TYPE_CHECKING:
    import re
    from pathlib import Path


COMPARED = ("off", "static:0.90", "verified")
"""The policies that are compared if none is named."""


@dataclass(frozen=True)
class ReplayOptions:
    """The options of ``headstart replay``."""

    paths: tuple[Path, ...] = argument("LOG.jsonl...", OLD_FILE, nargs=-1, required=True)
    policy: tuple[str, ...] = option(COMPARED, f"{POLICIES}; may be given again.", multiple=True)
    state: Path | None = option(None, playing.STATE_HELP, OLD_FILE)
    query: re.Pattern[str] | None = option(
        None, playing.QUERY_HELP, metavar="REGEX", callback=playing.question_pattern
    )
    config: Path | None = config_field()
    as_json: bool = json_field()


@command(ReplayOptions)
def replay(options: ReplayOptions) -> None:
    """Play a log, labelled pairs or a labelled stream against several policies.

    Each policy gets the prompts in their order, and starts with an empty cache. docs/tuning.md
    tells which logs can be read, and which hits count as wrong.

    Examples:
      headstart replay log.jsonl
      headstart replay log.jsonl --policy bare:0.9 --policy static:0.9 --policy verified:1% --json
    """
    snapshot = options.state.read_bytes() if options.state else None
    for name in options.policy:
        policy_maker(name, PolicySetup(guards=True, noise=JudgeNoise(), state=snapshot))()
    source = playing.read_replay_input(options.paths, options.query, options.config)
    setup = PolicySetup(guards=True, noise=source.noise, state=snapshot)
    found = {
        name: ordering_report(playing.play_all(source, policy_maker(name, setup)(), name), None)
        for name in options.policy
    }
    if options.as_json:
        print_json({"policies": found, "skipped": source.skipped})
    else:
        _print(found)


def _print(found: dict[str, Ordering]) -> None:
    rows = ((name, [f"{rates.hits:,}"], rates) for name, rates in found.items())
    Console().print(playing.comparison("policy", rows, "served"))
