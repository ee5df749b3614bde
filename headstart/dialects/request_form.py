"""How a dialect writes requests: the prompt, the canonical form for a cache key, and cache marks.

**Cache marks** steer the provider's prompt cache: they say where a cached prefix is to end.
Anthropic's ``cache_control`` is a member of the last block of a prefix; Bedrock's ``cachePoint`` is
a block after it. OpenAI caches by itself; its ``prompt_cache_key`` names requests that share a
prefix, and so go to the same machine. All other members of a body keep their bytes.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from headstart.canonical_request import Message, portable_name
from headstart.types import CacheMarks, ChatRequest, Choice, Completion, words_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    _Members = dict[str, msgspec.Raw]
    _Mark = Callable[[Any], Any]
    """Returns content with a mark at its end; None if it cannot take a mark."""


ATTRIBUTION = "x-anthropic-billing-header:"
_PLAIN = frozenset({"role", "content", "name"})
_SIGNATURES = frozenset({"signature", "thoughtSignature", "thought_signature"})
_SIGNED_TEXT = ("text", "thinking", "reasoning", "reasoning_content")
_SCHEMAS = frozenset({"parameters", "input_schema"})
_STANDARD_ALPHABET = str.maketrans("-_", "+/")
_as_written = msgspec.json.Encoder().encode


def canonical_body(
    body: dict[str, Any], *, string_is_one_text: bool = False
) -> tuple[dict[str, Any], list[Any]]:
    """Return the settings and the messages of a body that has ``messages``, in canonical form."""
    for name, canonical in _FIELDS.items():
        if name in body:
            body[name] = canonical(body[name])
    messages = body.get("messages")
    if not (isinstance(messages, list) and messages):
        return body, []
    return body, canonical_messages(messages, string_is_one_text=string_is_one_text)


def canonical_messages(messages: list[Any], *, string_is_one_text: bool = False) -> list[Any]:
    """Return a new list of messages in which equal conversations are equal.

    Random tool-call ids become ordinals, inline media become digests of their decoded bytes,
    opaque signatures go when the text they sign is there, and prompt-cache marks go. Fields that
    say nothing go, too: SDKs send an answer back with ``"refusal": null, "annotations": []``. Where
    a string says the same as a list of one text, the list becomes the string.
    """
    ordinals: dict[str, int] = {}
    canonical = [
        message
        if isinstance(message, dict)
        and isinstance(message.get("content"), str)
        and _PLAIN.issuperset(message)
        else _message(message, ordinals)
        for message in messages
    ]
    if not string_is_one_text:
        return canonical
    return [
        {**message, "content": _text_of(message["content"])}
        if isinstance(message, dict) and isinstance(message.get("content"), list)
        else message
        for message in canonical
    ]


def canonical_system(system: object) -> object:
    """Return Anthropic's system prompt, a string or a list of texts, without marks."""
    system = without_attribution(system)
    return _text_of([_part(part, {}) for part in system]) if isinstance(system, list) else system


def without_attribution(system: object) -> object:
    """Return a system prompt without the line with which Claude Code begins it.

    The line is for Anthropic's billing. It says nothing to the model, and some versions change it
    with each request, so no prompt cache of another provider would find the prompt.
    """
    match system:
        case str(text) if text.startswith(ATTRIBUTION):
            return text.partition("\n")[2]
        case [{"text": str(text), **rest}, *more] if text.startswith(ATTRIBUTION):
            left = text.partition("\n")[2]
            return [{**rest, "text": left}, *more] if left else more
        case _:
            return system


def canonical_tools(tools: object) -> object:
    """Return tool or function definitions with their schemas' property order kept.

    A model reads a schema in order and fills it in order, so that order can change the answer.
    """
    if not isinstance(tools, list):
        return tools
    return [_tool(tool) for tool in tools]


def keep_property_order(response_format: object) -> object:
    """Return a response format, or a configuration with one, whose schema keeps its order."""
    match response_format:
        case {"json_schema": {"schema": schema, **definition}, **rest}:
            return {**rest, "json_schema": {**definition, "schema": as_ordered(schema)}}
        case {"format": {"schema": schema, **definition}, **rest}:
            return {**rest, "format": {**definition, "schema": as_ordered(schema)}}
        case {"schema": schema, **rest}:
            return {**rest, "schema": as_ordered(schema)}
        case _:
            return response_format


