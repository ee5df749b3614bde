"""Cache keys: who may share an answer, what must be equal, what is compared by meaning.

A key is SHA-256 over canonical JSON of the client's original request. ``docs/cache-key.md`` has the
rules and their reasons; the files of the dialects have the tables of body fields.

**The parts of a key** (``CacheKey``). For a chat with the system text "Be brief." and the user text
"What is a monad?":

- ``scope``: the callers that may share answers;
- ``partition``: a digest of everything but the last user text: the scope, where the request goes,
  the model, its settings and "Be brief.". Only entries with an equal partition are compared;
- ``query``: "What is a monad?", the text that is compared by meaning;
- ``exact``: a digest of partition and query. An equal one is an exact hit.

**The question in a template.** The last user text of a templated prompt is mostly template and
documents. A header, a body field or a pattern can name the question in it (``find_question``). If
nothing does, ``Templates`` looks for the text that many prompts share. Exactly one span of the text
is then the question, and only this span is compared by meaning. All the rest must be equal, even if
the question occurs in it again. So two prompts with different documents never share an answer,
whatever the question says.

**In a conversation**, everything up to the last message that is not plain text (instructions, tool
calls and results, images) must be equal. The plain turns after it, without courtesies, are the
history (``split_conversation``); ``policies.match`` decides whether two histories mean the same.
"""

from __future__ import annotations

