"""Records ``headstart demo`` as a picture of a terminal: ``python -m scripts.demo_svg``.

It runs the demo, and draws what it printed, up to the savings, into ``docs/demo.svg``. The picture
has its own dark background, so it can be read on light and dark pages, and it loads no font.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

PICTURE = Path(__file__).resolve().parents[1] / "docs/demo.svg"
COLUMNS = 118
LAST = "saved "
"""The paragraph with a line that begins so is the last in the picture."""
_CURSOR = re.compile(r"\x1b\[\?25[lh]")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
FORMAT = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
    font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
    font-size: {char_height}px;
    line-height: {line_height}px;
}}
.{unique_id}-title {{ font-size: 18px; font-family: sans-serif }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def main() -> None:
    """Run the demo, which takes about 30 s, and write the picture."""
    environment = {
        **os.environ,
        "COLUMNS": str(COLUMNS),
        "FORCE_COLOR": "1",
        "TERM": "xterm-256color",
        "TTY_INTERACTIVE": "0",
    }
    done = subprocess.run(  # noqa: S603
        [Path(sys.executable).with_name("headstart"), "demo"],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    )
    PICTURE.write_text(picture(done.stdout), "utf-8")
    print(f"{PICTURE.name}: {PICTURE.stat().st_size / 1024:.0f} KiB")


def picture(output: str) -> str:
    """Return what the demo printed as an SVG."""
    text = _CURSOR.sub("", output)
    paragraphs = text.split("\n\n")
    last = next(
        index
        for index, each in enumerate(paragraphs)
        if any(line.startswith(LAST) for line in _COLOUR.sub("", each).splitlines())
    )
    shown = ["$ make demo", *paragraphs[: last + 1]]
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi("\n\n".join(shown)), soft_wrap=True)
    return console.export_svg(title="headstart demo", theme=DIMMED_MONOKAI, code_format=FORMAT)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
