"""ARCHITECTURE.md tells the truth: its files exist, and the path of a request can be imported."""

from __future__ import annotations

import importlib
import re
from operator import attrgetter

import pytest

from support.repository import PACKAGE, ROOT

TEXT = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
MOST_WORDS = 30
FOLDERS = [PACKAGE, *(path for path in PACKAGE.rglob("*") if path.is_dir()), ROOT]


def section(title: str) -> str:
    """Return the text below a heading."""
    (text,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE)
    return str(text)


PATH = re.findall(
    r"^\| \d+ \| `(.+?)` \| `(.+?)` \|", section("The path of a request"), re.MULTILINE
)
"""File and function of each step."""


@pytest.mark.parametrize(("file", "function"), PATH)
def test_step_of_the_path_exists(file: str, function: str) -> None:
    module = importlib.import_module("headstart." + file.removesuffix(".py").replace("/", "."))
    assert callable(attrgetter(function)(module))


def test_path_is_whole() -> None:
    assert len(PATH) == len(re.findall(r"^\| \d+ \|", TEXT, re.MULTILINE)) > 20


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([\w/.]+\.(?:py|toml))`", TEXT))))
def test_named_file_exists(name: str) -> None:
    assert any((folder / name).is_file() for folder in FOLDERS)


def test_glossary_is_short_and_in_order() -> None:
    words = re.findall(r"^\| ([a-z ]+) \|", section("Glossary"), re.MULTILINE)[
        1:
    ]  # without the heading
    assert words == sorted(words)
    assert len(words) <= MOST_WORDS
