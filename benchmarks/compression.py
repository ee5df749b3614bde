"""Measure compression: kept evidence, saved tokens, and the effect on the prefix cache.

    python -m benchmarks.compression DATA [evidence|types|cache|fuzz ...] [--headroom PYTHON]
                                     [--conversations N] [--json]

``DATA`` holds the folders nq_oracle, hotpot100, taubench, loghub, htmlarticles, and optionally
qmsum and covidqa. ``--headroom`` is the interpreter of an environment with headroom-ai.
Times are CPU time.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import compression_cache, compression_evidence, compression_types
from benchmarks.agent_sessions import coding
from benchmarks.compression_fuzz import MODES, failures
from headstart.compression.tokens import load


def evidence(args: argparse.Namespace) -> dict[str, Any]:
    """Share of evidence kept at fixed ratios, and by the selection as it is shipped."""
    out: dict[str, Any] = {}
    for name, cases in (
        ("NQ-20", list(compression_evidence.nq20(args.data))),
        ("HotpotQA", list(compression_evidence.hotpot(args.data))),
    ):
        for method in compression_evidence.METHODS:
            kept, ms = compression_evidence.survival(cases, method)
            shares = {f"{ratio}x": round(share, 3) for ratio, share in kept.items()}
            out[f"{name}, {method}"] = shares | {"ms per 1k": round(ms, 2)}
        shipped = compression_evidence.as_shipped(cases)
        out[f"{name}, as shipped"] = {key: round(value, 3) for key, value in shipped.items()}
        asked = compression_evidence.recovered(cases)
        out[f"{name}, recoverable"] = {key: round(value, 3) for key, value in asked.items()}
    if (args.data / "qmsum").is_dir():
        found = compression_evidence.of_meetings(args.data)
        out["QMSum, as shipped"] = {key: round(value, 3) for key, value in found.items()}
    if (args.data / "covidqa").is_dir():
        found = compression_evidence.of_articles(args.data)
        out["COVID-QA, as shipped"] = {key: round(value, 3) for key, value in found.items()}
    return out


def types(args: argparse.Namespace) -> dict[str, Any]:
    """Saved tokens by kind of content, compared with headroom-ai if it is installed."""
    out: dict[str, Any] = {}
    for kind, texts in compression_types.payloads(args.data).items():
        rows = {mode: compression_types.ours(texts, mode) for mode in ("safe", "balanced")}
        if args.headroom:
            with tempfile.TemporaryDirectory() as scratch:
                cases = list(map(compression_types.conversation, texts))
                sent = compression_types.headrooms(cases, args.headroom, Path(scratch))
            rows["headroom"] = sent
        for who, sent in rows.items():
            row = compression_types.row(texts, sent)
            out[f"{kind}, {who}"] = {key: round(value, 3) for key, value in row.items()}
    recall = compression_types.article_recall(args.data)
    out["HTML pages, words of the article kept"] = {"balanced": round(recall, 3)}
    return out


def cache(args: argparse.Namespace) -> dict[str, Any]:
    """Tokens, hit rate and cost of a warm prefix cache, by policy."""
    out: dict[str, Any] = {}
    for name, transcripts in (
        ("short", compression_cache.sessions(args.data, 1)),
        ("long", compression_cache.sessions(args.data, 8)),
        ("coding", list(coding(40))),
        ("coding, a fifth of the reads again", list(coding(40, returns=0.2))),
    ):
        base = list(compression_cache.bills(transcripts, compression_cache.POLICIES["none"]))
        for policy, apply in compression_cache.POLICIES.items():
            found = list(compression_cache.bills(transcripts, apply))
            tokens = sum(bill.tokens for bill in found)
            dearer = sum(
                bill.exact_cost > none.exact_cost for bill, none in zip(found, base, strict=True)
            )
            cost = sum(bill.cost for bill in found) / sum(none.cost for none in base) - 1
            out[f"{name}, {policy}"] = {
                "tokens": round(tokens / sum(none.tokens for none in base) - 1, 3),
                "hit rate": round(sum(bill.cached for bill in found) / tokens, 3),
                "cost": round(cost, 3),
                "dearer sessions": dearer,
            }
            edits, standing = compression_cache.standing(transcripts, apply)
            if edits:
                out[f"{name}, {policy}"]["edits"] = edits
                out[f"{name}, {policy}"]["whose text stands"] = standing
    return out


def fuzz(args: argparse.Namespace) -> dict[str, Any]:
    """Random conversations, each in every mode: how many, and what failed."""
    with ProcessPoolExecutor() as pool:
        found = pool.map(try_conversation, range(args.conversations), chunksize=50)
        failed = [failure for failures_of_one in found for failure in failures_of_one]
    return {"conversations": args.conversations, "failures": len(failed), "first": failed[:10]}


def try_conversation(seed: int) -> list[str]:
    """Return what fails in the conversation of this seed."""
    return [f"seed {seed}, {mode}: {what}" for mode in MODES for what in failures(seed, mode)]


PARTS = {"evidence": evidence, "types": types, "cache": cache, "fuzz": fuzz}


def main() -> None:
    """Run the named parts, or all."""
    parser = argparse.ArgumentParser(description="measure compression")
    parser.add_argument("data", type=Path)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="default: all of them")
    parser.add_argument("--headroom", type=Path)
    parser.add_argument("--conversations", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    for model in ("gpt-4o", "gpt-4"):
        load(model)
    results = {}
    for part in args.parts or PARTS:
        results[part] = PARTS[part](args)
        if not args.json:
            print(part)
            for name, row in results[part].items():
                print(f"  {name:45} {row}", flush=True)
    if args.json:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
