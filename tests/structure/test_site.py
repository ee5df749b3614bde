"""The documentation site: what ``scripts/site.py`` makes of the pages, and what it refuses."""

from __future__ import annotations

import ast
import html
import re
from pathlib import Path

import pytest

import headstart
from headstart.__main__ import FIRST, MORE
from scripts import demo_svg, site
from support.repository import PACKAGE, ROOT


@pytest.mark.parametrize(
    ("link", "page", "expected"),
    [
        ("[a](docs/safe-hits.md#limits)", "ARCHITECTURE.md", "[a](safe-hits.md#limits)"),
        ("[a](CHANGELOG.md)", "CONTRIBUTING.md", "[a](CHANGELOG.md)"),
        ("[a](../ARCHITECTURE.md#rooms)", "docs/output.md", "[a](ARCHITECTURE.md#rooms)"),
        ("[a](../encoder.md)", "docs/decisions/0004-x.md", "[a](../encoder.md)"),
        ("[a](../examples/fastapi_app.py)", "docs/output.md", "[a](examples.md#fastapi_apppy)"),
        ("[a](../pyproject.toml)", "docs/output.md", "a (`pyproject.toml`)"),
        ("[a](#limits)", "docs/output.md", "[a](#limits)"),
        ("[a](https://example.com/b.md)", "docs/output.md", "[a](https://example.com/b.md)"),
    ],
)
def test_a_link_of_the_repository_becomes_one_of_the_site(
    link: str, page: str, expected: str
) -> None:
    assert site.linked(link, Path(page)) == expected


def test_the_page_of_commands_has_the_help_of_each() -> None:
    text = site.commands()
    for name in (*FIRST, *MORE):
        assert f"## `headstart {name}`" in text
    assert "### `headstart config check`" in text
    assert "--upstream" in text


def test_the_page_of_examples_has_the_code_of_each() -> None:
    text, listed = site.examples(), (ROOT / "docs/examples.md").read_text("utf-8")
    for path in (ROOT / "examples").glob("*.py"):
        assert path.read_text("utf-8") in text
        assert f"](../examples/{path.name})" in listed


def test_every_decision_is_listed() -> None:
    found = re.findall(r"\]\((.+?)\)", site.decisions())
    assert found == sorted(path.name for path in (ROOT / "docs/decisions").glob("0*.md"))


def test_a_page_that_the_navigation_lacks_is_named() -> None:
    complete = (ROOT / "zensical.toml").read_text("utf-8")
    assert "tuning.md" in site.unlisted(complete.replace('"tuning.md",', ""))


def test_faults_of_built_pages_are_found(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/index.html").write_text("<h1 id='top'>A</h1><a href='../#there'>home</a>")
    (tmp_path / "index.html").write_text(
        "<h1 id='there'>Home</h1><a href='a/#top'></a><a href='https://example.com/'></a>"
        "<link rel='canonical' href='https://example.com/'><img src='data:image/png,'>"
        "<a href='a/#gone'></a><a href='b/'></a><img src='gone.svg'>"
        "<script src='https://example.com/x.js'></script>"
    )
    assert site.faults(tmp_path) == [
        "/index.html: no heading at a/#gone",
        "/index.html: no page at b/",
        "/index.html: no page at gone.svg",
        "/index.html loads https://example.com/x.js",
    ]


VALUE = r"""'[^']*'|"[^"]*"|…|\d+|\b[A-Z]+_[A-Z_]+\b|\b(?:groq|openai)\b|[][:;,()]"""
"""What may stand for a value in a message, and what may be at its edge."""


def _said_by_the_code() -> str:
    """Return all texts of the package, with a gap where a value stands in them."""
    texts = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                texts.append(
                    "".join(
                        str(part.value) if isinstance(part, ast.Constant) else "…"
                        for part in node.values
                    )
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return "\n".join(texts)


def test_the_messages_of_the_page_of_troubles_are_those_of_the_code() -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text("utf-8")
    chapters = [
        each
        for each in page.split("\n## ")
        if each.startswith(("It does not start", "Errors that", "Lines in"))
    ]
    rows = [row for chapter in chapters for row in chapter.splitlines() if re.match(r"\| .*`", row)]
    said, unknown = _said_by_the_code(), []
    for message in (each for row in rows for each in re.findall(r"`([^`]+)`", row.split(" | ")[0])):
        pieces = re.split(VALUE, message)
        unknown += [piece for piece in pieces if len(piece) >= 12 and piece.strip() not in said]
    assert len(rows) > 30
    assert not unknown


def test_the_picture_of_the_demo_ends_with_what_was_saved_and_loads_nothing() -> None:
    load = "\x1b[?25l131 hits\nsaved \x1b[1;36m3.3\x1b[0m min"
    drawn = demo_svg.picture(f"\x1b[1mFirst\x1b[0m asked\n\n{load}\n\nBy model\n")
    said = html.unescape(re.sub(r"<[^>]+>", "", drawn)).replace("\N{NO-BREAK SPACE}", " ")
    for line in ("$ make demo", "First asked", "131 hits", "saved 3.3 min"):
        assert line in said
    assert "By model" not in said
    assert "\x1b" not in drawn
    kept = (ROOT / "docs/demo.svg").read_text("utf-8")
    for picture in (drawn, kept):
        assert re.findall(r"https?://[^\"]+", picture) == ["http://www.w3.org/2000/svg"]
    assert len(kept) < 64 * 1024


def test_the_python_of_the_connect_pages_compiles_and_names_what_exists() -> None:
    pages = sorted((ROOT / "docs/connect").glob("*.md"))
    blocks = [
        (page.name, block)
        for page in pages
        for block in re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    ]
    assert len(pages) == 20
    assert len(blocks) > 10
    for name, block in blocks:
        tree = ast.parse(block, name)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == "headstart":
                assert {alias.name for alias in node.names} <= set(headstart.__all__), name
