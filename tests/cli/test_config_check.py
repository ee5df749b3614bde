"""``headstart config check``: what it reports offline, and what it asks with ``--live``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from headstart.__main__ import main
from headstart.cli.config import ask_all, model_for
from headstart.config.checks import checked
from headstart.config.providers import model_table, providers
from headstart.lab.simulator import Simulator
from headstart.settings import RouteMatch, RouteSettings, Settings, UpstreamSettings
from support.repository import ROOT
from support.scripted import ScriptedUpstream, lifespan
from support.serving import serving
from support.simulated import simulated

if TYPE_CHECKING:
    from pathlib import Path

FILE = """
[[upstream]]
preset = "groq"
[[upstream]]
preset = "together"
[[upstream]]
name = "local"
base_url = "http://127.0.0.1:1/v1"
models = { "llama-3.3-70b" = "big" }
[[route]]
name = "fast"
match = { model = "llama-3.3-70b" }
strategy = "race"
race_billed = true
equal_models = "assume"
upstreams = ["groq", { strategy = "fallback", upstreams = ["together", "local"] }]
[[route]]
name = "exact"
semantic = false
"""


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for known in providers().values():
        if known.variable is not None:
            monkeypatch.delenv(known.variable, raising=False)


def check(*arguments: str) -> int | str | None:
    try:
        main(["config", "check", *arguments])
    except SystemExit as left:
        return left.code
    return 0


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "headstart.toml"
    path.write_text(FILE, encoding="utf-8")
    return str(path)


def test_check_shows_upstreams_routes_and_notes(
    file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GROQ_API_KEY", "sk-secret")
    monkeypatch.setenv("TOGETHER_API_KEY", "sk-secret")
    assert check("--config", file) == 0
    shown = capsys.readouterr().out
    rows = {line.split()[0]: line.split() for line in shown.splitlines() if line.strip()}
    assert rows["groq"][1:3] == ["openai,", "responses"]
    assert rows["groq"][3:5] == ["https://api.groq.com/openai/v1", "GROQ_API_KEY"]
    assert "race(groq, fallback(together, local))" in shown
    assert "local (big)" in shown
    assert rows["exact"][1:3] == ["by", "model"]
    assert "groq bills cancelled calls in full" in shown
    assert "together serves 'meta-llama/Llama-3.3-70B-Instruct-Turbo' quantised" in shown
    assert "no price is known of 'big' at local" in shown
    assert "sk-secret" not in shown
    assert shown.endswith("the configuration is valid\n")


def test_a_file_that_is_not_there_is_named_with_the_option(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert check("--config", "nope.toml") == 2
    told = capsys.readouterr().err
    assert "nope.toml: No such file or directory; name another file (--config)" in told


def test_a_folder_in_place_of_the_usual_file_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "headstart.toml").mkdir()  # as Docker mounts a file that is not there
    monkeypatch.chdir(tmp_path)
    assert check() == 2
    assert "headstart.toml: Is a directory; name another file" in capsys.readouterr().err


def test_a_default_price_holds_for_all_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "headstart.toml"
    price = "{ input_per_million = 1.0, output_per_million = 2.0 }"
    path.write_text(
        f"""[[upstream]]