_FIELDS: Mapping[str, Callable[[object], object]] = {
    "tools": canonical_tools,
    "functions": canonical_tools,
    "response_format": keep_property_order,
    "output_format": keep_property_order,
    "output_config": keep_property_order,
    "system": canonical_system,
}
"""The functions that make a body's fields canonical; ``messages`` have another one."""


def _tool(tool: object) -> object:
    if not isinstance(tool, dict):
        return tool
    tool = _unmarked(tool)
    for name in _SCHEMAS & tool.keys():
        tool[name] = as_ordered(tool[name])
    if isinstance(function := tool.get("function"), dict) and "parameters" in function:
        tool["function"] = {**function, "parameters": as_ordered(function["parameters"])}
    if "tools" in tool:
        tool["tools"] = canonical_tools(tool["tools"])
    return tool


def as_ordered(schema: object) -> msgspec.Raw:
    """Return a schema with its properties in the order that they came in."""
    return msgspec.Raw(_as_written(schema))


def _message(message: object, ordinals: dict[str, int]) -> object:
    if not isinstance(message, dict):
        return message
    message = {
        name: value
        for name, value in unsigned(_unmarked(message)).items()
        if name == "content" or not (value is None or (name == "annotations" and value == []))
    }
    for name, value in message.items():
        if name == "tool_call_id":
            message[name] = ordinal(value, ordinals)
        elif name == "tool_calls" and isinstance(value, list):
            message[name] = [_tool_call(call, ordinals) for call in value]
        elif isinstance(value, list):
            message[name] = [_part(part, ordinals) for part in value]
    return message


def _text_of(content: list[object]) -> object:
    match content:
        case [{"type": "text", "text": str(text), **rest}] if not rest:
            return text
        case _:
            return content


def _tool_call(call: object, ordinals: dict[str, int]) -> object:
    if not isinstance(call, dict) or "id" not in call:
        return call
    return {**call, "id": ordinal(call["id"], ordinals)}


def ordinal(call_id: object, ordinals: dict[str, int]) -> object:
    """Number call ids by first appearance. A value that is no string is kept, with a mark."""
    if not isinstance(call_id, str):
        return _as_it_came(call_id)
    return ordinals.setdefault(call_id, len(ordinals))


def _part(part: object, ordinals: dict[str, int]) -> object:
    if not isinstance(part, dict):
        return part
    part = unsigned(_unmarked(part))
    if part.get("type") == "text" and part.get("citations", "") is None:
        del part["citations"]
    if "tool_use_id" in part:
        part["tool_use_id"] = ordinal(part["tool_use_id"], ordinals)
    elif part.get("type") == "tool_use":
        part["id"] = ordinal(part.get("id"), ordinals)
    if isinstance(part.get("content"), list):
        part["content"] = [_part(inner, ordinals) for inner in part["content"]]
    match part:
        case {"image_url": {"url": url} as image}:
            part["image_url"] = {**image, "url": keyed_media(url)}
        case {"input_audio": {"data": str(data)} as audio}:
            part["input_audio"] = {**audio, "data": decoded_digest(data)}
        case {"file": {"file_data": data} as file}:
            part["file"] = {**file, "file_data": keyed_media(data)}
        case {"source": {"type": "base64", "data": str(data)} as source}:
            part["source"] = {**source, "data": decoded_digest(data)}
    return part


def _unmarked(value: dict[str, Any]) -> dict[str, Any]:
    """Copy without ``cache_control``, which affects the provider's prompt cache alone."""
    return {name: item for name, item in value.items() if name != "cache_control"}


def unsigned(value: dict[str, Any]) -> dict[str, Any]:
    """Return a part without the signature of its text, if it has both."""
    if value.keys() & _SIGNATURES and any(value.get(name) for name in _SIGNED_TEXT):
        return {name: item for name, item in value.items() if name not in _SIGNATURES}
    return value


def _as_it_came(value: object) -> object:
    """Return a value that is kept unchanged, inside an object that marks it.

    In such a place texts are replaced by numbers or lists. Without the object, a client's own
    number or list could be equal to a replacement.
    """
    return None if value is None else {"came": value}


