"""Builds the documentation site: ``python -m scripts.site [--serve]``, or ``make docs``.

The pages are the Markdown files of ``docs/`` and of the root, so that they can be read in the
repository as well. This program adds the pages that are made from other files (the help of the
commands, the code of the examples, the lists of benchmarks and decisions), lets Zensical build the
site, and then checks the built pages: each link and each anchor leads somewhere, and no page loads
anything from another host.
"""

from __future__ import annotations

import argparse
import ast
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urljoin, urlsplit

import click

from headstart.__main__ import FIRST, MORE, cli

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "build/docs"
SITE = ROOT / "build/site"
BENCHMARKS = ROOT / "benchmarks"
ROOT_PAGES = {"README.md": "index.md"} | {
    name: name for name in ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md")
}
"""Pages of the repository's root, and their names on the site."""
NOT_FOUND = "---\nsearch:\n  exclude: true\n---\n\n"
"""Head of a page that the search leaves out: what was decided or changed hides what holds."""
HELP_WIDTH = 80
"""Wider lines would be cut off beside the table of contents."""
LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml"}
_LINK = re.compile(r"\[([^]]*)\]\(([^)\s]+)\)")
_LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
_NOT_LOADED = ("canonical", "next", "prev", "alternate")
"""Kinds of <link> that name an address and load nothing."""


def write_sources() -> None:
    """Write what Zensical reads into ``build/docs``: all pages, with links that hold there."""
    shutil.rmtree(SOURCES, ignore_errors=True)
    shutil.copytree(ROOT / "docs", SOURCES)
    for path in SOURCES.rglob("*.md"):
        there = Path("docs") / path.relative_to(SOURCES)
        path.write_text(linked(path.read_text("utf-8"), there), "utf-8")
    for name, new in ROOT_PAGES.items():
        (SOURCES / new).write_text(linked((ROOT / name).read_text("utf-8"), Path(name)), "utf-8")
    for name, marker, made in (
        ("commands.md", "<!-- help -->", commands),
        ("examples.md", "<!-- code -->", examples),
        ("benchmarks.md", "<!-- programs -->", programs),
    ):
        path = SOURCES / name
        path.write_text(path.read_text("utf-8").replace(marker, made()), "utf-8")
    (SOURCES / "decisions/index.md").write_text(decisions(), "utf-8")
    for path in (SOURCES / "CHANGELOG.md", *(SOURCES / "decisions").glob("0*.md")):
        path.write_text(NOT_FOUND + path.read_text("utf-8"), "utf-8")


def linked(text: str, page: Path) -> str:
    """Return a page with the links that the site needs.

    ``page`` is its path in the repository. A link to an example leads to the page of the examples.
    A link to a file that is not a page of the site becomes the path of the file.
    """
    depth = len(page.parts) - 2 if page.parts[0] == "docs" else 0

    def replaced(found: re.Match[str]) -> str:
        label, target = found[1], found[2]
        if re.match(r"#|[a-z]+:", target):
            return found[0]
        path, _, anchor = target.partition("#")
        file = (ROOT / page.parent / path).resolve().relative_to(ROOT)
        if file.parts[0] == "examples":
            new = f"examples.md#{file.name.replace('.', '')}" if file.suffix else "examples.md"
        elif file.as_posix() == "docs/decisions":
            new = "decisions/index.md"
        elif file.parts[0] == "docs":
            new = file.relative_to("docs").as_posix() + (f"#{anchor}" if anchor else "")
        elif file.as_posix() in ROOT_PAGES:
            new = ROOT_PAGES[file.as_posix()] + (f"#{anchor}" if anchor else "")
        else:
            return f"{label} (`{file.as_posix()}`)"
        return f"[{label}]({'../' * depth}{new})"

    return _LINK.sub(replaced, text)


def commands() -> str:
    """Return a chapter for each command: what its ``--help`` prints."""
    parts: list[str] = []
    context = click.Context(cli, info_name="headstart")
    for name in (*FIRST, *MORE):
        command = cli.get_command(context, name)
        assert command is not None
        parts.extend(_help(command, context, name, 2))
    return "\n".join(parts)


