"""``headstart explain`` asks a running sidecar why a request was a hit or a miss."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest
from rich.console import Console

from headstart.__main__ import main
from headstart.cli.explain import print_explained
from headstart.decisions import Rule, UnlabelledPair, Verdict
from headstart.middleware.learning.hit_decisions import explain as explain_pair
from headstart.policies.learned_rule.domain import Domain
from headstart.policies.learned_rule.error_limit import ErrorLimit, Trust
from headstart.policies.learned_rule.features import NAMES, pack_features
from support.administered import CHATGPT, NEGATED, REWORDED
from support.booked import served
from support.fakes import make_entry
from support.remote import Remote, remote

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def sidecar() -> Iterator[Remote]:
    with remote() as running:
        yield running


@pytest.fixture(scope="module")
def stored(sidecar: Remote) -> str:
    return sidecar.ask_first(CHATGPT)


@pytest.fixture(scope="module")
def vetoed(sidecar: Remote, stored: str) -> str:
    return sidecar.ask(NEGATED)


def explain(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    main(["explain", *arguments])
    return capsys.readouterr().out


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, object]:
    with pytest.raises(SystemExit) as left:
        main(["explain", *arguments])
    return capsys.readouterr().err, left.value.code


def test_a_hit_names_its_neighbour_and_what_each_feature_gave(
    sidecar: Remote, stored: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = explain(capsys, sidecar.ask(REWORDED), "--url", sidecar.url)
    assert shown.startswith("semantic, status 200, model m")
    assert f"neighbour {stored}" in shown
    assert f"the answer was that of entry {stored}" in shown
    assert re.search(r"saved     the call for this answer: [1-9]\d* tokens.*, \d+ ms", shown)
    assert "rule      cold start" in shown
    assert "may answer: similarity 0.968 ≥ threshold" in shown
    assert "reversed by a threshold above 0.968" in shown
    assert "will decide when enough is learned" in shown
    assert "similarity        " in shown
    assert CHATGPT not in shown


def test_an_exact_repeat_needs_no_judgement(
    sidecar: Remote, stored: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = explain(capsys, sidecar.ask(CHATGPT), "--url", sidecar.url)
    assert shown.startswith("exact, status 200")
    assert f"the answer was that of entry {stored}" in shown
    assert "judged" not in shown


def test_a_miss_names_the_guard_and_what_would_flip_it(
    sidecar: Remote, vetoed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = explain(capsys, vetoed, "--url", sidecar.url + "/")
    assert shown.startswith("miss (veto), status 200")
    assert re.search(r"tokens    \d+ of the prompt, \d+ of the answer", shown)
    assert "saved " not in shown
    assert "refused by the guard negation" in shown
    assert "reversed by the guard 'negation' switched off" in shown
    assert "negation            " in shown


def test_the_contributions_shown_sum_up_to_the_score(
    sidecar: Remote, stored: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = explain(capsys, sidecar.ask(REWORDED), "--url", sidecar.url)
    table = shown.partition("The score")[2].partition("Its learning domain")[0].splitlines()[1:]
    *shares, score = [float(line[20:27]) for line in table if line]
    assert sum(shares) == pytest.approx(score, abs=0.1)


def test_a_request_without_a_neighbour_says_so(
    sidecar: Remote, stored: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = explain(capsys, stored, "--url", sidecar.url)
    assert "miss (empty-partition)" in shown
    assert "No neighbour was judged" in shown


def test_two_callers_are_told_by_the_scopes_of_their_requests(
    sidecar: Remote, stored: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def scope_of(request: str) -> str:
        shown = explain(capsys, request, "--url", sidecar.url)
        [line] = re.findall(r"^caller    scope ([0-9a-f]{8})$", shown, re.MULTILINE)
        return str(line)

    elsewhere = sidecar.ask(CHATGPT, key="another")
    assert scope_of(sidecar.ask(CHATGPT)) == scope_of(stored)
    assert scope_of(elsewhere) != scope_of(stored)
    assert "miss (empty-partition)" in explain(capsys, elsewhere, "--url", sidecar.url)


def test_the_name_of_a_callers_key_is_shown_beside_its_scope() -> None:
    shown = io.StringIO()
    row = msgspec.structs.replace(served(), scope="0123456789abcdef", caller="[ann]")
    print_explained(Console(file=shown, width=200), row, None)
    assert "caller    scope 01234567, key [ann]\n" in shown.getvalue()


def test_json_is_what_the_server_answers(
    sidecar: Remote, vetoed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = json.loads(explain(capsys, vetoed, "--url", sidecar.url, "--json"))
    assert (found["id"], found["verdict"]["veto"]) == (vetoed, "negation")


def test_an_unknown_request_is_an_error(
    sidecar: Remote, capsys: pytest.CaptureFixture[str]
) -> None:
    error, code = refusal(capsys, "no?thing", "--url", sidecar.url)
    assert "no request with this id" in error
    assert code == 1


def test_a_server_that_is_not_there_is_an_error(
    free_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    error, code = refusal(capsys, "x", "--url", f"http://127.0.0.1:{free_port}")
    assert f"127.0.0.1:{free_port} does not answer: Connection refused; " in error
    assert "--url names another" in error
    assert code == 1
    for url in ("nonsense", "localhost:8080", "http://"):
        error, code = refusal(capsys, "x", "--url", url)
        assert f"'{url}' must start with http:// or https:// and name a host" in error
        assert code == 2


def test_the_address_is_that_of_the_configuration(
    sidecar: Remote,
    vetoed: str,
    free_port: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    port = sidecar.url.rpartition(":")[2]
    # Only the server knows the key, and only the server minds what it does not understand.
    rest = 'client_keys = ["env:NOT_SET_HERE"]\nunknown = 1\n'
    usual, other = Path("headstart.toml"), Path("other.toml")
    usual.write_text(f'[server]\nhost = "0.0.0.0"\nport = {port}\n{rest}', "utf-8")
    other.write_text(f"[server]\nport = {free_port}\n", "utf-8")
    assert explain(capsys, vetoed).startswith("miss (veto), status 200")
    error, _ = refusal(capsys, vetoed, "--config", str(other))
    assert f"http://127.0.0.1:{free_port} does not answer" in error
    monkeypatch.setenv("HEADSTART_SERVER__PORT", port)
    assert explain(capsys, vetoed, "--config", str(other)).startswith("miss (veto)")
    monkeypatch.delenv("HEADSTART_SERVER__PORT")
    other.write_text("[server]\nport = 70000\n", "utf-8")
    assert refusal(capsys, vetoed, "--config", str(other))[1] == 2
    other.write_text("[server]\nport =\n", "utf-8")
    assert "other.toml" in refusal(capsys, vetoed, "--config", str(other))[0]


def test_a_stream_that_broke_off_names_the_error_beside_its_status() -> None:
    shown = io.StringIO()
    broken = served(total_s=0.5, error="upstream_timeout")
    print_explained(Console(file=shown, width=200), broken, None)
    assert "miss, status 200 (upstream_timeout), model m, 500.0 ms" in shown.getvalue()


def test_an_answer_that_is_not_stored_says_why() -> None:
    shown = io.StringIO()
    row = served(not_stored="set-cookie")
    print_explained(Console(file=shown, width=200), row, None)
    assert "the answer is not stored: set-cookie" in shown.getvalue()


@pytest.mark.parametrize(
    ("reason", "similarity", "said"),
    [
        ("below-threshold", 0.5, "no stored prompt is similar enough (the nearest has 0.5000)."),
        ("unknown-words", None, "the encoder does not know a word or a character of the question."),
        ("live", None, "its answer changes within minutes, so only exact repeats are served."),
        ("tool-results", None, "the reason is tool-results."),
    ],
)
def test_a_miss_that_no_rule_judged_has_its_reason_in_words(
    reason: str, similarity: float | None, said: str
) -> None:
    row = served(reason=reason, similarity=similarity)
    shown = io.StringIO()
    print_explained(Console(file=shown, width=200), row, None)
    assert f"No neighbour was judged by the learned rule: {said}" in shown.getvalue()


def test_a_question_that_was_not_compared_tells_why_nothing_is_served() -> None:
    row = msgspec.structs.replace(served(reason="veto"), veto="unqualified")
    shown = io.StringIO()
    print_explained(Console(file=shown, width=200), row, None)
    assert ": the learned rule has no threshold here that keeps max_error." in shown.getvalue()


def test_a_doubtful_pair_of_the_cold_start_was_refused_for_its_score() -> None:
    domain = Domain(ErrorLimit())
    verdict = Verdict(
        serves=False,
        similarity=0.95,
        veto="doubtful",
        rule=Rule.COLD_START,
        score=0.7,
        threshold=0.94,
        features=pack_features(np.ones(len(NAMES))),
    )
    pair = UnlabelledPair(domain="d", entry=make_entry("e"), verdict=verdict)
    found = explain_pair(pair, domain)
    raised = msgspec.structs.replace(found.domain, trust=Trust.RAISED)
    shown = io.StringIO()
    print_explained(
        Console(file=shown, width=200),
        served(reason="veto"),
        msgspec.structs.replace(found, domain=raised),
    )
    assert "refused: many near misses had other answers here" in shown.getvalue()
    assert "(0.70 at the request), log-odds that one answer does for both; it was too low" in (
        shown.getvalue()
    )
    assert "threshold was raised, and a hit needs a good score, too." in shown.getvalue()


def test_explain_lists_the_upstreams_that_were_asked(
    sidecar: Remote, vetoed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = explain(capsys, vetoed, "--url", sidecar.url)
    [asked] = [line for line in shown.splitlines() if line.startswith("asked ")]
    assert ", first: won, " in asked


def test_the_token_is_read_from_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SERVER_TOKEN", "secret")
    with remote(token_env="SERVER_TOKEN", token="secret") as guarded:
        id = guarded.ask_first(CHATGPT)
        monkeypatch.delenv("HEADSTART_ADMIN_TOKEN", raising=False)
        error, code = refusal(capsys, id, "--url", guarded.url)
        assert "put it in the variable HEADSTART_ADMIN_TOKEN" in error
        assert code == 2
        asked = (id, "--url", guarded.url, "--token-env", "SERVER_TOKEN")
        assert "empty-partition" in explain(capsys, *asked)
        config = tmp_path / "headstart.toml"
        config.write_text('[server]\nadmin_token_env = "SERVER_TOKEN"\n', "utf-8")
        asked = (id, "--url", guarded.url, "--config", str(config))
        assert "empty-partition" in explain(capsys, *asked)
        monkeypatch.setenv("HEADSTART_ADMIN_TOKEN", "secret")
        assert "empty-partition" in explain(capsys, id, "--url", guarded.url)
        monkeypatch.setenv("HEADSTART_ADMIN_TOKEN", "wrong")
        error, code = refusal(capsys, id, "--url", guarded.url)
        assert "does not accept the admin token in the variable HEADSTART_ADMIN_TOKEN" in error
        assert code == 2