def keyed_media(url: object) -> object:
    """Return media type and digest of a ``data:`` URL; any other text stays as it is."""
    if not isinstance(url, str):
        return _as_it_came(url)
    if not url.startswith("data:"):
        return url
    media_type, comma, data = url.partition(",")
    if not comma or not media_type.endswith(";base64"):
        return url
    return [media_type, decoded_digest(data)]


def decoded_digest(data: str, *, url_safe: bool = False) -> str:
    """Return a digest of the bytes in base64, or the text itself if readers may differ on it.

    Readers differ on foreign characters, on missing padding and on bits after the last byte: each
    such text is keyed as it came. ``url_safe``: the provider takes ``-_`` in place of ``+/`` too,
    in a text that does not mix the two alphabets.
    """
    text = data
    if url_safe and "+" not in data and "/" not in data:
        text = data.translate(_STANDARD_ALPHABET)
    # Some versions of Python decode bad padding, others do not.
    if len(text) % 4 or "=" in text[:-4]:
        return data
    try:
        decoded = b64decode(text, validate=True)
    except ValueError:
        return data
    # The last four characters have the padding, and the unused bits.
    if b64encode(b64decode(text[-4:])).decode() != text[-4:]:
        return data
    return sha256(decoded).hexdigest()


PromptMessage: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class PromptMessages:
    """Messages in OpenAI's form, the system messages included."""

    messages: list[PromptMessage]
    _document: dict[str, Any]
    _form: RequestForm
    _sizes: list[int]
    """The number of messages that each message of the document became."""

    def with_messages(self, sent: Sequence[PromptMessage]) -> dict[str, Any]:
        """Return the document with these messages in the place of ``messages``, one for one."""
        at = len(self.messages) - sum(self._sizes)
        written = []
        for own, size in zip(self._document[self._form.field], self._sizes, strict=True):
            before, after = self.messages[at : at + size], sent[at : at + size]
            same = all(old is new for old, new in zip(before, after, strict=True))
            written.append(own if same else self._form.join(own, after))
            at += size
        return {**self._document, self._form.field: written}


_HOSTED = ("mcp_servers", "container", "enable_search")
"""If one of these fields has a value, the provider runs a tool or a search (at Qwen)."""
_SEARCH = "search_parameters"
"""xAI's field for a search. Its ``mode`` is ``auto`` unless it says otherwise."""
_OWN_TOOLS = frozenset({"function", "custom"})
"""Types of tools that the caller runs. The provider runs all other tools, on live data."""
_TOOL_ROLES = frozenset({"tool", "function"})
"""Roles of messages that hold the results of a tool."""
_NOTHING: dict[str, Any] = {}