name = "priced"
base_url = "http://127.0.0.1:9/v1"
price.default = {price}
[[upstream]]
name = "free"
base_url = "http://127.0.0.1:8/v1"
models = {{ "m" = "m" }}
price.m = {price}
""",
        encoding="utf-8",
    )
    assert check("--config", str(path)) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line]
    column = lines[0].index("priced")
    priced = {line[0]: line[column] for line in lines[1:3]}
    assert priced == {"priced": "all", "free": "1"}


def test_the_recipe_for_fewer_audits_is_valid_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "safe-hits.md").read_text("utf-8")
    recipe = page.partition("### Halve the cost of audits")[2]
    block = recipe.partition("```toml\n")[2].partition("```")[0]
    assert "null_rate" in block
    path = tmp_path / "headstart.toml"
    path.write_text(f"{block}[[upstream]]\npreset = 'openai'\n", encoding="utf-8")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    assert check("--config", str(path)) == 0, capsys.readouterr()


def test_every_key_that_is_not_set_is_a_problem(
    file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GROQ_API_KEY", "sk-secret")
    assert check("--config", file, "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert report["valid"] is False
    assert report["problems"] == [
        "upstream 'together': the variable TOGETHER_API_KEY (upstream.api_key_env) is not set"
    ]
    assert [each["keys"] for each in report["upstreams"]] == [
        {"GROQ_API_KEY": True},
        {"TOGETHER_API_KEY": False},
        {},
    ]
    assert report["routes"][0]["members"]["groq"] == "llama-3.3-70b-versatile"


def test_a_key_that_is_taken_for_a_name_is_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "headstart.toml"
    path.write_text("[[upstream]]\npreset = 'groq'\napi_key_env = 'gsk_Secret'", encoding="utf-8")
    assert check("--config", str(path)) == 1
    assert check("--config", str(path), "--json") == 1
    shown = "".join(capsys.readouterr())
    assert "upstream 'groq': the variable *** (upstream.api_key_env) is not set" in shown
    assert "Secret" not in shown


def test_settings_that_contradict_each_other_are_told_as_json_too(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "headstart.toml"
    path.write_text(FILE.replace("race_billed = true", ""), encoding="utf-8")
    assert check("--config", file, "--json") == 2
    captured = capsys.readouterr()
    [problem] = json.loads(captured.out)["problems"]
    assert problem.startswith("route[0].upstreams: 'groq' bills")
    assert problem in captured.err


def test_a_server_without_an_upstream_is_a_problem(capsys: pytest.CaptureFixture[str]) -> None:
    assert check() == 1
    shown = capsys.readouterr()
    assert shown.err.startswith("problem: no upstream: add an [[upstream]] with base_url")
    assert "valid" not in shown.out
    assert check("--json") == 1
    assert json.loads(capsys.readouterr().out)["valid"] is False
    assert check("--wrapped") == 0, "an app with the middleware needs none"
    assert check("--upstream", "http://127.0.0.1:1/v1") == 0


def test_the_providers_that_serve_would_find_are_checked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GROQ_API_KEY", "sk-secret")
    assert check() == 0
    shown = capsys.readouterr().out
    assert "found GROQ_API_KEY: groq at https://api.groq.com/openai/v1" in shown
    assert check("--json") == 0
    [upstream] = json.loads(capsys.readouterr().out)["upstreams"]
    assert upstream["keys"] == {"GROQ_API_KEY": True}


@pytest.mark.parametrize(
    ("fields", "route", "model"),
    [
        ({"preset": "groq"}, None, "llama-3.1-8b-instant"),
        ({"preset": "groq"}, "gpt-oss-20b", "openai/gpt-oss-20b"),
        ({"preset": "groq"}, "gpt-*", "llama-3.1-8b-instant"),
        ({"preset": "groq", "models": {"fast": "mine"}}, None, "mine"),
        ({"base_url": "http://127.0.0.1:1/v1", "name": "groq"}, None, None),
        ({"preset": "vllm"}, None, None),
        ({"preset": "vllm", "models": {"fast": "mine"}}, None, "mine"),
    ],
)
def test_the_model_asked_for_is_the_routes_the_users_or_the_cheapest(
    fields: dict[str, Any], route: str | None, model: str | None
) -> None:
    routes = (
        ()
        if route is None
        else (RouteSettings(name="r", match=RouteMatch(model=route), upstreams=("groq",)),)
    )
    settings = checked(Settings(upstream=(UpstreamSettings(**fields),), route=routes))
    assert model_for(settings.upstream[0], settings) == model


@pytest.mark.anyio
async def test_live_asks_each_upstream_once_and_names_what_fails() -> None:
    async with simulated(Simulator()) as url:
        settings = checked(
            Settings(
                upstream=(
                    UpstreamSettings(name="up", base_url=f"{url}/v1", models={"m": "sim"}),
                    UpstreamSettings(name="listed", base_url=f"{url}/v1"),
                    UpstreamSettings(name="down", base_url="http://127.0.0.1:9/v1"),
                )
            )
        )
        up, listed, down = await ask_all(settings)
    assert (up.upstream, up.model, up.error) == ("up", "sim", None)
    assert up.ttft_s is not None
    assert listed.model is not None, "the first that it lists"
    assert listed.error is None
    assert down.ttft_s is None
    assert down.error is not None
    assert down.error.startswith("unreachable: ")


@pytest.mark.anyio
async def test_live_tells_that_the_list_of_models_was_refused() -> None:
    upstream = ScriptedUpstream()
    upstream.status, upstream.body = 401, b'{"detail":"Unauthorized"}'
    async with serving(upstream) as url:
        own = UpstreamSettings(name="own", base_url=f"{url}/v1")
        (result,) = await ask_all(checked(Settings(upstream=(own,))))
    assert result.error is not None
    assert result.error.startswith("unauthorized: its list of models has status 401: ")


@pytest.mark.anyio
async def test_live_says_what_to_do_if_there_is_no_list_of_models() -> None:
    upstream = ScriptedUpstream()
    upstream.status, upstream.body = 501, b"<!DOCTYPE HTML>\n<html><p>Unsupported method</p></html>"
    async with serving(upstream) as url:
        own = UpstreamSettings(name="own", base_url=f"{url}/v1")
        (result,) = await ask_all(checked(Settings(upstream=(own,))))
    assert result.error == (
        "server-error: its list of models has status 501: an HTML page; "
        "is upstream.base_url right? Without a list, set a model in upstream.models"
    )


async def _lists_nothing(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        return await lifespan(receive, send)
    body = b'{"detail":"Not Found"}'
    if scope["path"] == "/v1/chat/completions":
        said = b'{"message":{"role":"assistant","content":"Hi"},"finish_reason":"length"}'
        body = b'{"model":"m","choices":[%b]}' % said
    headers = [(b"content-type", b"application/json")]
    status = 200 if b"choices" in body else 404
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
    return None


@pytest.mark.anyio
async def test_live_asks_a_proxy_without_a_list_for_a_model_of_its_preset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GROQ_API_KEY", "key")
    async with serving(_lists_nothing) as url:
        proxy = UpstreamSettings(preset="groq", base_url=f"{url}/v1")
        (result,) = await ask_all(checked(Settings(upstream=(proxy,))))
    assert (result.model, result.error) == (model_table().cheapest("groq"), None)


async def _embeds_alone(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        return await lifespan(receive, send)
    bodies = {
        "/v1/models": b'{"object":"list","data":[{"id":"embedder","object":"model"}]}',
        "/v1/embeddings": b'{"data":[{"index":0,"embedding":[0.5]}],"model":"embedder"}',
    }
    body = bodies.get(scope["path"])
    status = 404 if body is None else 200
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": body or b'{"detail":"Not Found"}'})
    return None


@pytest.mark.anyio
async def test_live_asks_a_server_that_cannot_chat_for_an_embedding() -> None:
    async with serving(_embeds_alone) as url:
        own = UpstreamSettings(name="own", base_url=f"{url}/v1")
        (result,) = await ask_all(checked(Settings(upstream=(own,))))
    assert (result.model, result.ttft_s, result.error) == ("embedder", None, None)


def test_check_says_where_the_list_of_models_comes_from(
    file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GROQ_API_KEY", "sk-secret")
    monkeypatch.setenv("TOGETHER_API_KEY", "sk-secret")
    check("--config", file)
    wanted = (
        "GET /v1/models: the names in routes and upstreams, and the lists of groq, together, local"
    )
    assert wanted in capsys.readouterr().out
    alone = tmp_path / "alone.toml"
    alone.write_text('[[upstream]]\nbase_url = "https://api.test/v1"\n', encoding="utf-8")
    check("--config", str(alone))
    assert "GET /v1/models: passes with the caller's key" in capsys.readouterr().out


def test_check_shows_the_address_of_the_region(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "sk-secret")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    file = tmp_path / "headstart.toml"
    file.write_text('[[upstream]]\npreset = "bedrock"\n', encoding="utf-8")
    check("--config", str(file))
    assert "https://bedrock-runtime.eu-west-1.amazonaws.com" in capsys.readouterr().out
