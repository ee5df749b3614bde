"""What goes to a provider in a call's place: the client's own request, or one in its dialect."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import msgspec

from headstart.canonical_request import Quirks
from headstart.middleware.dialects.anthropic_messages import AnthropicMessages
from headstart.middleware.dialects.anthropic_thinking import may_hold_marks
from headstart.middleware.dialects.openai_chat import OpenAIChat
from headstart.middleware.dialects.request_quirks import apply_quirks
from headstart.middleware.upstreams.headers import headers_across, headers_up, query_up

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headstart.middleware.dialects.dialect import Dialect, UpstreamDialect
    from headstart.middleware.upstreams.options import HTTPOptions
    from headstart.types import Call, ChatRequest

_IN_PATH = re.compile(rb"(/models/)[^/:]+:(generateContent|streamGenerateContent)$")
"""Gemini's paths name the model and tell whether the answer streams."""
_WITH_MESSAGES = (OpenAIChat.name, AnthropicMessages.name)
_DEMANDED = {"anthropic-messages": {"anthropic-version": "2023-06-01"}}
"""By dialect, headers without which a provider refuses a request."""
_NOTHING: Mapping[str, str] = {}
_NO_QUIRKS = Quirks()


class Outgoing(NamedTuple):
    """A request as it goes out."""

    path: bytes
    query: bytes
    headers: list[tuple[str, str]]
    body: bytes
    transforms: tuple[str, ...] = ()
    """Names of the edits made to the client's request."""


def outgoing(
    call: Call, options: HTTPOptions, client: Dialect | None, own: UpstreamDialect | None
) -> Outgoing:
    """Return what to send. ``client`` is the call's dialect, ``own`` the provider's.

    Raises InvalidRequest for what the provider's dialect cannot express.
    """
    if client is None or own is None or call.request is None:
        headers = headers_up(call.headers, options.credential)
        query = query_up(call.query_string, options.credential)
        return Outgoing(call.path, query, _complete(headers, options), call.body)
    if client.name != own.name:
        return _translate(call, call.request, options, client, own)
    return _edit(call, call.request, options, client)


def _edit(call: Call, request: ChatRequest, options: HTTPOptions, own: Dialect) -> Outgoing:
    """Return the client's own request with the fewest edits."""
    headers = headers_up(call.headers, options.credential)
    if call.editable or call.fold:
        headers = [pair for pair in headers if pair[0] != "accept-encoding"]
        headers.append(("accept-encoding", "identity"))
    body, path = call.body, call.path
    query = query_up(call.query_string, options.credential)
    names: list[str] = []
    if own.name in _WITH_MESSAGES and (options.quirks != _NO_QUIRKS or may_hold_marks(body)):
        body, dropped = apply_quirks(body, request, options.quirks, own.name)
        names += (f"dropped:{name}" for name in dropped)
    members: dict[str, Any] = {}
    in_path = _IN_PATH.search(path)
    real = options.models.get(request.model, request.model)
    if real != request.model:
        names.append("model")
        if in_path:
            name = quote(real.removeprefix("models/"), safe="").encode()
            path = b"%b%b:%b" % (path[: in_path.end(1)], name, in_path[2])
        else:
            members["model"] = real
    if call.fold:
        names.append("fold")
        if in_path:
            path = path.replace(b":generateContent", b":streamGenerateContent")
            query = b"&".join(filter(None, (query, b"alt=sse")))
        else:
            members["stream"] = True
        request = msgspec.structs.replace(request, stream=True)
    if options.fields:
        members.update(options.fields)
        names.append("fields")
    body = _with_members(body, members)
    if options.include_usage and options.quirks.stream_usage and (call.editable or call.fold):
        with_usage = own.add_usage(body, request)
        if with_usage is not None:
            body = with_usage
            names.append("include-usage")
    return Outgoing(path, query, _complete(headers, options), body, tuple(names))


def _translate(
    call: Call, request: ChatRequest, options: HTTPOptions, client: Dialect, own: UpstreamDialect
) -> Outgoing:
    """Return the request in the provider's dialect."""
    asked = client.read_request(request)
    real = options.models.get(request.model, request.model)
    streams = asked.stream or call.fold
    asked = msgspec.structs.replace(
        asked, model=real, stream=streams, include_usage=streams and options.include_usage
    )
    written = own.write_request(asked, options.quirks)
    names = [f"translated:{own.name}"]
    names += ["model"] if real != request.model else []
    names += ["fold"] if call.fold else []
    names += ["fields"] if options.fields else []
    names += [f"dropped:{name}" for name in written.dropped]
    headers = headers_across(call.headers, call.query_string, options.credential, own.name)
    headers.append(("accept", "text/event-stream" if streams else "application/json"))
    body = _with_members(written.body, options.fields)
    headers = _complete(headers, options, _DEMANDED.get(own.name, _NOTHING))
    return Outgoing(written.path, written.query, headers, body, tuple(names))


def _with_members(body: bytes, members: Mapping[str, Any]) -> bytes:
    if not members:
        return body
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    fields.update(
        (name, msgspec.Raw(msgspec.json.encode(value))) for name, value in members.items()
    )
    return msgspec.json.encode(fields)


def _complete(
    headers: list[tuple[str, str]],
    options: HTTPOptions,
    demanded: Mapping[str, str] = _NOTHING,
) -> list[tuple[str, str]]:
    """Add the upstream's own headers, and its defaults where nothing of that name is there."""
    headers.extend(options.headers.items())
    if not (demanded or options.defaults):
        return headers
    named = {name.lower() for name, _ in headers}
    defaults = {**demanded, **options.defaults}
    headers.extend(pair for pair in defaults.items() if pair[0] not in named)
    return headers
