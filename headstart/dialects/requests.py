"""Functions with which the dialects read and write requests, field by field."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from headstart.canonical_request import (
    CanonicalRequest,
    ForeignPart,
    ForeignTool,
    MediaPart,
    Message,
    MessagePart,
    Quirks,
    ReasoningOptions,
    ReasoningPart,
    ResponseFormat,
    TextPart,
    Tool,
    ToolChoice,
    WrittenRequest,
)
from headstart.dialects.json_texts import half_of_a_pair
from headstart.errors import InvalidRequest
from headstart.schemas import fits_strict
from headstart.types import ChatRequest, T, json_or_none

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_MAX_DEPTH = 128
"""Deepest nesting of a request. It leaves room for recursion in later readers of the document."""
LONGEST_MODEL = 2048
"""Most characters of a model's name. Names are kept in the books, the metrics and the log; the
longest ones are Bedrock's."""
_TYPE_NAMES = {bool: "a boolean", dict: "an object", int: "an integer", str: "a string"}


def decode_object(body: bytes) -> dict[str, Any]:
    """Return the body's object. Raises InvalidRequest, also for too deep nesting."""
    try:
        document = msgspec.json.decode(body)
    except UnicodeDecodeError as error:
        raise InvalidRequest("the body is not valid UTF-8") from error
    except msgspec.DecodeError as error:
        if not body.strip():
            raise InvalidRequest("the body is empty: a JSON object is required") from error
        problem = half_of_a_pair(body) or error
        raise InvalidRequest(f"the body is not valid JSON: {problem}") from error
    except RecursionError as error:
        raise _too_deep() from error
    if not isinstance(document, dict):
        raise InvalidRequest("the body must be a JSON object")
    if body.count(b"{") + body.count(b"[") > _MAX_DEPTH and _is_deep(document):
        raise _too_deep()
    return document


def read_model(document: dict[str, Any]) -> str:
    """Return the model's name. Raises InvalidRequest."""
    model = document.get("model")
    if not isinstance(model, str) or not model:
        problem = "must not be empty" if model == "" else "a string is required"
        raise InvalidRequest(f"model: {problem}")
    if len(model) > LONGEST_MODEL:
        raise too_long_model()
    return model


def too_long_model() -> InvalidRequest:
    """Return the error for a name of more than ``LONGEST_MODEL`` characters."""
    return InvalidRequest(f"model: a name has at most {LONGEST_MODEL} characters")


def read_message_list(document: dict[str, Any], name: str = "messages") -> list[dict[str, Any]]:
    """Return the messages, each an object. Raises InvalidRequest."""
    messages = document.get(name)
    if not isinstance(messages, list):
        raise InvalidRequest(f"{name}: an array is required")
    for position, message in enumerate(messages):
        if not isinstance(message, dict):
            raise InvalidRequest(f"{name}[{position}]: must be an object")
    return messages


def check_types(document: dict[str, Any], types: Mapping[str, type]) -> None:
    """Raise InvalidRequest for a field that is neither of its type nor null."""
    for field, value in document.items():
        if field in types and value is not None and type(value) is not types[field]:
            raise InvalidRequest(f"{field}: must be {_TYPE_NAMES[types[field]]}")


def read_field(document: dict[str, Any], field: str, kind: type[T]) -> T | None:
    """Return a field of a type, None where it is absent or null. Raises InvalidRequest."""
    value = document.get(field)
    if value is None or type(value) is kind:
        return value
    raise InvalidRequest(f"{field}: must be {_TYPE_NAMES[kind]}")


def read_limit(document: dict[str, Any], *fields: str) -> int | None:
    """Return the first limit of an answer's tokens that is set; None: the answer has no limit.

    Some servers, such as llama.cpp's, take a negative number for no limit. Raises InvalidRequest.
    """
    for field in fields:
        limit = document.get(field)
        if type(limit) is int:
            return None if limit < 0 else limit
        if limit is not None:
            raise InvalidRequest(f"{field}: must be {_TYPE_NAMES[int]}")
    return None


