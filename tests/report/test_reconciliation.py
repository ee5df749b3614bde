"""Our books beside exports of OpenAI and Anthropic: made-up rows in the columns that they have."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headstart.attempts import Attempt, AttemptOutcome, AttemptRole
from headstart.decisions import Outcome
from headstart.errors import ConfigError
from headstart.report.reconciliation import Books, ExportRow, plain_model, read_usage
from support.booked import served

DAY, AT = "2026-08-05", 1_785_931_200.0
"""Noon in UTC."""
DAY_BEGINS = 1_785_888_000

ANTHROPIC_TOKENS = f"""\
\ufeffusage_date_utc,model_version,api_key,workspace,usage_type,context_window,\
usage_input_tokens_no_cache,usage_input_tokens_cache_write_5m,usage_input_tokens_cache_write_1h,\
usage_input_tokens_cache_read,usage_output_tokens,web_search_count,inference_geo,speed
{DAY},claude-sonnet-4-20250514,key,Default,standard,≤ 200k,1000,20,3,400,50,0,not_available,
"""
ANTHROPIC_COSTS = f"""\
usage_date_utc,model,workspace,api_key,usage_type,context_window,token_type,cost_usd,list_price_usd,\
cost_type,inference_geo,speed
{DAY},Claude Sonnet 4,Default,key,message,≤ 200k,input_no_cache,0.05,0.05,token,,
{DAY},Claude Sonnet 4,Default,key,message,≤ 200k,output,0.02,0.02,token,,
"""
OPENAI_TOKENS = f"""\
start_time,end_time,start_time_iso,end_time_iso,project_id,num_model_requests,user_id,api_key_id,\
model,batch,service_tier,input_tokens,output_tokens,input_cached_tokens
{DAY_BEGINS},{DAY_BEGINS + 60},{DAY}T00:00:00+00:00,{DAY}T00:01:00+00:00,p,2,u,k,\
gpt-4o-2024-08-06,False,default,1423,50,400
{DAY_BEGINS + 60},{DAY_BEGINS + 120},{DAY}T00:01:00+00:00,{DAY}T00:02:00+00:00,,,,,,,,,,
"""
OPENAI_COSTS = f"""\
start_time,end_time,start_time_iso,end_time_iso,amount_value,amount_currency,line_item,project_id
{DAY_BEGINS},{DAY_BEGINS + 86400},{DAY}T00:00:00+00:00,,0.05,usd,"gpt-4o-2024-08-06, input",p
{DAY_BEGINS},{DAY_BEGINS + 86400},{DAY}T00:00:00+00:00,,0.02,usd,"gpt-4o-2024-08-06, output",p
"""


def page(result: dict[str, Any], **bucket: Any) -> dict[str, Any]:
    return {"object": "page", "data": [{**bucket, "results": [result]}], "has_more": False}


OPENAI_PAGE = page(
    {
        "object": "organization.usage.completions.result", "model": "gpt-4o-2024-08-06",
        "input_tokens": 1423, "input_cached_tokens": 400, "output_tokens": 50,
        "num_model_requests": 2, "project_id": None,
    },
    object="bucket", start_time=DAY_BEGINS, end_time=DAY_BEGINS + 86400,
)  # fmt: skip
OPENAI_COST_PAGE = page(
    {
        "object": "organization.costs.result", "line_item": "gpt-4o-2024-08-06, input",
        "amount": {"value": 0.07, "currency": "usd"},
    },
    start_time=DAY_BEGINS,
)  # fmt: skip
ANTHROPIC_PAGE = page(
    {
        "model": "claude-sonnet-4-20250514", "uncached_input_tokens": 1000,
        "cache_creation": {"ephemeral_5m_input_tokens": 20, "ephemeral_1h_input_tokens": 3},
        "cache_read_input_tokens": 400, "output_tokens": 50,
    },
    starting_at=f"{DAY}T00:00:00Z", ending_at="2026-08-06T00:00:00Z",
)  # fmt: skip
ANTHROPIC_COST_PAGE = page(
    {"model": "claude-sonnet-4-20250514", "amount": "7.0", "currency": "USD"},
    starting_at=f"{DAY}T00:00:00Z",
)
SONNET = "claude-sonnet-4-20250514"
GPT = "gpt-4o-2024-08-06"


@pytest.mark.parametrize(
    ("export", "rows"),
    [
        (ANTHROPIC_TOKENS, [ExportRow(DAY, SONNET, None, 1423, 50)]),
        (
            ANTHROPIC_COSTS,
            [
                ExportRow(DAY, "Claude Sonnet 4", usd=0.05),
                ExportRow(DAY, "Claude Sonnet 4", usd=0.02),
            ],
        ),
        (OPENAI_TOKENS, [ExportRow(DAY, GPT, 2, 1423, 50)]),
        (OPENAI_COSTS, [ExportRow(DAY, GPT, usd=0.05), ExportRow(DAY, GPT, usd=0.02)]),
        (json.dumps(OPENAI_PAGE), [ExportRow(DAY, GPT, 2, 1423, 50)]),
        (json.dumps([OPENAI_PAGE, OPENAI_PAGE]), [ExportRow(DAY, GPT, 2, 1423, 50)] * 2),
        (json.dumps(OPENAI_COST_PAGE), [ExportRow(DAY, GPT, usd=0.07)]),
        (json.dumps(ANTHROPIC_PAGE), [ExportRow(DAY, SONNET, None, 1423, 50)]),
        (json.dumps(ANTHROPIC_COST_PAGE), [ExportRow(DAY, SONNET, usd=0.07)]),
    ],
    ids=["a-csv", "a-cost-csv", "o-csv", "o-cost-csv", "o", "o-pages", "o-cost", "a", "a-cost"],
)
def test_exports_of_consoles_and_usage_apis_are_read(export: str, rows: list[ExportRow]) -> None:
    found = read_usage(export.encode())
    assert [each._replace(usd=None) for each in found] == [each._replace(usd=None) for each in rows]
    assert [each.usd for each in found] == pytest.approx([each.usd for each in rows])


@pytest.mark.parametrize(
    ("export", "message"),
    [
        ("day,tokens\n1,2\n", "cost_usd.*Its columns are day, tokens"),
        ("start_time,input_tokens\n1,2\n", "not grouped by model"),
        (json.dumps({"error": "no"}), 'a list "data"'),
        (json.dumps({**OPENAI_PAGE, "has_more": True}), "more pages follow"),
        (json.dumps(page({"input_tokens": 1, "model": None}, start_time=1)), "group_by"),
        (json.dumps(page({"model": "m", "input_tokens": 1}, start_time=1)), "output_tokens"),
        (json.dumps(page({"model": "m"}, start_time=[])), "not valid"),
        ("[1", "not valid"),
        (OPENAI_TOKENS.replace("1423", "many"), "many"),
        ("", "Its columns are none"),
        (OPENAI_TOKENS.splitlines()[0], "no rows: export a period that has calls"),
        ('{"data": [], "has_more": false}', "no rows"),
        ("[]", "no rows"),
        (OPENAI_TOKENS.rpartition(",")[0], r"line \d+ has not as many fields as the first line"),
        ('{"data": [{"start_time": 1', "its end is missing"),
    ],
)
def test_another_file_is_refused_with_the_reason(export: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_usage(export.encode())


def test_a_spreadsheet_is_refused_with_what_to_export() -> None:
    with pytest.raises(ConfigError, match="export it as CSV or JSON"):
        read_usage(b"PK\x03\x04\xff")


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("gpt-4o-2024-08-06", "gpt-4o"),
        ("openai/gpt-4o", "gpt-4o"),
        ("claude-sonnet-4-20250514", "claude-sonnet-4"),
        ("Claude Haiku 4.5", "claude-haiku-4-5"),
        ("claude-haiku-4-5", "claude-haiku-4-5"),
        ("gpt-4.1-mini", "gpt-4-1-mini"),
    ],
)
def test_models_are_known_by_their_common_name(name: str, plain: str) -> None:
    assert plain_model(name) == plain


def attempt(**changes: Any) -> Attempt:
    values: dict[str, Any] = {
        "upstream": "openai", "model": "gpt-4o", "role": AttemptRole.FIRST,
        "outcome": AttemptOutcome.WON, "at": AT, "total_s": 1.0, "prompt_tokens": 700,
        "completion_tokens": 25, "cost_usd": 0.035, **changes,
    }  # fmt: skip
    return Attempt(**values)


def books_of(*attempts: Attempt, at: float = AT) -> Books:
    books = Books()
    books.add(served(at=at, attempts=attempts))
    return books


def test_equal_books_agree_within_one_per_cent() -> None:
    found = books_of(attempt(), attempt(prompt_tokens=720)).reconcile(
        read_usage(OPENAI_TOKENS.encode())
    )
    (line,) = found.lines
    assert (line.day, line.model, line.differs) == (DAY, "gpt-4o", ())
    assert (found.ours.prompt_tokens, found.theirs.prompt_tokens) == (1420, 1423)
    assert (found.ours.calls, found.theirs.calls) == (2, 2)
    assert (found.ours.usd, found.theirs.usd) == (None, None), "this export tells no cost"


def test_a_difference_is_named_by_day_model_and_number() -> None:
    books = books_of(attempt(), attempt(completion_tokens=1, estimated=True))
    (line,) = books.reconcile(read_usage(OPENAI_TOKENS.encode())).lines
    assert line.differs == ("prompt_tokens", "completion_tokens")
    assert line.estimated == 1


def test_costs_are_compared_where_the_export_tells_them() -> None:
    found = books_of(attempt(), attempt(cost_usd=0.1)).reconcile(read_usage(OPENAI_COSTS.encode()))
    (line,) = found.lines
    assert line.differs == ("usd",)
    assert found.ours.usd == pytest.approx(0.135)
    assert found.theirs.usd == pytest.approx(0.07)
    assert found.theirs.prompt_tokens is None


def test_usage_that_only_one_side_has_is_a_line() -> None:
    books = books_of(attempt(model="gpt-4o-mini"), attempt(upstream="groq", model="llama"))
    books.add(served(at=AT, attempts=(attempt(),)))
    export = [
        ExportRow(DAY, "gpt-4o", 1, 700, 25),
        ExportRow(DAY, "o3", 4, 10, 10),
        ExportRow("2026-08-04", "o3", 4, 10, 10),
    ]
    found = books.reconcile(export)
    assert [(line.model, line.differs) for line in found.lines] == [
        ("gpt-4o", ()),
        ("gpt-4o-mini", ("calls", "prompt_tokens", "completion_tokens")),
        ("o3", ("calls", "prompt_tokens", "completion_tokens")),
    ]
    assert found.days_before_the_books == 1


def test_calls_that_failed_are_not_on_the_bill_and_audits_are() -> None:
    failed = attempt(
        outcome=AttemptOutcome.FAILED, prompt_tokens=0, completion_tokens=0, cost_usd=0
    )
    books = books_of(failed, attempt(outcome=AttemptOutcome.LOST))
    books.add(served(Outcome.AUDIT, at=AT, attempts=(attempt(),)))
    found = books.reconcile([ExportRow(DAY, "gpt-4o", 2, 1400, 50)])
    assert found.lines[0].differs == ()


def test_a_relayed_request_is_no_usage() -> None:
    """It may be a list of files, and its tokens are not read."""
    books = books_of(attempt())
    relayed = attempt(model="files", prompt_tokens=0, completion_tokens=0, cost_usd=None)
    books.add(served(Outcome.RELAY, at=AT, endpoint="/v1/files", attempts=(relayed,)))
    (line,) = books.reconcile([ExportRow(DAY, "gpt-4o", 1, 700, 25)]).lines
    assert (line.model, line.differs) == ("gpt-4o", ())


@pytest.mark.parametrize(
    "export",
    [
        OPENAI_COSTS.replace(",usd,", ",eur,"),
        json.dumps(OPENAI_COST_PAGE).replace('"usd"', '"eur"'),
        json.dumps(ANTHROPIC_COST_PAGE).replace('"USD"', '"EUR"'),
    ],
)
def test_amounts_in_another_currency_are_refused(export: str) -> None:
    with pytest.raises(ConfigError, match="in EUR, and the books are in dollars"):
        read_usage(export.encode())


def test_the_calls_of_a_judge_count() -> None:
    books = books_of(attempt())
    judge = served(
        Outcome.AUDIT, at=AT, reason="judge", model="gpt-4o", upstream="openai",
        prompt_tokens=30, completion_tokens=5, cost_usd=0.001,
    )  # fmt: skip
    books.add(judge)
    assert books.reconcile([ExportRow(DAY, "gpt-4o", 2, 730, 30)]).lines[0].differs == ()