class RequestForm:
    """How a dialect writes prompts, here OpenAI's Chat Completions."""

    field = "messages"
    """The field that holds the messages."""
    content = "content"
    """The field of a message with its texts."""
    assistant = "assistant"
    """The role of the model's messages."""
    prefills = True
    """A provider may continue a last message of the model."""
    always_limited = False
    """Every request names a limit on its answer."""
    names_model = True
    """The body names the model; otherwise the path does."""
    takes_prediction = True
    """A request may contain a predicted output."""
    tool_result = "tool_use_id"
    """A field of each part of a message that holds the results of a tool."""
    work_fields = words_of("background modalities audio web_search_options tools").union(
        _HOSTED, (_SEARCH,)
    )
    """The fields that can ask for work beside text. Most requests have none of them."""
    own_blocks = frozenset({"text", "thinking", "redacted_thinking"})
    """Blocks of an answer with the model's own words. Other blocks report what hosted tools did."""
    keeps_cut_answers = False
    """An answer that its limit cut may serve the same request, since the limit is keyed."""
    sources: tuple[str, ...] = ()
    """Fields beside an answer that name results of the provider's own search."""
    joins_results = False
    """All tool results of a turn are in one message, together with the user's text."""
    hides_rounds = True
    """A request may contain tool calls that the client never saw, because it contains answers
    unchanged."""

    def read(self, document: dict[str, Any]) -> PromptMessages | None:
        """Return the prompt of a document.

        None if it is malformed, which its provider will refuse.
        """
        try:
            messages = self.system(document)
            sizes = []
            previous: PromptMessage = {}
            for own in document[self.field]:
                split = self.split(own, previous)
                messages += split
                sizes.append(len(split))
                previous = own
        except (AttributeError, KeyError, TypeError):  # a field is missing, or of another type
            return None
        return PromptMessages(messages, document, self, sizes)

    def system(self, document: dict[str, Any]) -> list[PromptMessage]:  # noqa: ARG002 - others need it
        """Return the system text before the messages and outside of them."""
        return []

    def split(self, message: PromptMessage, previous: PromptMessage) -> list[PromptMessage]:  # noqa: ARG002
        """Return a message of this dialect as messages of OpenAI's."""
        return [message]

    def join(self, message: PromptMessage, sent: Sequence[PromptMessage]) -> PromptMessage:  # noqa: ARG002
        """Return the message with other texts; ``sent`` are the messages it was split into."""
        return sent[0]

    def block(self, text: str) -> Any:
        """Return one block of text."""
        return {"type": "text", "text": text}

    def with_system_text(self, document: dict[str, Any], text: str) -> dict[str, Any] | None:
        """Return the document with more text at the end of its system text; None: no place for it.

        Blocks of text stay as they are, and so do their marks for a provider's cache.
        """
        messages = document["messages"]
        place = 0
        while place < len(messages) and messages[place].get("role") in ("system", "developer"):
            place += 1
        if not place:
            first = {"role": "system", "content": text}
            return {**document, "messages": [first, *messages]}
        last = messages[place - 1]
        content = self._extended_system(last.get("content"), text)
        if content is None:
            return None
        extended = {**last, "content": content}
        return {**document, "messages": [*messages[: place - 1], extended, *messages[place:]]}

    def with_last_text(self, document: dict[str, Any], text: str) -> dict[str, Any] | None:
        """Return the document with more text at the end of its last message, or None."""
        *before, last = document[self.field]
        content = self._extended(last.get(self.content), text)
        if content is None:
            return None
        return {**document, self.field: [*before, {**last, self.content: content}]}

    def with_limit(self, document: dict[str, Any], tokens: int) -> dict[str, Any]:
        """Return the document with a limit on the answer.

        Providers that know the limit by another name have their quirks. A ``max_tokens`` below 0,
        which is no limit, is left out.
        """
        kept = {name: value for name, value in document.items() if name != "max_tokens"}
        return {**kept, "max_completion_tokens": tokens}

    def turn(self, role: str, text: str) -> PromptMessage:
        """Return a message of the user or of the model."""
        return {"role": role, "content": text}

    def with_turns(
        self, document: dict[str, Any], turns: Sequence[PromptMessage]
    ) -> dict[str, Any]:
        """Return the document with more messages at its end."""
        return {**document, self.field: [*document[self.field], *turns]}

    def with_tool(self, document: dict[str, Any], tool: dict[str, Any]) -> dict[str, Any]:
        """Return the document with one more tool, after the client's own tools."""
        return {**document, "tools": [*(document.get("tools") or ()), tool]}

    def answer_message(self, answer: dict[str, Any]) -> PromptMessage:
        """Return the body of an answer as the message that later requests hold."""
        message = answer["choices"][0]["message"]
        return {n: value for n, value in message.items() if value is not None or n == self.content}

    def before(
        self, results: Sequence[PromptMessage], following: PromptMessage
    ) -> list[PromptMessage]:
        """Return a message with more tool results before its own."""
        if not self.joins_results:
            return [*results, following]
        content = following.get(self.content)
        parts = content if isinstance(content, list) else [self.block(str(content))]
        before = [part for each in results for part in each[self.content]]
        return [{**following, self.content: [*before, *parts]}]

    def _extended_system(self, content: Any, text: str) -> Any:
        return text if not content and content is not False else self._extended(content, text)

    def _extended(self, content: Any, text: str) -> Any:
        """Return a text, in its own form, with more at its end; None for an unknown form."""
        if isinstance(content, str):
            return f"{content}\n\n{text}"
        return [*content, self.block(text)] if isinstance(content, list) else None

    # --- the work that a request asks for ----------------------------------------------------

    def answers_billed(self, request: ChatRequest) -> tuple[int | None, int]:
        """Return the most tokens of an answer (None: no limit), and how many are billed.

        OpenAI's API has two names of the limit, and many providers know only one of them. For some,
        a negative number is no limit.
        """
        if request.max_tokens is None:
            return None, request.choices
        named = [request.document.get(each) for each in ("max_tokens", "max_completion_tokens")]
        written = [each for each in named if type(each) is int]
        limits = [request.max_tokens, *written]
        return None if min(limits) < 0 else max(limits), request.choices

    def sampling(self, document: dict[str, Any]) -> dict[str, Any]:
        """Return the object that holds temperature and seed."""
        return document

    def work_beside_text(self, document: dict[str, Any]) -> str | None:
        """Return ``background``, ``audio`` or ``hosted-tools`` if the request asks for it."""
        if self.work_fields.isdisjoint(document):
            return None
        if document.get("background") is True:
            return "background"
        if document.get("audio") is not None or _wants_audio(self.modalities(document)):
            return "audio"
        if document.get("web_search_options") is not None or any(map(document.get, _HOSTED)):
            return "hosted-tools"
        search = document.get(_SEARCH)
        if isinstance(search, dict) and search.get("mode") != "off":
            return "hosted-tools"
        tools = document.get("tools")
        listed = tools if isinstance(tools, list) else ()
        hosted = any(isinstance(tool, dict) and self.is_hosted(tool) for tool in listed)
        return "hosted-tools" if hosted else None

    def modalities(self, document: dict[str, Any]) -> object:
        """Return the kinds of content that the answer may have."""
        return document.get("modalities")

    def is_hosted(self, tool: dict[str, Any]) -> bool:
        """Tell whether the provider runs this tool."""
        kind = tool.get("type", "function")
        return not (isinstance(kind, str) and kind in _OWN_TOOLS)

    def tool_names(self, document: dict[str, Any]) -> Mapping[str, tuple[str, str]]:
        """Return the namespace (or "") and the own name of tools, by their names elsewhere.

        Only tools are there whose names differ.
        """
        fields = (document.get("tools"), document.get("functions"))
        tools = [tool for field in fields if isinstance(field, list) for tool in field]
        names = [name for tool in tools for name in _names(tool)]
        return {short: ("", name) for name in names if (short := portable_name(name)) != name}

    def call_kinds(self, document: dict[str, Any]) -> Mapping[str, str]:
        """Return the kinds of calls that are no function calls, by their tools' names elsewhere.

        Other dialects have functions in place of such tools.
        """
        kinds: dict[str, str] = {}
        tools = document.get("tools")
        for tool in tools if isinstance(tools, list) else ():
            match tool:
                case {"type": "custom", "custom": {"name": str(name)}}:
                    kinds[portable_name(name)] = "custom"
        return kinds

    def has_tools(self, document: dict[str, Any]) -> bool:
        """Tell whether the model may call tools."""
        return bool(document.get("tools") or document.get("functions"))

    def forces_call(self, document: dict[str, Any]) -> bool:
        """Tell whether the answer has to call a tool."""
        match document.get("tool_choice") or document.get("function_call"):
            case {"type": "allowed_tools", "allowed_tools": {"mode": mode}} | {
                "type": "allowed_tools",
                "mode": mode,
            }:
                return bool(mode == "required")
            case {"type": kind}:  # "any" and "tool" are Anthropic's
                return kind in ("function", "custom", "any", "tool")
            case {"function": {"name": _}} | {"name": _} | "required" | "any":  # Mistral's "any"
                return True
            case _:
                return False

    def has_tool_results(self, document: dict[str, Any]) -> bool:
        """Tell whether the conversation holds the results of a tool."""
        return any(self._holds_result(each) for each in self._listed(document))

    def _holds_result(self, message: dict[str, Any]) -> bool:
        if str(message.get("role")) in _TOOL_ROLES:
            return True
        content = message.get(self.content)
        parts = content if isinstance(content, list) else ()
        return any(isinstance(part, dict) and self.tool_result in part for part in parts)

    def response_format(self, document: dict[str, Any]) -> object:
        """Return the form that the answer must have, as OpenAI's ``response_format``."""
        output = document.get("output_config")
        inner = output.get("format") if isinstance(output, dict) else None
        return inner or document.get("output_format") or document.get("response_format")

    def has_logprobs(self, answer: Completion, document: dict[str, Any]) -> bool:
        """Tell whether an answer kept as many log probabilities as the request asks for."""
        wanted = document.get("top_logprobs")
        if not isinstance(wanted, int):
            # Together and legacy servers give the number in logprobs itself
            number = document.get("logprobs")
            wanted = number if type(number) is int else 0
        return all(_alternatives(choice) >= wanted for choice in answer.choices)

    def continues_answer(self, document: dict[str, Any]) -> bool:
        """Tell whether the caller has begun the answer."""
        messages = self._listed(document)
        return bool(messages) and messages[-1].get("role") == self.assistant

    def opening(self, document: dict[str, Any]) -> list[Any]:
        """Return the part that all turns of a conversation share: system and first messages."""
        messages = document.get(self.field)
        listed = messages if isinstance(messages, list) else []
        for place, message in enumerate(listed):
            if isinstance(message, dict) and message.get("role") == "user":
                return [*self.system_fields(document), *listed[: place + 1]]
        return [*self.system_fields(document), *listed[:1]]

    def system_fields(self, document: dict[str, Any]) -> tuple[object, object]:
        """Return the system text outside the messages, which has one of two places."""
        return document.get("system"), None

    def _listed(self, document: dict[str, Any]) -> list[dict[str, Any]]:
        messages = document.get(self.field)
        if not isinstance(messages, list):
            return []
        return [each if isinstance(each, dict) else _NOTHING for each in messages]


