"""``headstart explain``: why a request was, or was not, a hit, and which upstreams it asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

import anyio
import click
import msgspec
from rich.console import Console
from rich.markup import escape

from headstart.cli import data_sources
from headstart.cli.options import (
    argument,
    command,
    config_field,
    json_field,
    token_field,
    url_field,
)
from headstart.middleware.learning.hit_decisions import Explained, Explanation
from headstart.observe import Served
from headstart.policies.match import FEEDBACK

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from headstart.attempts import Attempt
    from headstart.policies.learned_rule.domain import DomainStatus

RULES = {
    "cold-start": "cold start: too little was learned, so all guards and a high similarity decide",
    "learned": "learned: the score decides, by the labels of this learning domain",
    "same-words": "same words: the prompts differ only in courtesy, punctuation and capitals",
    "static": "static: all guards and a fixed similarity decide",
}
TRUST = {
    "strict": "These are too few to decide, so only near repeats are served.",
    "full": "So the cold-start threshold holds.",
    "raised": "So the cold-start threshold was raised, and a hit needs a good score, too.",
    "none": "These are too many, so only the same words are matched before enough was learned.",
}
"""A sentence on the result of the near misses of a cold start."""
LEAST_SHOWN = 0.05
"""Smaller contributions are summed up."""
SCOPE_DIGITS = 8
"""The shown digits of a scope. The admin API finds it by them."""


@dataclass(frozen=True)
class ExplainOptions:
    """The options of ``headstart explain``."""

    request_id: str = argument("REQUEST_ID", click.STRING)
    url: str | None = url_field()
    config: Path | None = config_field()
    as_json: bool = json_field()
    token_env: str | None = token_field()


@command(ExplainOptions)
def explain(options: ExplainOptions) -> None:
    """Show why one request was, or was not, a hit, and which upstreams answered it.

    The command lists each upstream call with its role, outcome, times and cost. Then it shows the
    judged neighbour, the contribution of each feature, and the change that would have reversed
    the decision.

    REQUEST_ID is the x-headstart-request-id of the answer. A server remembers its last 1,000
    requests without their texts.

    Examples:
      headstart explain 01K5ZV0Q7N3J8M4T2R9XWB6CDE
      headstart explain 01K5ZV0Q7N3J8M4T2R9XWB6CDE --url http://127.0.0.1:8080 --json
    """
    path = f"explain/{quote(options.request_id, safe='')}"
    server = data_sources.running_server(options.url, options.token_env, options.config)
    body = anyio.run(server.ask, path)
    if options.as_json:
        click.echo(msgspec.json.format(body).decode())
        return
    verdict = data_sources.decode_answer(body, Explained).verdict
    served = data_sources.decode_answer(body, Served)
    print_explained(Console(highlight=False, soft_wrap=True), served, verdict)


def print_explained(console: Console, served: Served, verdict: Explanation | None) -> None:
    """Print what happened to one request."""
    _print_outcome(console, served)
    relayed = served.outcome == "relay"
    _print_attempts(console, served.attempts, priced=not relayed)
    if relayed:
        console.print(
            f"{escape(served.endpoint)} is not cached: {served.bytes_up:,} bytes went up, "
            f"{served.bytes_down:,} came down"
        )
    elif verdict is not None:
        console.print(f"neighbour {verdict.neighbor}, similarity {verdict.similarity:.4f}")
        console.print(f"rule      {RULES[verdict.rule]}")
        console.print(f"verdict   {_decision(verdict)}")
        console.print(f"reversed by {verdict.flips}")
        _print_contributions(console, verdict)
        _print_domain(console, verdict.domain)
    elif served.veto == FEEDBACK:
        console.print(
            "A person called this entry, or an answer to this question, wrong. "
            "Feedback with correct: true for the same request lifts this veto."
        )
    elif served.outcome != "exact":  # an exact repeat needs no judgement
        console.print(_why_unjudged(served))


def _print_outcome(console: Console, served: Served) -> None:
    """Print how a request was answered, with which entry, and what that cost or saved."""
    reason = f" ({served.reason})" if served.reason else ""
    model = f", model {escape(served.model)}" if served.model else ""
    # A stream may break off after its status was sent.
    error = f" ({escape(served.error)})" if served.error else ""
    console.print(
        f"[bold]{served.outcome}[/]{reason}, status {served.status}{error}{model}, "
        f"{1000 * served.total_s:.1f} ms"
    )
    if served.scope:
        key = f", key {escape(served.caller)}" if served.caller else ""
        console.print(f"caller    scope {served.scope[:SCOPE_DIGITS]}{key}")
    if served.audit_of:
        console.print(f"our own call, to check an answer: headstart explain {served.audit_of}")
    if served.not_stored:
        console.print(f"the answer is not stored: {escape(served.not_stored)}")
    if served.entry:
        role = "would have been" if served.holdout else "was"
        console.print(f"the answer {role} that of entry {served.entry}")
    if served.outcome.is_hit:
        _print_saved(console, served)
    elif served.prompt_tokens or served.completion_tokens:
        estimated = " (estimated)" if served.estimated else ""
        console.print(
            f"tokens    {served.prompt_tokens:,} of the prompt, "
            f"{served.completion_tokens:,} of the answer{estimated}"
        )


def _print_saved(console: Console, served: Served) -> None:
    """Print the time and cost of the original call, which the hit saved."""
    usd = "" if served.saved_usd is None else f", ${served.saved_usd:.6f}"
    taken_s = served.saved_total_s + served.total_s - served.read_s
    first = ""
    if served.saved_ttft_s is not None and served.ttft_s is not None:
        first = (
            f", first token {1000 * (served.saved_ttft_s + served.ttft_s - served.read_s):.0f} ms"
        )
    console.print(
        f"saved     the call for this answer: {served.saved_tokens:,} tokens{usd}{first}, "
        f"{1000 * taken_s:.0f} ms"
    )


_UNJUDGED = {
    "below-threshold": "no stored prompt is similar enough",
    "empty-partition": "no stored prompt of this scope is comparable",
    "live": "its answer changes within minutes, so only exact repeats are served",
    "personal": "the question is about its author, so only exact repeats are served",
    "too-long": "the question is longer than the encoder reads",
    "unknown-words": "the encoder does not know a word or a character of the question",
    "encoder-busy": "the encoder was busy, so the two were not compared",
}
"""Why the learned rule did not judge a neighbour, by the reason of the miss."""


def _why_unjudged(served: Served) -> str:
    """Say in words why the learned rule judged no neighbour."""
    unjudged = "No neighbour was judged by the learned rule"
    if served.reason is None:
        return f"{unjudged}."
    why = _REFUSED.get(served.veto or "")
    why = why or _UNJUDGED.get(served.reason, f"the reason is {served.reason}")
    near = "" if served.similarity is None else f" (the nearest has {served.similarity:.4f})"
    return f"{unjudged}: {why}{near}."


def _print_attempts(console: Console, attempts: Sequence[Attempt], *, priced: bool) -> None:
    """Print one line for each upstream call that the request caused, ``priced`` with its cost."""
    for each in attempts:
        ttft = "" if each.ttft_s is None else f", first token {1000 * each.ttft_s:.0f} ms"
        cost = ", no price is known" if each.cost_usd is None else f", ${each.cost_usd:.6f}"
        cost = cost if priced else ""
        why = ": ".join(filter(None, (each.error, each.reason)))
        error = f" ({escape(why)})" if why else ""
        console.print(
            f"asked     {escape(each.upstream)}, {each.role}: {each.outcome}{error}{ttft}, "
            f"{1000 * each.total_s:.0f} ms{cost}"
        )
    unpriced = [(a.upstream, a.model) for a in attempts if priced and a.cost_usd is None]
    for name, model in dict.fromkeys(unpriced):
        console.print(
            f"unpriced  {escape(model)} at {escape(name)}: its cost is not booked, and a route "
            "with cheapest asks it last; set upstream.price"
        )


_REFUSED = {
    "unqualified": "the learned rule has no threshold here that keeps max_error",
    "unlearned": "only the same words are matched here before enough was learned",
    "doubtful": "many near misses had other answers here, and the score is too low for that",
    "alarm": "audits raised the alarm; nothing is served until it has learned again",
}


def _decision(verdict: Explanation) -> str:
    if verdict.qualified:
        return f"may answer: {_comparison(verdict)}"
    if verdict.veto == "threshold":
        return f"refused: {_comparison(verdict)}"
    why = _REFUSED.get(verdict.veto or "")
    return (
        f"refused: {why}" if why else f"refused by the guard {verdict.veto}; {_comparison(verdict)}"
    )


def _comparison(verdict: Explanation) -> str:
    learned = verdict.rule == "learned"
    reached = verdict.score if learned else verdict.similarity
    name = "score" if learned else "similarity"
    if reached is None:
        return f"no {name}"
    if verdict.threshold is None:
        return f"{name} {reached:.3f}, and no threshold qualifies"
    sign = "≥" if reached >= verdict.threshold else "<"
    return f"{name} {reached:.3f} {sign} threshold {verdict.threshold:.3f}"


def _print_contributions(console: Console, verdict: Explanation) -> None:
    if verdict.score_now is None:
        return
    shown = {
        name: share for name, share in verdict.contributions.items() if abs(share) >= LEAST_SHOWN
    }
    shown["all others"] = verdict.score_now - sum(shown.values())
    then = "" if verdict.score is None else f" ({verdict.score:.2f} at the request)"
    role = "it will decide when enough is learned"
    if verdict.veto == "doubtful":
        role = "it was too low"
    if verdict.rule == "same-words":
        role = "the same words decide"
    if verdict.rule == "learned":
        role = "it decides" if verdict.threshold is not None else "none was enough"
    console.print(f"\nThe score{then}, log-odds that one answer does for both; {role}:")
    widest = max(map(abs, shown.values())) or 1.0
    for name, share in shown.items():
        bar = "█" * max(1, round(20 * abs(share) / widest))
        colour = "green" if share > 0 else "red"
        console.print(f"  {name:<18}{share:+7.2f}  [{colour}]{bar}[/]")
    console.print(f"  {'score now':<18}{verdict.score_now:+7.2f}")


def _print_domain(console: Console, status: DomainStatus) -> None:
    threshold = "nothing qualifies" if status.threshold is None else f"{status.threshold:.3f}"
    if status.rule == "cold-start" and status.threshold is None:
        threshold = "none before enough was learned"
    if status.alarm:
        threshold = "none, by the alarm"
    console.print(
        f"\nIts learning domain now: {status.rule}, threshold {threshold}; "
        f"labels: {status.labels:,} ({status.unsure:,} unsure), "
        f"audits: {status.audits:,} ({status.audits_wrong:,} wrong), alarms: {status.alarms:,}"
    )
    if status.rule == "cold-start":
        console.print(
            f"Near misses compared: {status.near_misses:,}, of which "
            f"{status.near_misses_different:,} had another answer. {TRUST[status.trust]}"
        )
    if status.same_words:
        console.print("Prompts with the same words are served here, whatever their score.")
    if status.serves < status.cold_start_serves:
        console.print(
            f"It serves {status.serves:.0%} of such candidates, less than the cold start's "
            f"{status.cold_start_serves:.0%}: its labels showed too many wrong for max_error."
        )
