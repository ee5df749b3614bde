from __future__ import annotations

import importlib.util
import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from headstart.__main__ import main
from headstart.cli.encoder import encoder
from headstart.embeddings.encoder import OnnxEncoder

if TYPE_CHECKING:
    from pathlib import Path

EXTRA_MISSING = importlib.util.find_spec("sentence_transformers") is None


def test_info_describes_the_default_encoder() -> None:
    result = CliRunner().invoke(encoder, ["info", "--json"])
    report = json.loads(result.stdout)
    assert result.exit_code == 0
    assert report["namespace"] == OnnxEncoder().namespace
    assert report["dimension"] == 384
    assert report["bytes"] < 30_000_000


def test_info_prints_one_field_a_line() -> None:
    result = CliRunner().invoke(encoder, ["info"])
    assert ["name", "all-MiniLM-L6-v2"] in [line.split() for line in result.stdout.splitlines()]


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, object]:
    with pytest.raises(SystemExit) as left:
        main(["encoder", *arguments])
    return capsys.readouterr().err, left.value.code


def test_info_on_a_folder_without_a_model_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error, code = refusal(capsys, "info", str(tmp_path))
    assert code == 2
    assert error.startswith("headstart: encoder.model: no readable model.json")


@pytest.mark.skipif(not EXTRA_MISSING, reason="the extra `export` is installed")
def test_export_without_the_extra_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error, code = refusal(capsys, "export", "a-model", "--output", str(tmp_path / "out"))
    assert code == 1
    assert "headstart[export]" in error


def test_export_into_a_folder_in_use_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    error, code = refusal(capsys, "export", "a-model", "--output", str(tmp_path))
    assert code
    assert "not an empty folder" in error


@pytest.mark.parametrize("command", ["export", "info"])
def test_help_shows_an_example(command: str) -> None:
    result = CliRunner().invoke(encoder, [command, "--help"])
    assert result.exit_code == 0
    assert f"headstart encoder {command}" in result.stdout