def named_user(document: dict[str, Any]) -> str | None:
    """Return the user that a request of OpenAI's names, under one name or under both."""
    user, safety = document.get("user"), document.get("safety_identifier")
    if user and safety:
        return msgspec.json.encode((user, safety)).decode()
    return user or safety or None


def last_user_text(messages: list[dict[str, Any]]) -> str | None:
    """Return the text of the last message if it is the user's and text alone, else None.

    The texts of its parts are joined by newlines.
    """
    if not messages or messages[-1].get("role") != "user":
        return None
    content = messages[-1].get("content")
    if isinstance(content, str):
        return content or None
    if not isinstance(content, list):
        return None
    texts = [text for part in content if (text := _part_text(part)) is not None]
    if len(texts) < len(content):
        return None
    return "\n".join(texts) or None


def repeats_keys(body: bytes, document: dict[str, Any]) -> bool:
    """Tell whether the body names a JSON key twice. ``document`` is the decoded body."""
    # Most clients send compact JSON. If encoding the document gives the same body, no key is
    # repeated.
    if msgspec.json.encode(document) == body:
        return False
    try:
        json.loads(body, object_pairs_hook=_unique)
    except ValueError:
        return True
    return False


def _is_deep(document: dict[str, Any]) -> bool:
    level: list[Any] = [document]
    for _ in range(_MAX_DEPTH):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


def _too_deep() -> InvalidRequest:
    return InvalidRequest(f"the body is nested more than {_MAX_DEPTH} levels deep")


def _part_text(part: Any) -> str | None:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    return None


def _unique(pairs: list[tuple[str, Any]]) -> None:
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("repeated key")