def _names(tool: Any) -> Iterator[str]:
    """Yield the names of a tool; Gemini's may hold several functions."""
    match tool:
        case {"functionDeclarations": [*functions]} | {"function_declarations": [*functions]}:
            for each in functions:
                yield from _names(each)
        case {"function": {"name": str(name)}} | {"custom": {"name": str(name)}}:
            yield name
        case {"name": str(name)}:
            yield name


def add_part(split: list[PromptMessage], part: Any) -> None:
    """Add a part to the user's message that is being read, or begin one."""
    if not split or split[-1]["role"] != "user":
        split.append({"role": "user", "content": []})
    split[-1]["content"].append(part)


def as_tool_call(id: str, call: dict[str, Any]) -> dict[str, Any]:
    arguments = msgspec.json.encode(call.get("input", call.get("args"))).decode()
    return {"id": id, "function": {"name": call["name"], "arguments": arguments}}


def _wants_audio(modalities: object) -> bool:
    return isinstance(modalities, list) and ("audio" in modalities or "AUDIO" in modalities)


def _alternatives(choice: Choice) -> int:
    """Return the number of alternatives that a choice kept for each token; -1: it has none."""
    tokens = (choice.logprobs or {}).get("content")
    if not isinstance(tokens, list):
        return -1
    return max(map(_count_alternatives, tokens), default=0)