def _help(command: click.Command, parent: click.Context, name: str, level: int) -> Iterator[str]:
    context = click.Context(
        command,
        info_name=name,
        parent=parent,
        terminal_width=HELP_WIDTH,
        max_content_width=HELP_WIDTH,
    )
    text = command.get_help(context)
    yield f"{'#' * level} `{context.command_path}`\n\n```text\n{text}\n```\n"
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            assert found is not None
            yield from _help(found, context, inner, level + 1)


def examples() -> str:
    """Return a chapter for each example: its code."""
    return "\n".join(
        f"## {path.name}\n\n```{LANGUAGES[path.suffix]}\n{path.read_text('utf-8')}```\n"
        for path in sorted((ROOT / "examples").iterdir())
        if path.suffix in LANGUAGES
    )


def programs() -> str:
    """Return a table of the benchmarks, with the first line of each docstring."""
    texts = [(path.stem, path.read_text("utf-8")) for path in sorted(BENCHMARKS.glob("*.py"))]
    rows = [
        (name, (ast.get_docstring(ast.parse(text)) or "").splitlines()[0].replace("``", "`"))
        for name, text in texts
        if "__main__" in text
    ]
    head = "| `python -m benchmarks.…` | what it measures |\n|---|---|\n"
    return head + "".join(f"| `{name}` | {line} |\n" for name, line in rows)


def decisions() -> str:
    """Return the list of the decision pages, with their titles."""
    rows = [
        f"- [{path.read_text('utf-8').splitlines()[0].removeprefix('# ')}]({path.name})"
        for path in sorted((ROOT / "docs/decisions").glob("[0-9]*.md"))
    ]
    return (
        "# Decisions\n\nEach page names a choice that somebody may want to undo later, with its "
        "reasons and its costs.\n\n" + "\n".join(rows) + "\n"
    )


class Page(HTMLParser):
    """What one built page points to: its anchors, its links and what it loads."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.anchors = {"", "__top"}
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note one tag."""
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in _LOADED and values.get("rel") not in _NOT_LOADED and _LOADED[tag] in values:
            self.loads.append(values[_LOADED[tag]])


def faults(site: Path) -> list[str]:
    """Return what is wrong with built pages: dead links, dead anchors, things of other hosts."""
    pages = {path: Page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        here = "/" + path.relative_to(site).as_posix()
        for link in (*page.links, *page.loads):
            address = urlsplit(urljoin(here, link))
            if address.scheme or address.netloc:
                if link in page.loads and address.scheme != "data":
                    found.append(f"{here} loads {link}")
                continue
            target = site / unquote(address.path).lstrip("/")
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                found.append(f"{here}: no page at {link}")
            elif target in pages and unquote(address.fragment) not in pages[target].anchors:
                found.append(f"{here}: no heading at {link}")
    return found


def unlisted(configuration: str) -> list[str]:
    """Return the pages of the repository that the navigation lacks. Decisions have a list."""
    nav = re.findall(r'"([\w./-]+\.md)"', configuration)
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    return sorted(page for page in pages - {*nav} if not page.startswith("decisions/"))


def build() -> None:
    """Build and check the site. Exits with 1 if a page has a fault."""
    write_sources()
    if missing := unlisted((ROOT / "zensical.toml").read_text("utf-8")):
        sys.exit(f"add to nav in zensical.toml: {', '.join(missing)}")
    shutil.rmtree(SITE, ignore_errors=True)
    zensical = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    done = subprocess.run(  # noqa: S603
        zensical, cwd=ROOT, check=False, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(done.stdout + done.stderr.partition("Traceback")[0])
    if wrong := faults(SITE):
        sys.exit("\n".join(wrong))
    print(f"{SITE.relative_to(ROOT)}/index.html")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", action="store_true", help="show the site on loopback")
    arguments = parser.parse_args()
    build()
    if arguments.serve:
        subprocess.run([sys.executable, "-m", "zensical", "serve"], cwd=ROOT, check=True)
