"""The texts that no transform may touch, and the documents in a user's message.

The calls and the user's words decide. In doubt a text may not be shortened.
"""

from __future__ import annotations

import re

from headstart.compression.passages import has_mark
from headstart.compression.selection import focus
from headstart.types import Frozen

_TAG_LINE = re.compile(
    r"^[ \t]*<(/?)(documents?|docs?|contexts?|passages?|sources?|search_results?|results?|chunks?"
    r"|articles?|retrieved\w*)(?:[ \t][^<>\n]*)?>[ \t]*(?:\n|\Z)",
    re.MULTILINE | re.IGNORECASE,
)
_NUMBERED = re.compile(
    r"^(?:Document|Passage|Source)[ \t]?\[\d+\](?:[ \t]?\(Title: [^\n]*?\))?[ \t:]*\n?(?=\S)",
    re.MULTILINE | re.IGNORECASE,
)
_HEADING = re.compile(
    r"^(?:#+[ \t]*)?(?:(?:retrieved[ \t])?(?:context|documents?|passages?|sources|search results)"
    r"(?:[ \t]information)?:[ \t]*\n|((?:user )?question|query)[ \t]*:)",
    re.MULTILINE | re.IGNORECASE,
)


class DocumentSpan(Frozen):
    """A part of a text, from ``start`` up to ``end``."""

    start: int
    end: int


def find_documents(text: str) -> list[DocumentSpan]:
    """Return the documents that an application put into a user's text, in order.

    Only explicit borders count: a tag on a line of its own, a numbered line ``Document [1]``, or a
    heading such as ``Context:`` that ends at ``Question:``. All other text is the user's own. White
    space around a document is not part of it, so a border stays on a line of its own.
    """
    places: list[DocumentSpan] = []
    for place in sorted(
        [*_tagged(text), *_headed(text), *_numbered(text)],
        key=lambda place: (place.start, -place.end),
    ):
        if not places or place.start >= places[-1].end:
            body = text[place.start : place.end]
            start = place.start + len(body) - len(body.lstrip())
            places.append(DocumentSpan(start=start, end=start + len(body.strip())))
    return places


def _tagged(text: str) -> list[DocumentSpan]:
    """Return the texts between a tag and its closing tag; nested tags belong to the outer one."""
    places = []
    opened, start, depth = "", 0, 0
    for tag in _TAG_LINE.finditer(text):
        closes, name = tag[1] == "/", tag[2].lower()
        if not depth and not closes:
            opened, start, depth = name, tag.end(), 1
        elif name == opened:
            depth += -1 if closes else 1
            if not depth:
                places.append(DocumentSpan(start=start, end=tag.start()))
                opened = ""
    return places


def _headed(text: str) -> list[DocumentSpan]:
    """Return the texts from a heading to the question that follows it."""
    places = []
    start = None
    for heading in _HEADING.finditer(text):
        if heading[1] is None:
            start = heading.end() if start is None else start
        elif start is not None:
            places.append(DocumentSpan(start=start, end=heading.start()))
            start = None
    return places