def _count_alternatives(token: object) -> int:
    found = token.get("top_logprobs") if isinstance(token, dict) else None
    return len(found) if isinstance(found, list) else 0


def turns_of(
    messages: Iterable[Message], write: Callable[[Message], list[dict[str, Any]]]
) -> tuple[list[dict[str, Any]], list[tuple[str, list[dict[str, Any]]]]]:
    """Return the content of system messages, and turns, each with its role and its content.

    ``write`` returns the content of a message. Neighbouring messages of one role become one turn.
    If there are no other messages, those of the system become the user's: APIs with a place of its
    own for system text refuse it alone.
    """
    system: list[dict[str, Any]] = []
    turns: list[tuple[str, list[dict[str, Any]]]] = []
    for message in messages:
        content = write(message)
        role = "assistant" if message.role == "assistant" else "user"
        if message.role in ("system", "developer"):
            system += content
        elif turns and turns[-1][0] == role:
            turns[-1][1].extend(content)
        elif content:
            turns.append((role, content))
    return (system, turns) if turns else ([], [("user", system)])


# --- marks for the provider's prompt cache --------------------------------------------------------

CACHE_POINT = "cachePoint"
"""Name of Bedrock's block. Some models refuse it."""
SIGNS = (b'"cache_control"', b'"cachePoint"')
"""Names in a request whose client sets its own marks."""
MARKED, KEYED = "cache-marks", "cache-key"
"""The transforms of requests that got marks or a key."""
KEY_SIGNS = (b'"prompt_cache_',)
"""The same for OpenAI. All of its fields begin with this text."""


