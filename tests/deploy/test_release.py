"""A release: equal builds of equal sources, a list of its components, and a wheel that runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, metadata
from typing import TYPE_CHECKING

import pytest
from cyclonedx.model.bom import Bom
from packageurl import PackageURL

import headstart
from scripts import release
from support.repository import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
NOON = 1_700_000_000

needs_git = pytest.mark.skipif(
    shutil.which("git") is None or not (ROOT / ".git").exists(), reason="no git checkout"
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return release.build(tmp_path_factory.mktemp("release"), NOON)


@needs_git
def test_two_builds_are_equal_byte_for_byte_whoever_makes_them(
    made: list[Path], tmp_path: Path
) -> None:
    """Another folder, another time, and other modes of files."""
    before = os.umask(0o077)
    try:
        again = release.build(tmp_path, NOON)
    finally:
        os.umask(before)
    assert [path.suffix for path in made] == [".whl", ".gz"]
    assert release.digests(made) == release.digests(again)


@needs_git
def test_the_list_of_components_has_every_locked_package_and_its_licence(made: list[Path]) -> None:
    document = json.loads(release.components(made, NOON))
    assert document["bomFormat"] == "CycloneDX"
    bom = Bom.from_json(document)  # type: ignore[attr-defined]
    packages = {
        (each.name, each.version) for each in bom.components if isinstance(each.purl, PackageURL)
    }
    lock = (ROOT / "requirements.txt").read_text("utf-8")
    locked = set(re.findall(r"^([\w.-]+)==([^\s;]+)", lock, re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert packages <= locked
    assert {name for name, _ in locked - packages} <= {
        "hatchling", "packaging", "pathspec", "pluggy", "trove-classifiers",
    }  # fmt: skip
    wanted = {re.split(r"[\[<>=;! ]", line)[0].lower() for line in project["dependencies"]}
    assert wanted <= {name for name, _ in packages}
    for each in bom.components:
        if not each.licenses:  # a package for other systems, which is not installed here
            with pytest.raises(PackageNotFoundError):
                metadata(each.name)
    assert {"all-MiniLM-L6-v2", "tiktoken-ranks"} <= {each.name for each in bom.components}


@needs_git
def test_the_list_of_components_is_equal_for_equal_files(made: list[Path]) -> None:
    assert release.components(made, NOON) == release.components(made, NOON)
    assert release.components(made, NOON) != release.components(made[:1], NOON)


def test_the_version_is_the_same_everywhere() -> None:
    assert release.version() == headstart.__version__


def python_of(version: str) -> str | None:
    """Return an interpreter of a version that is on this machine."""
    asked = subprocess.run(
        [sys.executable, "-m", "uv", "python", "find", "--no-python-downloads", version],
        check=False,
        capture_output=True,
        text=True,
    )
    return asked.stdout.strip() or None


@needs_git
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_the_wheel_runs_its_demo_in_a_clean_environment(
    version: str, made: list[Path], tmp_path: Path
) -> None:
    python = python_of(version)
    if python is None:
        pytest.skip(f"Python {version} is not on this machine")
    home, empty = tmp_path / "venv", tmp_path / "empty"
    empty.mkdir()
    uv = [sys.executable, "-m", "uv", "--quiet"]
    install = [*uv, "pip", "install", "--python", str(home / "bin" / "python")]
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for command in (
        [*uv, "venv", "--python", python, str(home)],
        [*install, "--require-hashes", "-r", str(ROOT / "requirements.txt")],
        [*install, "--no-deps", str(made[0])],
        [str(home / "bin" / "headstart"), "demo", "--requests", "5", "--speed", "50"],
    ):
        done = subprocess.run(
            command, cwd=empty, env=clean, check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert "Why requests were no hits" in done.stdout