def _numbered(text: str) -> list[DocumentSpan]:
    """Return the text from the first numbered line to the end of the last one.

    A single numbered line may be a coincidence. It counts only in a text that has a mark.
    """
    heads = list(_NUMBERED.finditer(text))
    if len(heads) < (1 if has_mark(text) else 2):
        return []
    end = text.find("\n", heads[-1].end())
    return [DocumentSpan(start=heads[0].start(), end=len(text) if end < 0 else end)]


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
"""Web addresses, and programs that a command runs."""
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
"""Names of files that may be edited: with a known extension, or with any extension after a folder.

Without a folder an unknown extension does not count: ``public.users`` is a table, ``example.com`` a
site.
"""
_SHELL = re.compile(
    r"bash|shell|exec|terminal|command|python|\b(?:run|code)\b|\"cmd\"", re.IGNORECASE
)
_SHOWS_FILE = re.compile(
    r"\b(?:cat|head|tail|sed|awk|less|more|nl|bat|tac|grep|rg|jq|git (?:diff|show|blame)|diff)\b"
    r"|\b(?i:get-content|gc|type)\s|\bopen\(|read_?(?i:text|file)"
)
_LOG_NAME = re.compile(r"\.(?:log|out)(?:\.\d+)?(?:$|[\s\"'\\|;&)])")
_CODE_LINE = re.compile(
    r"(?:(?:async\s+)?def\s|class\s+\w+\s*[(:{]|import\s+\w|from\s+\S+\s+import|#include\b|using\s"
    r"|package\s+\w|(?:pub(?:lic)?|private|protected|static|export|const|let|var|func|fn|function)\s"
    r"|return\b|(?:if|for|while|switch|elif|catch)\s*[(\w].*[:{]$|@@ |\+\+\+ |--- |diff --git"
    r"|</?[A-Z]\w*[\s/>]|[})\]]+[;,)]*$|\w[\w.\[\]]*\s*[-+*/|&]?=\s*\S|SELECT\s|INSERT\s|\d+(?:\t|:\s|\u2192|\s*[|\u2502]))"
    r"|.*[;{]$"
    # shells, Ruby, Haskell, Prolog, COBOL, assemblers
    r"|#!/|(?:fi|done|esac|then|else|do|end|begin|where)$|(?:if|elif|while|until)\s+!?\s*\[+\s"
    r"|(?:echo|export|local|source|sudo|set|unset|require|puts|print|include|attr_\w+)\s+[-$\"':/~]"
    r"|(?:case|for)\s.*\s(?:in|do)\b|\S+\)\s.*;;$|.*<<-?\s?['\"]?[A-Z]\w*['\"]?$"
    r"|[\w']+(?:,\s*[\w']+)*\s*::\s|(?:module|data|newtype|instance|type)\s+[A-Z][\w.]*(?:\s|$)"
    r"|[a-z][\w']*(?:\s+[\w'_()]+){1,5}\s+=\s|[|]\s+\S.*\s=\s|.*:-|[a-z]\w*\(.*\)\.$"
    r"|(?:\d{6}\s+)?(?:[A-Z][A-Z0-9-]+\s+){1,4}(?:DIVISION|SECTION|RUN)\.|.*\sPIC\s"
    r"|(?:MOVE|DISPLAY|PERFORM|ADD|COMPUTE|IF|END-IF|ELSE|ACCEPT|STOP)\b[^a-z]*$"
    r"|\.(?:text|data|bss|globa?l|section|byte|word|quad|asciz)\b|\.\w+:$"
    r"|[a-z]{2,7}[lqwb]?\s+[%$\[(#-]?\w[\w%()\[\]+*-]*,\s*[%$\[(#-]?\w[\w%()\[\]+*-]*\s*(?:[;#].*)?$"
)
_MIN_CODE_LINES = 0.2
_LONGEST_LINE = 400
"""Of a longer line only the beginning and the end are looked at."""

_QUESTION_CHARS = 2000

_VERBATIM = re.compile(
    r"\b(?:translat|rewrit|re-?write|rephras|paraphras|proof-?read|copy-?edit|refactor|reformat"
    r"|edit|convert|transcrib|redact|verbatim|word for word|quot(?:e|es|ation)\b|spell|grammar"
    r"|(?:exact|full|complete|whole|entire|original)"
    r" (?:text|copy|content|wording|file|document|log)|fix (?:the|this|these|my|all)\b"
    r"|diff\b|patch\b|unchanged\b|untouched\b|preserv|every character|single (?:character|byte)"
    r"|(?:do not|don['\u2019]?t|never|without|must not) (?:alter|chang|modify|touch)"
    r"|(?:keep|leave|copy|return|repeat|print)\s(?:\w+\s){0,4}"
    r"(?:as[- ]is\b|as (?:it|they) (?:is|are)\b|exact)"
    r"|exactly (?:as|like|the same)\b)",
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
    """The purpose of a text in the prompt."""

    question: str = ""
    """The last of the user's own words in this turn."""
    call: str = ""
    """The arguments of the tool call that the text answers."""
    verbatim: bool = False
    """All words matter: the text is to be edited, translated or quoted."""
    whole: bool = False
    """The whole text matters: for a summary, a comparison or a list of everything."""
    counts: bool = False
    """The question concerns how often something occurs."""
    markup: bool = False
    """The question concerns the HTML markup itself."""

    @property
    def words(self) -> str:
        """All words that may name an id."""
        return f"{self.question}\n{self.call[-_QUESTION_CHARS:]}"

    @property
    def topic(self) -> str:
        """The topic that the text should tell about."""
        return f"{focus(self.question)}\n{self.call[-_QUESTION_CHARS:]}"


def understand(words: str) -> Asked:
    """Derive from the user's own words which parts of a text the answer needs."""
    whole = _WHOLE.search(words) is not None
    return Asked(
        question=words[-_QUESTION_CHARS:],
        verbatim=_VERBATIM.search(words) is not None,
        whole=whole,
        counts=whole or _COUNTS.search(words) is not None,
        markup=_MARKUP.search(words) is not None,
    )


def shows_file(name: str, arguments: str) -> bool:
    """Return whether the result of this call may be a file that is edited later.

    Each byte of such a file matters. A log is not edited, so it does not count.
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
    """Return whether ``text`` holds code, a patch or a numbered listing."""
    if "```" in text or "~~~" in text:
        return True
    lines = [line for raw in text.split("\n") if (line := raw.strip())]
    half = _LONGEST_LINE // 2
    lines = [line if len(line) <= _LONGEST_LINE else line[:half] + line[-half:] for line in lines]
    return sum(_CODE_LINE.match(line) is not None for line in lines) > _MIN_CODE_LINES * len(lines)