class Fields:
    """An object of a request. Reading a field removes it; ``rest`` has the fields that remain.

    ``place`` is the place of the object, such as ``messages[3].content[0]``, and "" for the request
    itself. Null counts as absent. Every method raises InvalidRequest for another type.
    """

    def __init__(self, value: Any, place: str = "") -> None:
        self.place = place
        if not isinstance(value, dict):
            raise InvalidRequest(f"{place}: must be an object")
        self._fields = {name: field for name, field in value.items() if field is not None}

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def invalid(self, name: str, problem: str) -> InvalidRequest:
        """Return the error for a field."""
        return InvalidRequest(f"{self._at(name)}: {problem}")

    def value(self, name: str) -> Any:
        """Take a field unchanged, or None."""
        return self._fields.pop(name, None)

    def discard(self, *names: str) -> None:
        """Take fields that have no meaning elsewhere."""
        for name in names:
            self._fields.pop(name, None)

    def peek(self, name: str) -> Any:
        """Return a field unchanged, or None, without taking it."""
        return self._fields.get(name)

    def text(self, name: str) -> str | None:
        return self._typed(name, "a string", str)

    def required_text(self, name: str) -> str:
        value = self.text(name)
        if value is None:
            raise self.invalid(name, "a string is required")
        return value

    def integer(self, name: str) -> int | None:
        return self._typed(name, "an integer", int)

    def limit(self, *names: str) -> int | None:
        """Return the first limit of these fields (see ``read_limit``), and take all of them."""
        return read_limit({name: self.integer(name) for name in names}, *names)

    def number(self, name: str) -> float | None:
        return self._typed(name, "a number", int, float)

    def boolean(self, name: str) -> bool | None:
        return self._typed(name, "a boolean", bool)

    def mapping(self, name: str) -> dict[str, Any] | None:
        return self._typed(name, "an object", dict)

    def _typed(self, name: str, what: str, *kinds: type[T]) -> T | None:
        value = self._fields.pop(name, None)
        if value is None or type(value) in kinds:
            return value  # type: ignore[no-any-return]
        raise self.invalid(name, f"must be {what}")

    def parts(self, name: str, read: Callable[[Fields], T]) -> tuple[T | TextPart, ...]:
        """Read content: a text, or a list of objects that ``read`` reads."""
        if isinstance(self.peek(name), str):
            text = self.required_text(name)
            return (TextPart(text=text),) if text else ()
        return tuple(map(read, self.objects(name)))

    def tool(self, extra: dict[str, Any] | None = None) -> Tool:
        """Read a function. ``extra`` takes the place of the fields that are left."""
        return Tool(
            name=self.required_text("name"),
            description=self.text("description"),
            parameters=self.mapping("parameters"),
            strict=self.boolean("strict"),
            extra=self.rest() if extra is None else extra,
        )

    def response_format(self, schema_in: str = "") -> ResponseFormat:
        """Read the form of an answer, as both APIs of OpenAI have it.

        ``schema_in`` names the object that holds the schema; "": this object holds it.
        """
        kind = self.required_text("type")
        if kind not in ("text", "json_object", "json_schema"):
            raise self.invalid("type", "must be text, json_object or json_schema")
        if kind != "json_schema":
            return ResponseFormat(kind="text" if kind == "text" else "json")
        wanted = self.required_object(schema_in) if schema_in else self
        return ResponseFormat(
            kind="schema",
            name=wanted.text("name"),
            schema=wanted.mapping("schema"),
            strict=wanted.boolean("strict"),
            description=wanted.text("description"),
        )

    def audio(self) -> MediaPart:
        """Read a part with sound, as both APIs of OpenAI have it."""
        audio = self.required_object("input_audio")
        media_type = "audio/" + audio.required_text("format")
        data = audio.required_text("data")
        return MediaPart(kind="audio", media_type=media_type, data=data, extra=self.rest())

    def image(self, url: str, detail: str | None) -> MediaPart:
        """Return the image at a URL, which may hold its bytes."""
        media_type, data = split_data_url(url) or (None, None)
        return MediaPart(
            kind="image",
            media_type=media_type,
            url=url if data is None else None,
            data=data,
            detail=detail,
            extra=self.rest(),
        )

    def object(self, name: str) -> Fields | None:
        """Take an object as ``Fields``, or None."""
        return Fields(self.value(name), self._at(name)) if name in self else None

    def required_object(self, name: str) -> Fields:
        found = self.object(name)
        if found is None:
            raise self.invalid(name, "an object is required")
        return found

    def objects(self, name: str) -> tuple[Fields, ...]:
        """Take an array of objects; () if it is absent."""
        values = self._array(name)
        return tuple(Fields(value, f"{self._at(name)}[{n}]") for n, value in enumerate(values))

    def texts(self, name: str) -> tuple[str, ...]:
        """Take a string, or an array of strings; () if it is absent."""
        if isinstance(self.peek(name), str):
            return (self.required_text(name),)
        values = self._array(name)
        for n, value in enumerate(values):
            if not isinstance(value, str):
                raise self.invalid(f"{name}[{n}]", "must be a string")
        return tuple(values)

    def rest(self) -> dict[str, Any]:
        """Take all remaining fields."""
        rest, self._fields = self._fields, {}
        return rest

    def _array(self, name: str) -> list[Any]:
        value = self.value(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.invalid(name, "must be an array")
        return value

    def _at(self, name: str) -> str:
        return f"{self.place}.{name}" if self.place else name


_MARK = "headstart:"
THINKING_MARK = _MARK.encode()
"""Is in every body that holds marked thinking."""


def reasoning_mark(field: str) -> str:
    """Return our signature for thinking that another provider sent under this name."""
    return _MARK + field


def marked_origin(signature: str | None) -> str | None:
    """Return the name under which another provider sent the thinking; None for the API's own."""
    if signature is None or not signature.startswith(_MARK):
        return None
    return signature.removeprefix(_MARK)


def without_marked(
    messages: Iterable[dict[str, msgspec.Raw]],
) -> tuple[list[dict[str, msgspec.Raw]], bool]:
    """Return the messages without marked thinking, and whether there was any.

    A message without any other content is left out, too.
    """
    kept, found = [], False
    for message in messages:
        content = bytes(message.get("content", b""))
        if not (content[:1] == b"[" and THINKING_MARK in content):
            kept.append(message)
            continue
        blocks = msgspec.json.decode(content, type=list[msgspec.Raw])
        own = [block for block in blocks if not is_marked(msgspec.json.decode(block))]
        found |= len(own) < len(blocks)
        if own or not blocks:
            kept.append({**message, "content": msgspec.Raw(msgspec.json.encode(own))})
    return kept, found


def is_marked(part: Any) -> bool:
    """Tell whether a block of Messages, or an item of Responses, is reasoning with our mark."""
    match part:
        case {"type": "thinking", "signature": str(signature)} | {
            "type": "reasoning",
            "encrypted_content": str(signature),
        }:
            return marked_origin(signature) is not None
    return False


_NEEDED = frozenset({"audio", "cachedContent", "container", "mcp_servers", "thread"})
"""Top-level fields without which the answer would be another one, if they have a value."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_LONGEST_USER = 64
_BUDGETS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16384, "xhigh": 32768}
"""The tokens for each effort. Providers publish no table; gateways use these numbers."""


class TranslationLosses:
    """Collects the parts of a request that ``target``, the dialect that is written, lacks."""

    def __init__(self, target: str, *, refuse: bool) -> None:
        self.target = target
        self._refuse = refuse
        self._names: set[str] = set()

    def drop(self, *names: str) -> None:
        """Leave fields out. Raises InvalidRequest if that is not allowed."""
        if self._refuse and names:
            raise self.refusal(names[0])
        self.leave(*names)

    def leave(self, *names: str) -> None:
        """Leave out fields whose loss does not matter. They are named, but never refused."""
        # Clients choose these names, and a header will contain them.
        self._names.update(name if _NAME.fullmatch(name) else "other" for name in names)

    def drop_reasoning(self, part: ReasoningPart) -> None:
        """Leave out earlier reasoning. Marked reasoning came from us, and is never refused."""
        leave = self.drop if marked_origin(part.signature) is None else self.leave
        leave(part.field)

    def drop_filled(self, fields: Mapping[str, Any]) -> None:
        """Leave out fields, as ``drop`` does. Fields without a value are not named or refused."""
        self.drop(*(name for name, value in fields.items() if _says_something(value)))

    def drop_beside(self, message: Message) -> None:
        """Leave out what a message has beside its role and parts."""
        self.drop_filled({"name": message.name, **message.extra})

    def refuse_foreign(self, foreign: ForeignPart | ForeignTool) -> NoReturn:
        """Raise InvalidRequest for a part or tool that only its own dialect knows."""
        if isinstance(foreign, ForeignTool):
            self.refuse_tool(f"tools of type {foreign.kind}", foreign.kind)
        elif tool := _tool_of(foreign):
            self.refuse_tool(f"content of type {foreign.kind}", tool)
        raise self.refusal(f"content of type {foreign.kind}")

    def refuse_tool(self, name: str, tool: str) -> NoReturn:
        """Raise InvalidRequest for content that needs a tool of another provider."""
        setting = f'`drops` of the upstream can leave it out: drops = ["{tool}"]'
        raise InvalidRequest(f"{self.refusal(name)}; {setting}")

    def refusal(self, name: str) -> InvalidRequest:
        """Return the error for content that the target cannot express."""
        return InvalidRequest(f"{name}: cannot be expressed for an upstream of {self.target}")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._names))


_TRACE = re.compile(
    r"(mcp)_\w+|(?>\w*?(code_execution)_)\w+|(\w+?)_(?:call|call_output|tool_result)"
)
"""Types of content that tell what a provider's tool did. The atomic group keeps the time linear."""
_TRACES = dict.fromkeys(("executableCode", "codeExecutionResult"), "codeExecution")
_TRACES |= dict.fromkeys(("program", "program_output"), "programmatic_tool_calling")


def _tool_of(part: MessagePart) -> str | None:
    """Return the name of the provider's tool whose work a part tells; None for other parts."""
    if not isinstance(part, ForeignPart):
        return None
    uses = part.kind == "server_tool_use"
    trace = f"{part.value.get('name') or ''}_call" if uses else part.kind
    found = _TRACE.fullmatch(trace)
    return _TRACES.get(trace) if found is None else found[found.lastindex or 0]


def without_dropped_tools(asked: CanonicalRequest, quirks: Quirks) -> CanonicalRequest:
    """Return a request without the tools of other providers that the operator wants to leave out.

    What the conversation tells about their work is left out, too, and a choice that no other tool
    can follow. They are named like fields that another dialect does not have
    (``drop_extra``).
    """
    foreign = [tool for tool in asked.tools if isinstance(tool, ForeignTool)]
    dropped = {id(tool): tool for tool in foreign if tool.kind in quirks.drops}
    tools = tuple(tool for tool in asked.tools if id(tool) not in dropped)
    left: dict[str, Any] = {tool.kind: tool.value for tool in dropped.values()}
    messages = _without_traces(asked.messages, quirks, left)
    choice = asked.tool_choice
    if choice is not None and (dropped or choice.hosted):
        gone = {tool.value.get("name") for tool in dropped.values()}
        names = tuple(name for name in choice.names if name not in gone)
        hosted = tuple(kind for kind in choice.hosted if kind not in quirks.drops)
        limited = choice.names or choice.hosted
        if names or hosted or (tools and not limited):
            choice = msgspec.structs.replace(choice, names=names, hosted=hosted)
        else:
            left["tool_choice"] = choice.mode
            only = limited and tools and choice.mode == "auto"  # no other tool may be called
            choice = ToolChoice(mode="none") if only else None
    if not left and choice is asked.tool_choice:
        return asked
    extra = {**asked.extra, **left}
    return msgspec.structs.replace(
        asked, messages=messages, tools=tools, tool_choice=choice, extra=extra
    )


def _without_traces(
    messages: tuple[Message, ...], quirks: Quirks, left: dict[str, Any]
) -> tuple[Message, ...]:
    """Return the messages without the work of dropped tools, whose types are added to ``left``."""
    if not quirks.drops:
        return messages
    kept = []
    for message in messages:
        parts = []
        for part in message.parts:
            tool = _tool_of(part)
            # A type may have more words, and a version: web_search_preview_2025_03_11.
            kind = next((k for k in quirks.drops if tool and f"{k}_".startswith(f"{tool}_")), None)
            if kind is None:
                parts.append(part)
            else:
                left.setdefault(kind, tool)
        if parts or not message.parts:
            kept.append(msgspec.structs.replace(message, parts=tuple(parts)))
    return tuple(kept)


def drop_extra(asked: CanonicalRequest, losses: TranslationLosses) -> None:
    """Leave out the extra fields of the request.

    Raises InvalidRequest for one without which the answer would be another.
    """
    for kind in asked.tool_choice.hosted if asked.tool_choice is not None else ():
        losses.refuse_tool(f"tool_choice of type {kind}", kind)
    for name, value in asked.extra.items():
        if _changes_answer(name, value):
            refusal = losses.refusal(name)
            if name == "thread":  # on this code Anthropic's SDKs send the whole conversation
                refusal.code = "thread_unsupported_request"
            raise refusal
    # Other dialects do this by default, or have it as the user.
    implied = {"modalities": ["text"], "safety_identifier": asked.user}
    losses.drop_filled(
        {n: v for n, v in asked.extra.items() if n not in implied or v != implied[n]}
    )


def _changes_answer(name: str, value: Any) -> bool:
    """Tell whether the answer would be another one without this field."""
    if name == "modalities":
        return bool(value != ["text"])
    if name == "web_search_options":  # also empty options ask for a search
        return True
    return name in _NEEDED and _says_something(value)


def filled(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def split_data_url(url: str) -> tuple[str, str] | None:
    """Return media type and base64 of a ``data:`` URL, or None if it is no such URL."""
    head, comma, data = url.partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        return None
    return head[5:-7].partition(";")[0] or "text/plain", data


def data_url(media: MediaPart) -> str:
    """Return the part's URL, as a ``data:`` URL where it holds bytes."""
    return media.url or f"data:{media.media_type};base64,{media.data}"


def plain_text(media: MediaPart) -> str | None:
    """Return the text of a text file that came as bytes, or None."""
    if media.kind != "file" or media.data is None or media.media_type != "text/plain":
        return None
    try:
        return base64.b64decode(media.data).decode()
    except (binascii.Error, ValueError):
        return None


def titled_text(media: MediaPart) -> str | None:
    """Return the text of a text file below its name, or None."""
    text = plain_text(media)
    return f"{media.name}:\n{text}" if text is not None and media.name else text


def described_schema(wanted: ResponseFormat) -> dict[str, Any] | None:
    """Return a format's schema, with the format's description if there is one."""
    if wanted.schema is None or wanted.description is None:
        return wanted.schema
    return {"description": wanted.description, **wanted.schema}


def kept_stops(asked: CanonicalRequest, most: int, losses: TranslationLosses) -> tuple[str, ...]:
    """Return the stop sequences, at most as many as the target takes."""
    if len(asked.stop) > most:
        losses.drop("stop")
    return asked.stop[:most]


def budget_of(effort: str) -> int:
    """Return the tokens to think for an effort. An unknown word counts as the highest effort."""
    return _BUDGETS.get(effort, _BUDGETS["xhigh"])


def effort_of(wish: ReasoningOptions) -> str | None:
    """Return the effort; for a budget the least one, from ``low`` to ``high``, that covers it."""
    budget = wish.budget_tokens
    if wish.effort is not None or budget is None:
        return wish.effort
    return next((name for name in ("low", "medium") if budget <= _BUDGETS[name]), "high")


def call_input(arguments: str) -> dict[str, Any]:
    """Return the arguments of a call as an object, which Claude and Bedrock want.

    A model may have written arguments that are no JSON object. They are sent as ``_raw``: so the
    model sees its mistake, and a request with such a turn in its history is still answered.
    """
    if not arguments.strip():
        return {}
    value = json_or_none(arguments, dict[str, Any])
    return {"_raw": arguments} if value is None else value


def fitting_user(user: str | None) -> str | None:
    """Return the user's id; a digest in place of one that is too long for OpenAI.

    Claude Code sends some 150 characters of JSON.
    """
    return user if user is None or len(user) <= _LONGEST_USER else id_digest(user)


def id_digest(id: str) -> str:
    """Return a text of 64 letters and digits in place of an id that a provider refuses."""
    return hashlib.sha256(id.encode("utf-8", "surrogatepass")).hexdigest()


def strict_mode(
    strict: bool | None,  # noqa: FBT001
    schema: dict[str, Any] | None,
    losses: TranslationLosses,
    fits: Callable[[dict[str, Any]], bool] = fits_strict,
) -> bool | None:
    """Return whether a schema is to be followed strictly. No provider does that for all schemas."""
    if not strict or fits(schema or {}):
        return strict
    losses.drop("strict")
    return None


def _says_something(value: Any) -> bool:
    return value is not None and value is not False and value not in ([], {}, "")


_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")
_SAMPLING = ("temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty")


def apply_quirks(
    body: bytes, request: ChatRequest, quirks: Quirks, dialect: str
) -> tuple[bytes, tuple[str, ...]]:
    """Return the body in the form that the provider accepts, and the client's fields left out.

    Thoughts of other providers, which an Anthropic client sends back, are left out, too. The body
    stays the same object if nothing applies or if it repeats a key. Raises InvalidRequest for more
    choices than the provider gives. With ``quirks.refuse`` it also raises InvalidRequest and does
    not leave fields out.
    """
    if request.duplicate_keys:
        return body, ()
    losses = TranslationLosses(dialect, refuse=quirks.refuse)
    check_choices(request.choices, quirks)
    return edit_fields(body, request.document, quirks, losses), losses.names


def check_choices(choices: int, quirks: Quirks) -> None:
    """Raise InvalidRequest for more choices than the provider gives."""
    if quirks.max_choices is not None and choices > quirks.max_choices:
        raise InvalidRequest(f"n: the upstream gives at most {quirks.max_choices}")


def write_edited(
    path: bytes, body: Mapping[str, Any], quirks: Quirks, losses: TranslationLosses
) -> WrittenRequest:
    """Return a translated request: without fields that are None, and with the provider's quirks."""
    said = filled(body)
    edited = edit_fields(msgspec.json.encode(said), said, quirks, losses)
    return WrittenRequest(path=path, body=edited, dropped=losses.names)


def write_dropped(
    path: bytes, document: dict[str, Any], quirks: Quirks, losses: TranslationLosses
) -> WrittenRequest:
    """Return a translated request without the fields that the operator wants to leave out."""
    for name in quirks.drops:
        if document.pop(name, None) is not None:
            losses.drop(name)
    return WrittenRequest(path=path, body=msgspec.json.encode(document), dropped=losses.names)


def edit_fields(
    body: bytes, asked: Mapping[str, Any], quirks: Quirks, losses: TranslationLosses
) -> bytes:
    """Return the body with the provider's names, and without the fields that it rejects.

    Only a field that the client sent (``asked``) is a loss.
    """
    drops = _drops(quirks)
    edits_messages = quirks.message_drops or quirks.call_ids != "any" or THINKING_MARK in body
    if not (drops or quirks.renames or edits_messages):
        return body
    document = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    losses.drop(*(name for name in drops if name in document and asked.get(name) is not None))
    replaced = {new for old, new in quirks.renames.items() if old in document}
    edited = {
        quirks.renames.get(name, name): value
        for name, value in document.items()
        if name not in drops and name not in replaced
    }
    changed = list(edited) != list(document)
    if edits_messages and "messages" in edited:
        changed |= _edit_messages(edited, quirks, losses)
    return msgspec.json.encode(edited) if changed else body


def _drops(quirks: Quirks) -> set[str]:
    sampling = () if quirks.sampling else _SAMPLING
    usage = () if quirks.stream_usage else ("stream_options",)
    return {*quirks.drops, *sampling, *usage}


def _edit_messages(
    fields: dict[str, msgspec.Raw], quirks: Quirks, losses: TranslationLosses
) -> bool:
    """Give the messages the form that the provider accepts, in place; False: they have it."""
    sent = msgspec.json.decode(fields["messages"], type=list[dict[str, msgspec.Raw]])
    messages, thought = without_marked(sent)
    if thought:
        losses.leave("thinking")
    found = {name for name in quirks.message_drops for message in messages if name in message}
    losses.drop(*sorted(found))
    edited = [{k: v for k, v in message.items() if k not in found} for message in messages]
    shortened = [_shorten_ids(each) for each in edited] if quirks.call_ids == "short" else []
    changed = thought or bool(found) or any(shortened)
    if changed:
        fields["messages"] = msgspec.Raw(msgspec.json.encode(edited))
    return changed


def _shorten_ids(message: dict[str, msgspec.Raw]) -> bool:
    """Give tool calls and results ids of nine characters, in place; False if they have such ids."""
    changed = False
    if "tool_call_id" in message:
        id = msgspec.json.decode(message["tool_call_id"])
        changed = short_id(id) != id
        message["tool_call_id"] = msgspec.Raw(msgspec.json.encode(short_id(id)))
    if b'"id"' in (raw := bytes(message.get("tool_calls", b""))):
        calls = msgspec.json.decode(raw)
        renamed = [{**call, "id": short_id(call.get("id"))} for call in calls]
        changed |= renamed != calls
        message["tool_calls"] = msgspec.Raw(msgspec.json.encode(renamed))
    return changed


def short_id(id: Any) -> Any:
    """Return an id of nine letters and digits in place of this one.

    Equal ids give equal results, so a result still names its call.
    """
    if not isinstance(id, str) or _SHORT_ID.fullmatch(id):
        return id
    return id_digest(id)[:9]