import hmac
import re
from collections import Counter, OrderedDict, deque
from functools import cache, lru_cache
from hashlib import sha256
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from headstart.dialects.dialect import FieldUse, KeyForm
from headstart.dialects.registry import DIALECTS, PROTOCOL_HEADERS
from headstart.dialects.request_form import canonical_body
from headstart.policies.guards.table import task_of
from headstart.policies.guards.words import is_function_word, stem, stems_of, word_texts
from headstart.types import (
    CacheKey,
    ChatRequest,
    Frozen,
    Headers,
    Latest,
    Turn,
    read_vocabulary,
    words_of,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence


_FORMAT = 1
"""The version of keys. Raise it if equal requests get other keys than before: old entries then
never match."""

_TEXT_TASKS = tuple(
    b"translat proofread rephras paraphras rewrit punctuat spelling grammar verbatim".split()
)
"""Parts of words in instructions whose answers depend on the wording of the user's text."""
_MOST_READ = 8_192
"""The bytes at each end of a request in which instructions are sought."""

_UNKNOWN = KeyForm(fields={}, canonical=canonical_body)
"""The form for an unknown dialect: every field is part of the key."""

_encode = msgspec.json.Encoder(order="sorted").encode


class KeyContext(Frozen):
    """The parts of a key other than the body: where the request goes, and how it is read."""

    dialect: str
    path: bytes
    upstream: str
    """The identity of the upstream or the wrapped app that would answer."""
    query_string: bytes = b""
    headers: Headers = ()
    """The headers that change the answer: those that ``keyed_headers`` returns."""
    wrapped_app: bool = False
    """Whether the user's own app answers. It may read ``metadata``, which then is in the key."""


def scope_of(
    secret: bytes,
    *,
    credential: bytes | None,
    subdivision: str | None = None,
    user: str | None = None,
) -> str:
    """Return the scope in which answers are shared, as a digest that hides the credential.

    ``secret`` is that of the store, so scopes in two stores are never equal. ``subdivision`` (from
    ``x-headstart-scope``) and ``user`` can only narrow the scope.
    """
    material = _encode((_FORMAT, credential, subdivision, user))
    return hmac.digest(secret, material, "sha256").hex()


def keyed_headers(headers: Headers, configured: Collection[bytes] = ()) -> Headers:
    """Return the headers that are part of a key, sorted by name.

    ``configured`` has further names, in lower case.
    """
    keyed = [pair for pair in headers if pair[0] in PROTOCOL_HEADERS or pair[0] in configured]
    return tuple(sorted(keyed, key=itemgetter(0)))


def chat_key(
    request: ChatRequest,
    *,
    scope: str,
    context: KeyContext,
    question: Question | None = None,
    semantic: bool = True,
) -> CacheKey:
    """Return the key of a chat request. No request makes this raise.

    With ``question``, only this part of the last user text is compared by meaning. Without
    ``request.query``, partition and exact key are digests of the whole request. If ``semantic`` is
    false, conversations are not split for a comparison, so only equal ones share answers. Unknown
    parts become part of the key as they are.
    """
    form, omitted = _key_form(context.dialect, wrapped_app=context.wrapped_app)
    document, shared = request.document, form.shared
    if shared is not None and context.path == shared.path and not context.wrapped_app:
        rewritten = shared.rewrite(document)
        if rewritten is not None:  # it gets the key of an equal request in the other dialect
            document = rewritten
            context = msgspec.structs.replace(context, dialect=shared.dialect, path=shared.of_path)
            form, omitted = _key_form(shared.dialect, wrapped_app=False)
    if context.query_string or form.target is not None:
        context = _with_canonical_target(context, form)
    body, messages = form.canonical(
        {name: value for name, value in document.items() if name not in omitted}
    )
    asked: Any = None
    conversation: Conversation | None = None
    if messages:
        if request.query is not None:
            if semantic and question is None:
                conversation = split_conversation(messages)
            messages[-1], asked = _without_text(messages[-1])
        body["messages"] = messages
    key = _key(scope, context, body, asked, request.query, question)
    if conversation is None:
        return key
    # The name of the group: a digest like the partition, but without the history.
    body["messages"] = [*conversation.fixed, "...", messages[-1]]
    shorter = _key(scope, context, body, asked, request.query, question, with_task=False)
    return msgspec.structs.replace(
        key, conversation=shorter.partition, history=conversation.history
    )


def raw_key(
    document: object,
    *,
    query: str | None,
    scope: str,
    context: KeyContext,
    question: Question | None = None,
) -> CacheKey:
    """Return the key of a custom endpoint's request.

    ``query`` is the prompt, or None. ``document`` is the decoded body, without the prompt. If
    ``question`` is given, only this part of the prompt is compared by meaning. All fields and the
    whole query string are in the key, because only the owner of the endpoint knows their meaning.
    """
    return _key(scope, context, document, query, query, question)


def item_key(partition: str, item: bytes) -> str:
    """Return the exact key of one item of a request whose items are cached one by one."""
    return sha256(partition.encode() + item).hexdigest()


def variant(key: CacheKey, name: int | str) -> CacheKey:
    """Return the key of one of several answers to a request.

    ``name`` is the number of a sampled answer, or the dialect whose clients are the only ones that
    get the answer. The partition differs, too, so no variant gets the answer of another one.
    """
    conversation = key.conversation
    return msgspec.structs.replace(
        key,
        partition=_digest(f"{key.partition}#{name}"),
        exact=_digest(f"{key.exact}#{name}"),
        conversation=None if conversation is None else _digest(f"{conversation}#{name}"),
    )


def _key(
    scope: str,
    context: KeyContext,
    body: object,
    asked: Any,
    query: str | None,
    question: Question | None,
    *,
    with_task: bool = True,
) -> CacheKey:
    """Return the key of ``body``, the request without the last user text, and of this text.

    ``asked`` is the text, or the list of its parts; ``query`` is the text as one string.
    """
    material: tuple[object, ...] = (
        _FORMAT,
        scope,
        context.dialect,
        context.path,
        context.query_string,
        context.upstream,
        context.headers,
        query is None,
        body,
    )
    if question is not None and query is not None:
        material = (*material, cut_question(asked, question))
        asked = query = question.text
    encoded = _encode(material)
    partition = sha256(encoded).hexdigest()
    exact = sha256(partition.encode() + _encode(asked)).hexdigest()
    task = ""
    if with_task and query is not None:
        long = len(encoded) > 2 * _MOST_READ
        task = _text_task(encoded[:_MOST_READ] + encoded[-_MOST_READ:] if long else encoded)
    return CacheKey(scope=scope, partition=partition, exact=exact, query=query, task=task)


@lru_cache(maxsize=256)
def _text_task(instructions: bytes) -> str:
    """Return the ``CacheKey.task`` of a request with these instructions.

    A search takes 5 to 60 µs, and many requests have the same instructions.
    """
    return "text" if any(map(instructions.lower().__contains__, _TEXT_TASKS)) else ""


@cache
def _key_form(dialect: str, *, wrapped_app: bool) -> tuple[KeyForm, frozenset[str]]:
    """Return the form of a dialect's keys, and the fields of its bodies that are not keyed."""
    form = DIALECTS[dialect].key if dialect in DIALECTS else _UNKNOWN
    omitted = frozenset(name for name, use in form.fields.items() if use is not FieldUse.KEYED)
    return form, omitted - {"metadata"} if wrapped_app else omitted


def _with_canonical_target(context: KeyContext, form: KeyForm) -> KeyContext:
    """Leave out the parts of path and query string that do not change the answer."""
    path, query_string = context.path, _without_credential(context.query_string)
    if form.target is not None:
        path, query_string = form.target(path, query_string)
    return msgspec.structs.replace(context, path=path, query_string=query_string)


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _without_text(message: object) -> tuple[object, object]:
    """Return the other fields and the text of a message that has only text.

    Another message is returned whole, without a text.
    """
    if isinstance(message, dict) and isinstance(text := message.get("content"), str):
        return {name: value for name, value in message.items() if name != "content"}, text
    match message:
        case {"content": list(parts), **rest} if all(isinstance(part, dict) for part in parts):
            skeleton = [{**part, "text": None} for part in parts]
            return {**rest, "content": skeleton}, [part.get("text") for part in parts]
        case _:
            return message, None


def _without_credential(query_string: bytes) -> bytes:
    """Drop ``key=``, which is Gemini's credential: the scope already depends on it."""
    if b"key=" not in query_string:
        return query_string
    return b"&".join(pair for pair in query_string.split(b"&") if not pair.startswith(b"key="))


# --- the named question --------------------------------------------------------------------------

QUESTION_GROUP = "query"
"""The name of the group in a pattern that matches the question."""


class Question(Frozen):
    """A span of the last user text, in characters. Newlines join the parts of that text."""

    text: str
    start: int
    end: int


NOT_FOUND = Question(text="", start=0, end=0)
"""The text does not contain the question that was named."""


def find_question(
    text: str, *, names: Sequence[str] = (), pattern: re.Pattern[str] | None = None
) -> Question | None:
    """Return the question in ``text``, or None if nothing names it.

    ``names`` has spellings of the question. The first one that occurs in the text is taken, and of
    several occurrences the last one, because templates put the question at the end. Without names,
    it is the first match of ``pattern``, without the spaces around it.
    """
    if names:
        found = (_last_copy(text, name) for name in names)
        return next((question for question in found if question is not NOT_FOUND), NOT_FOUND)
    return None if pattern is None else _question_matched(text, pattern)


def cut_question(texts: str | Sequence[str], question: Question) -> list[object]:
    """Return the parts of a text; the part with the question is a pair, the text around it.

    If the question is in more than one part, it is not cut out, and the whole text must be equal.
    """
    pieces: list[object] = []
    offset = 0
    for text in (texts,) if isinstance(texts, str) else texts:
        start, end = question.start - offset, question.end - offset
        inside = 0 <= start <= end <= len(text)
        pieces.append((text[:start], text[end:]) if inside else text)
        offset += len(text) + 1
    return pieces


def _last_copy(text: str, question: str) -> Question:
    start = text.rfind(question)
    if not question.strip() or start < 0:
        return NOT_FOUND
    return Question(text=question, start=start, end=start + len(question))


def _question_matched(text: str, pattern: re.Pattern[str]) -> Question:
    match = pattern.search(text)
    question = "" if match is None else (match[QUESTION_GROUP] or "").strip()
    if match is None or not question:
        return NOT_FOUND
    start = text.index(question, match.start(QUESTION_GROUP))
    return Question(text=question, start=start, end=start + len(question))


# --- shared templates ----------------------------------------------------------------------------

WINDOW = 32
"""The number of prompts of a partition in which a template is looked for."""
LEAST_SHARED = 8
"""The number of different prompts in the window that must have a template in common."""
COMPARED = 8
"""The number of latest prompts with which a prompt is compared."""
LEAST_WORDS = 3
"""The fewest words of each side of a template. Greetings are shorter."""
LEAST_EQUAL = 8
"""The fewest equal characters at the start or the end of two prompts, to compare them further."""
MOST_COMPARED_CHARS = 16_384
"""Longer texts are not compared. But a template of shorter texts, or a labelled question, is also
found in them."""
LONGEST_GAP = 256
"""The most characters from the end of equal text back to a place where a template may end."""
MOST_TEMPLATES = 8
"""The most templates that are remembered for each side in a partition."""
MOST_PARTITIONS = 128
"""The most partitions with remembered prompts. They take at most 50 MB, and mostly a few KB."""
MOST_LABEL_CHARS = 80
"""The longest label of a line: "Question:", "Helpful Answer:", "Answer the following question:"."""

_BEFORE = re.compile(
    r"""
      \n\s*                          # the end of a line
    | [.:;?!>)\]}"'`\u201d-]\s+       # the end of a sentence, of "Message:", of a quoted example
    | (?<![^\s:>])["'`\u201c(\[{<]+   # an opening quote
    | >                             # the end of a tag
    """,
    re.VERBOSE,
)
"""Matches a place where the part of a template before the question may end."""
_AFTER = re.compile(
    r"""
      (?<!\s)\s*\n                   # the end of a line
    | (?<=[.?!])\s                  # the end of a sentence
    | \s(?=[A-Z(\[{<])              # a capital or a bracket
    | (?<!["'`\u201d)\]}])["'`\u201d)\]}]++(?=[\s.,;:?!<]|$)  # a closing quote
    | <                             # the begin of a tag
    """,
    re.VERBOSE,
)
"""Matches a place where the part of a template after the question may begin. The lookbehinds keep
the time linear: the match of a long run of spaces or quotes is tried only at its first one."""
_LETTER = re.compile(r"\w")
_CUE = re.compile(r"\n[\s>*\[]*(?:[A-Z][^\n]*:|#[^\n:]*)\**")
"""Matches the beginning of a cue, the line after which the model writes: "Answer:", "###
Answer"."""
_LAST = stems_of("question ask")
"""Words with which a label of a question ends: "Answer the following question", "A user asked"."""
_ASKING = stems_of("query inquiry request message q user human customer client")
"""Words that name a question in a label. Others, such as "Context:", may name a document."""


class Templates:
    """Finds the template that many prompts of a partition share, and takes it out of their keys.

    A program often writes the same words around each question, so all its prompts look alike. In
    the key that ``take_out`` returns, only the question is compared by meaning, and the template
    must be equal. Not thread-safe.
    """

    def __init__(self) -> None:
        self._prompts: Latest[str, _Prompts] = Latest(MOST_PARTITIONS)

    def take_out(self, key: CacheKey) -> CacheKey:
        """Return the key of a prompt without the template in it, if it has one.

        ``exact`` stays the same. A prompt of a conversation has no template.
        """
        text = key.query
        if not text or key.conversation is not None:
            return key
        prompts = self._prompts.get(key.partition)
        if prompts is None:
            prompts = self._prompts[key.partition] = _Prompts()
        self._prompts.move_to_end(key.partition)
        start, end = prompts.find(text)
        if (start == 0 and end == len(text)) or not _LETTER.search(text, start, end):
            return key
        before, after = text[:start].rstrip(), text[end:].lstrip()
        return msgspec.structs.replace(
            key,
            partition=sha256(_encode((key.partition, before, after))).hexdigest(),
            query=text[start:end].strip(),
            task=task_of(f"{before} {after}") or key.task,
        )


_BEFORE_IT, _AFTER_IT, _LABEL = range(3)
"""The sides of a question. The same text may be on several sides."""


class _Prompts:
    """The latest prompts of one partition, and the templates that were found in them."""

    def __init__(self) -> None:
        self._latest: deque[str] = deque(maxlen=COMPARED)
        self._firsts = self._lasts = "\0" * (COMPARED * LEAST_EQUAL)
        """The first and the last characters of the latest prompts, for a quick first comparison."""
        self._shared: OrderedDict[int, tuple[int, ...]] = OrderedDict()
        """For the hash of each prompt in the window, the hashes of the texts that it shares."""
        self._counts: Counter[int] = Counter()
        self.befores: OrderedDict[str, None] = OrderedDict()
        """The known templates before a question, the most recently used last."""
        self.afters: OrderedDict[str, None] = OrderedDict()
        self.labels: OrderedDict[str, None] = OrderedDict()
        """The known labels of a question in the last line. Documents may be before this line."""

    def find(self, text: str) -> tuple[int, int]:
        """Return where the question in a prompt begins and ends, and learn from the prompt.

        Nothing is learned from a prompt that is already in the window.
        """
        before, after = self._sides(text) if self.befores or self.afters else ("", "")
        start, end = len(before), len(text) - len(after)
        asked = None
        if text.endswith("}"):
            asked = _last_field(text, end)
        elif "\n" in text:
            asked = _last_line(text, end)
        if hash(text) not in self._shared and self._learn(text, start, end, asked):
            return self.find(text)
        if asked is None:
            return start, end
        if asked.label in self.labels:
            self.labels.move_to_end(asked.label)
            return max(start, asked.start), asked.end
        # Without a known label, a cue ends the question only if a known template begins it.
        return (start, asked.end) if 0 < start < asked.end else (start, end)

    def _sides(self, text: str) -> tuple[str, str]:
        """Return the longest known templates of a prompt. Those in use stay known."""
        before = max(filter(text.startswith, self.befores), key=len, default="")
        after = max(filter(text.endswith, self.afters), key=len, default="")
        for known, side in ((self.befores, before), (self.afters, after)):
            if side:
                known.move_to_end(side)
        return before, after

    def _learn(self, text: str, start: int, end: int, asked: _AskedPart | None) -> bool:
        """Note what a prompt shares with others; return whether this shows a new template.

        The known templates are before ``start`` and after ``end``. If prompts share more text than
        these, that text may be a longer template. ``asked`` ends before a cue.
        """
        shared: set[tuple[int, str]] = set()
        if asked is not None and asked.label:
            shared.add((_LABEL, asked.label))
        if len(text) <= MOST_COMPARED_CHARS:
            first, last = text[:LEAST_EQUAL], text[-LEAST_EQUAL:]
            if first in self._firsts:
                shared.update(self._shared_befores(text, start))
            if last in self._lasts:
                stop = asked.end if asked is not None and start else end
                shared.update(self._shared_afters(text, stop))
            self._latest.append(text)
            self._firsts = self._firsts[LEAST_EQUAL:] + first.ljust(LEAST_EQUAL, "\0")
            self._lasts = self._lasts[LEAST_EQUAL:] + last.rjust(LEAST_EQUAL, "\0")
        self._shared[hash(text)] = hashes = tuple(map(hash, shared))
        if hashes:
            self._counts.update(hashes)
        if len(self._shared) > WINDOW:
            self._forget_oldest()
        return bool(shared) and self._remember(shared)

    def _shared_befores(self, text: str, start: int) -> Iterator[tuple[int, str]]:
        """Yield the beginnings that a prompt and the latest ones share, longer than ``start``."""
        known = text[: start + LEAST_EQUAL]
        for other in self._latest:
            if other.startswith(known):
                before = _shared_before(text, other)
                if _may_be_template(before[start:]):
                    yield _BEFORE_IT, before

    def _shared_afters(self, text: str, stop: int) -> Iterator[tuple[int, str]]:
        """Yield the endings that a prompt and the latest ones share, from before ``stop`` on."""
        known = text[max(0, stop - LEAST_EQUAL) :]
        for other in self._latest:
            if other.endswith(known):
                after = _shared_after(text, other)
                if _may_be_template(after[: stop - len(text) or None]):
                    yield _AFTER_IT, after

    def _forget_oldest(self) -> None:
        """Take the oldest prompt out of the window."""
        _, hashes = self._shared.popitem(last=False)
        for each in hashes:
            self._counts[each] -= 1
            if not self._counts[each]:
                del self._counts[each]

    def _remember(self, shared: Collection[tuple[int, str]]) -> bool:
        """Remember the longest texts that enough prompts share, and tell whether one is new."""
        is_new = False
        for side, known in enumerate((self.befores, self.afters, self.labels)):
            # The first prompt of a template was compared with no other, so it is not counted.
            # Labels are counted in all prompts.
            least = LEAST_SHARED if side == _LABEL else LEAST_SHARED - 1
            often = [
                each
                for of, each in shared
                if of == side and self._counts[hash((of, each))] >= least
            ]
            longest = max(often, key=len, default="")
            if longest and longest not in known:
                known[longest] = None
                is_new = True
                if len(known) > MOST_TEMPLATES:
                    known.popitem(last=False)
        return is_new


class _AskedPart(NamedTuple):
    """The place of a question that a label names."""

    start: int
    end: int
    label: str = ""
    """"": there is no label, and the place is that of the whole text."""


def _last_line(text: str, end: int) -> _AskedPart:
    """Return the question in the last line of a text that ends at ``end``.

    A cue such as "Helpful Answer:" may follow the question. The label is in the line of the
    question ("Question: …") or in the line above it. The text before the label, such as documents,
    need not be a template, but must be equal in two prompts.
    """
    stop = len(text[:end].rstrip())
    begin = text.rfind("\n", max(0, stop - MOST_LABEL_CHARS), stop)
    if begin >= 0 and _CUE.fullmatch(text, begin, stop):
        end = begin
        stop = len(text[:end].rstrip())
    line = text.rfind("\n", 0, stop) + 1
    colon = text.find(":", line, min(stop, line + MOST_LABEL_CHARS))
    if colon >= 0 and _names_question(text[line:colon]):
        return _AskedPart(colon + 1, end, text[line:colon])
    above = text.rfind("\n", 0, max(0, line - 1)) + 1
    label = text[above:line]
    if len(label) <= MOST_LABEL_CHARS and _names_question(label):
        return _AskedPart(line, end, label)
    return _AskedPart(0, end)


def _last_field(text: str, end: int) -> _AskedPart:
    """Return what ``_last_line`` returns, for the last field of JSON: ``{…, "question": "…"}``.

    Quotes in JSON's strings follow a backslash, so a field cannot begin inside a string.
    """
    close = text.rfind('"', 0, end)
    middle = max(text.rfind('": "', 0, close), text.rfind('":"', 0, close))
    if middle < 0 or text[close + 1 : end].strip(" }\n"):
        return _AskedPart(0, end)
    label = text[text.rfind('"', 0, middle) + 1 : middle]
    if len(label) > MOST_LABEL_CHARS or not _names_question(label.replace("_", " ")):
        return _AskedPart(0, end)
    return _AskedPart(text.index('"', middle + 1) + 1, close, label)


def _names_question(label: str) -> bool:
    """Tell whether a label names a question: "User query", "[[ question ]]"; not "SQL query"."""
    words = [stem(word) for word in word_texts(label)]
    if words and words[-1] in _LAST:
        return True
    named = not _ASKING.isdisjoint(words)
    return named and all(word in _ASKING or is_function_word(word) for word in words)


def _shared_before(one: str, other: str) -> str:
    """Return the common prefix of two texts, up to a place where a template may end."""
    equal = _equal_start(one, other)
    ends = [m.end() for m in _BEFORE.finditer(one, max(0, equal - LONGEST_GAP), equal)]
    return one[: ends[-1]] if ends else ""


def _shared_after(one: str, other: str) -> str:
    """Return the common suffix of two texts, from a place where a template may begin."""
    start = len(one) - _equal_start(one[::-1], other[::-1])
    begin = _AFTER.search(one, start, start + LONGEST_GAP)
    return one[begin.start() :] if begin else ""


def _may_be_template(text: str) -> bool:
    """Tell whether a program may have written a text: it is long enough, and has content words."""
    enough = len(text.split(None, LEAST_WORDS)) >= LEAST_WORDS
    return enough and not all(map(is_function_word, word_texts(text)))


def _equal_start(one: str, other: str) -> int:
    """Return the length of the longest common prefix, by bisection."""
    least, most = 0, min(len(one), len(other))
    while least < most:
        middle = (least + most + 1) // 2
        if one[least:middle] == other[least:middle]:
            least = middle
        else:
            most = middle - 1
    return least


# --- conversations -------------------------------------------------------------------------------

MOST_TURNS = 64
MOST_CHARS = 16_384
"""The most characters of a history that is compared by meaning. A longer one must be equal. The
history is stored with the entry, so its size matters."""

_COURTEOUS = words_of(read_vocabulary(__name__)["courteous_words"])
_LONGEST_COURTESY = 8

_QUESTION_WORDS = words_of("""
    how what what's whats when when's where where's which who who's whose why is are am was were do
    does did will would should has have can could may
""")
_OPENINGS = words_of("""
    ok okay yes yeah yep no and but so well oh ah right fine sure please sorry ugh great good cool
    lovely perfect brilliant thanks thank you hi hello hey
""")
_ORDERS = words_of("can could will would")
_TELLING = words_of("tell explain say show describe")

_THOUGHTS = words_of("reasoning reasoning_content reasoning_details thinking redacted_thinking")
"""Fields of messages, and types of parts and items, with the reasoning of the model."""
_FINAL = "final_answer"
"""The ``phase`` of a final answer. Texts of other phases come before it."""
_TEXT_TYPES = tuple({"type": name} for name in ("text", "input_text", "output_text"))


class Conversation(Frozen, frozen=True):
    """The messages of a request before the last one, in two parts.

    ``fixed`` must be equal in two conversations, or they are not compared. It can be written as
    JSON.
    """

    fixed: tuple[object, ...]
    history: tuple[Turn, ...]


def split_conversation(messages: Sequence[object]) -> Conversation | None:
    """Split canonical messages, or return None if only an equal history may match.

    That is so if there is no earlier user turn in plain text, if the history is too long, or if the
    last message is not a question. The meaning of "cancel it" and "yes, the first one" depends on
    each earlier word.
    """
    if len(messages) < 2:
        return None
    match messages[-2]:
        case {"role": "system" | "developer", "content": _, **rest} if not rest:
            return None  # messages before instructions are not part of a history
    turns, start = _plain_ending(messages)
    if not turns:
        return None
    last = turns.pop()
    if not last.user or len(turns) > MOST_TURNS or not any(turn.user for turn in turns):
        return None
    if sum(len(turn.text) for turn in turns) > MOST_CHARS or not is_question(last.text):
        return None
    return Conversation(fixed=tuple(messages[:start]), history=_without_courtesies(turns))


def is_question(text: str) -> bool:
    """Tell whether a text is a question, and not an order or an answer.

    "Can you book it?" is an order.
    """
    words = word_texts(text)
    first = next((word for word in words if word not in _OPENINGS), "")
    if first in _ORDERS and next(words, "") == "you":
        return next(words, "") in _TELLING
    return "?" in text or first in _QUESTION_WORDS


def _plain_ending(messages: Sequence[object]) -> tuple[list[Turn], int]:
    """Return the turns after the last message that is not plain text, and the place of the first.

    The model's reasoning before an answer is not a turn: later answers depend on the answer only.
    """
    turns: list[Turn] = []
    start = len(messages)
    for place in range(len(messages) - 1, -1, -1):
        turn = _plain_turn(messages[place])
        if turn is not None:
            turns.append(turn)
        elif not (turns and _is_thought(messages[place])):
            break
        start = place
    turns.reverse()
    return turns, start


def _plain_turn(message: object) -> Turn | None:
    match message:
        case {"role": "user" | "assistant" as role, "content": content, **rest}:
            beside = {name: value for name, value in rest.items() if value is not None}
            user = role == "user"
            if not user:
                for name in _THOUGHTS:
                    beside.pop(name, None)
                if beside.get("phase") == _FINAL:
                    del beside["phase"]
            text = None if beside else _only_text(content, user=user)
            return None if text is None else Turn(user=user, text=text)
        case _:
            return None


def _only_text(content: object, *, user: bool) -> str | None:
    """Return content that is a string, or the texts of a list that has nothing else.

    Newlines join the texts, as in the last user text. The reasoning of the model is left out.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    texts = []
    for part in content:
        match part:
            case {"text": str(text), **rest} if not rest or rest in _TEXT_TYPES:
                texts.append(text)
            case _ if user or not _is_thought(part):
                return None
    return "\n".join(texts) if texts else None


def _is_thought(part: object) -> bool:
    """Tell whether a part or an item is reasoning, in Anthropic's, OpenAI's or Gemini's form."""
    if not isinstance(part, dict):
        return False
    kind = part.get("type")
    return (isinstance(kind, str) and kind in _THOUGHTS) or part.get("thought") is True


def _without_courtesies(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """Leave out turns that are only courtesies. A user's "ok" after a question is an answer."""
    kept = []
    for place, turn in enumerate(turns):
        words = list(islice(word_texts(turn.text), _LONGEST_COURTESY + 1))
        is_courtesy = len(words) <= _LONGEST_COURTESY and _COURTEOUS.issuperset(words)
        answers = turn.user and place > 0 and turns[place - 1].text.rstrip().endswith("?")
        if answers or not is_courtesy:
            kept.append(turn)
    return tuple(kept)