class _Turn(msgspec.Struct):
    role: str = ""


def mark_anthropic(body: bytes, marks: CacheMarks) -> bytes | None:
    """Return the body of a Messages request with these marks.

    None if there is no place for them.
    """
    return _mark_prompt(body, marks, "tools", _with_marked_tool, _with_marked_block)


def mark_bedrock(body: bytes, marks: CacheMarks) -> bytes | None:
    """Return the body of a Converse request with these marks.

    None if there is no place for them.
    """
    return _mark_prompt(body, marks, "toolConfig", _with_tools_point, _with_point)


def _mark_prompt(
    body: bytes, marks: CacheMarks, tools_field: str, mark_tools: _Mark, mark_blocks: _Mark
) -> bytes | None:
    """Return the body with marks in its tools and in its lists of blocks, or None."""
    members = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    changed = False
    if marks.shared:
        changed |= _replace(members, tools_field, mark_tools)
        changed |= _replace(members, "system", mark_blocks)
    changed |= _mark_turns(members, marks, mark_blocks)
    return msgspec.json.encode(members) if changed else None


def add_cache_key(body: bytes, marks: CacheMarks) -> bytes | None:
    """Return the body of a request in OpenAI's dialects with the conversation's key, if any."""
    if not marks.key:
        return None
    members = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    members["prompt_cache_key"] = msgspec.Raw(msgspec.json.encode(marks.key))
    return msgspec.json.encode(members)


def _replace(members: _Members, name: str, mark: _Mark) -> bool:
    """Put a mark at the end of a member, if the request has this member and it can take a mark."""
    if name not in members:
        return False
    marked = mark(msgspec.json.decode(members[name]))
    if marked is None:
        return False
    members[name] = msgspec.Raw(msgspec.json.encode(marked))
    return True


def _mark_turns(members: _Members, marks: CacheMarks, mark: _Mark) -> bool:
    """Put marks after the last message, and after the last message of the previous request."""
    if not (marks.last or marks.previous) or "messages" not in members:
        return False
    turns = msgspec.json.decode(members["messages"], type=list[msgspec.Raw])
    roles = [msgspec.json.decode(turn, type=_Turn).role for turn in turns]
    asked = [number for number, role in enumerate(roles) if role != "assistant"]
    if not asked:
        return False
    answered = [number for number in range(asked[-1]) if roles[number] == "assistant"]
    places = asked[-1:] if marks.last else []
    if marks.previous and answered and answered[-1] > 0:
        places.append(answered[-1] - 1)
    changed = False
    for place in places:
        turn = msgspec.json.decode(turns[place], type=dict[str, msgspec.Raw])
        if _replace(turn, "content", mark):
            turns[place] = msgspec.Raw(msgspec.json.encode(turn))
            changed = True
    if changed:
        members["messages"] = msgspec.Raw(msgspec.json.encode(turns))
    return changed


# --- Anthropic -------------------------------------------------------------------------------

_UNMARKED = frozenset({"thinking", "redacted_thinking"})
_EPHEMERAL = {"cache_control": {"type": "ephemeral"}}


def _with_marked_block(content: Any) -> Any:
    """Mark the last block that can take a mark. Thinking and empty texts cannot."""
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list):
        return None
    for place in range(len(content) - 1, -1, -1):
        block = content[place]
        empty = block.get("type") == "text" and not str(block.get("text", "")).strip()
        if not empty and block.get("type") not in _UNMARKED:
            return [*content[:place], block | _EPHEMERAL, *content[place + 1 :]]
    return None


def _with_marked_tool(tools: Any) -> Any:
    """Mark the last tool. A tool that is loaded later is not part of the prefix."""
    if not tools or tools[-1].get("defer_loading"):
        return None
    return [*tools[:-1], tools[-1] | _EPHEMERAL]


# --- Bedrock ---------------------------------------------------------------------------------

_POINT = {CACHE_POINT: {"type": "default"}}


def _with_point(blocks: Any) -> Any:
    return [*blocks, _POINT] if blocks else None


def _with_tools_point(config: Any) -> Any:
    tools = _with_point(config.get("tools"))
    return None if tools is None else {**config, "tools": tools}
