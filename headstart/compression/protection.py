"""What no transform may touch, judged from the calls made and the words asked.

Where it is not clear that a text may be shortened, it may not.
"""

from __future__ import annotations

import re

from headstart.compression.query import focus
from headstart.types import Frozen

_FILE_TOOL = re.compile(
    r"(?<!pro)file|(?<!cr)edit|(?<!dis)patch|notebook"
    r"|^(?:fs_)?(?:read|view|cat|open|write|replace|grep|glob)$",
    re.IGNORECASE,
)
_READING_TOOL = re.compile(
    r"(?:\b|_|(?<=[a-z])(?=[A-Z]))(?i:read|get|show|view|fetch|open|cat|type)(?![a-z])"
)
_PATH_ARGUMENT = re.compile(r'"(?:\w*path|file\w*|\w*_file)"\s*:\s*"', re.IGNORECASE)
_PATH = re.compile(r'"(?:(?:~|\.{1,2})?/|(?:[A-Za-z]:|\.{1,2})?\\\\|[A-Za-z]:/)[^"\s]')
_NOT_SHOWN = re.compile(
    r"https?://[^\s\"'\\]+"
    r"|\b(?:python[\d.]*|node|ruby|perl|php|bash|sh|pytest|go run|npx \w+)\s+(?:-\S{1,40}\s+){0,8}"
    r"[\w./\\-]+\.(?:py|[cm]?js|tsx?|rb|pl|php|sh|go)\b",
    re.IGNORECASE,
)
"""Addresses on the web, and programs that are run."""
_FILE_NAME = re.compile(
    r"file://|\b(?:Make|Docker|Gem|Rake|Pod|Proc|Vagrant|Jenkins)file\b"
    r"|(?:[\w-]\.(?:jsonc?|jsonl|json5|geojson|ndjson|ipynb|ya?ml|toml|ini|cfg|conf|config|properties"
    r"|lock|xml|xsl|xsd|html?|css|s[ac]ss|less|svg|csv|tsv|md|mdx|rst|adoc|txt|tex|bib|sql|pyi?"
    r"|[cm]?[jt]sx?|vue|svelte|astro|cc|cpp|cxx|hh|hpp|cs|csproj|sln|java|kts?|scala|swift|go"
    r"|mod|rs|rb|erb|php|p[lm]|lua|jl|dart|exs?|erl|hs|mli?|clj|sh|bash|zsh|fish|ps1|bat|cmd|gradle"
    r"|groovy|tf|tfvars|hcl|proto|graphql|gql|prisma|cmake|mk|patch|diff|pot?|strings|plist|resx|arb"
    r"|template|tmpl|j2|service)"
    r"|\w{2}\.[chmr]|\.(?:env|\w{1,20}rc|\w{1,20}ignore)"
    r"|(?:/|\\\\)[\w~.-]{1,80}\.(?!(?:log|out)\b)[a-z]\w*)\b(?!\.\w|\()",
    re.IGNORECASE,
)
"""Names of files that may be edited, by known extensions; by any, where a folder is named too.

Not any everywhere: ``public.users`` is a table, ``example.com`` a site.
"""
_SHELL = re.compile(
    r"bash|shell|exec|terminal|command|python|\b(?:run|code)\b|\"cmd\"", re.IGNORECASE
)
_SHOWS_FILE = re.compile(
    r"\b(?:cat|head|tail|sed|awk|less|more|nl|bat|tac|grep|rg|jq|git (?:diff|show|blame)|diff)\b"
    r"|\b(?i:get-content|gc|type)\s|\bopen\(|read_?(?i:text|file)",
)
_LOG_NAME = re.compile(r"\.(?:log|out)(?:\.\d+)?(?:$|[\s\"'\\|;&)])")
_CODE_LINE = re.compile(
    r"(?:(?:async\s+)?def\s|class\s+\w+\s*[(:{]|import\s+\w|from\s+\S+\s+import|#include\b|using\s"
    r"|package\s+\w|(?:pub(?:lic)?|private|protected|static|export|const|let|var|func|fn|function)\s"
    r"|return\b|(?:if|for|while|switch|elif|catch)\s*[(\w].*[:{]$|@@ |\+\+\+ |--- |diff --git"
    r"|</?[A-Z]\w*[\s/>]|[})\]]+[;,)]*$|\w[\w.\[\]]*\s*[-+*/|&]?=\s*\S|SELECT\s|INSERT\s|\d+(?:\t|:\s|\s*\|\s))"
    r"|.*[;{]$"
)
_MIN_CODE_LINES = 0.2

_QUESTION_CHARS = 2000

_VERBATIM = re.compile(
    r"\b(?:translat|rewrit|re-?write|rephras|paraphras|proof-?read|copy-?edit|refactor|reformat"
    r"|edit|convert|transcrib|redact|verbatim|word for word|quot(?:e|es|ation)\b|spell|grammar"
    r"|(?:exact|full|complete|whole|entire|original)"
    r" (?:text|copy|content|wording|file|document|log)|fix (?:the|this|these|my|all)\b"
    r"|diff\b|patch\b)",
    re.IGNORECASE,
)
_WHOLE = re.compile(
    r"\b(?:summar|overview|tl;?dr|outline|gist|main (?:points?|ideas?)|key (?:points?|takeaways)"
    r"|count(?:ing|s)?\b|number of|(?:list|name|find|show|give|extract|identify)\s(?:\w+\s){0,2}"
    r"(?:all|every|each)\b|every\b|each\b|compar|contrast|differ|overall|entire|whole|analy[sz]e"
    r"|review\b|classify|sentiment|how often)",
    re.IGNORECASE,
)
_COUNTS = re.compile(r"\bhow (?:many|much|often)\b|\bfrequen|\brate\b", re.IGNORECASE)
_MARKUP = re.compile(
    r"\b(?:html|markup|tags?|attributes?|selectors?|xpath|css|dom|href|hyperlinks?|links?|urls?"
    r"|scripts?|source code|class names?|elements?|buttons?)\b",
    re.IGNORECASE,
)


class Asked(Frozen):
    """What a text stands in the prompt for."""

    question: str = ""
    """The end of the user's own words of this turn."""
    call: str = ""
    """Arguments of the tool call that the text answers."""
    verbatim: bool = False
    """Every word counts: the text is to be edited, translated or quoted."""
    whole: bool = False
    """No part answers alone: a summary, a comparison, a list of all."""
    counts: bool = False
    """Repetition itself is asked about."""
    markup: bool = False
    """HTML is asked about as HTML."""

    @property
    def words(self) -> str:
        """All that may name an id."""
        return f"{self.question}\n{self.call[-_QUESTION_CHARS:]}"

    @property
    def topic(self) -> str:
        """What the text should tell about."""
        return f"{focus(self.question)}\n{self.call[-_QUESTION_CHARS:]}"


def understand(words: str) -> Asked:
    """Read off the user's own words which losses an answer could not bear."""
    whole = _WHOLE.search(words) is not None
    return Asked(
        question=words[-_QUESTION_CHARS:],
        verbatim=_VERBATIM.search(words) is not None,
        whole=whole,
        counts=whole or _COUNTS.search(words) is not None,
        markup=_MARKUP.search(words) is not None,
    )


def shows_file(name: str, arguments: str) -> bool:
    """May the result of this call be a file that is edited later, where each byte counts?

    A log is read, not edited.
    """
    named = _NOT_SHOWN.sub(" ", arguments)
    if _FILE_NAME.search(named):
        return True
    if _LOG_NAME.search(arguments):
        return False
    if _FILE_TOOL.search(name) or _PATH_ARGUMENT.search(arguments):
        return True
    if _READING_TOOL.search(name) and _PATH.search(named):
        return True
    is_shell = _SHELL.search(f"{name} {arguments}") is not None
    return is_shell and _SHOWS_FILE.search(arguments) is not None


def is_code(text: str) -> bool:
    """Does ``text`` hold code, a patch or a numbered listing?"""
    if "```" in text or "~~~" in text:
        return True
    lines = [line for raw in text.split("\n") if (line := raw.strip())]
    return sum(_CODE_LINE.match(line) is not None for line in lines) > _MIN_CODE_LINES * len(lines)
