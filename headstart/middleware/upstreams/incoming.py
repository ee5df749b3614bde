"""What becomes of a provider's answer on its way to the client: it passes, or is rewritten."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headstart.attempts import Tokens
from headstart.errors import UpstreamProtocolError
from headstart.middleware.dialects.anthropic_messages import AnthropicMessages
from headstart.middleware.reading import (
    BodyReader,
    DocumentReader,
    FrameReader,
    is_event_stream,
    is_plain,
)
from headstart.middleware.reading_translated import DocumentTranslator, Folder, Naming, Reencoder
from headstart.middleware.translation import translate_headers, translate_status
from headstart.middleware.upstreams.headers import headers_down
from headstart.types import UsageReported

if TYPE_CHECKING:
    from headstart.middleware.dialects.dialect import Dialect, EventEncoder, UpstreamDialect
    from headstart.types import Call, ChatRequest, Headers


class Incoming(NamedTuple):
    """Who speaks what in a call. Without dialects its answer passes unread."""

    call: Call
    client: Dialect | None
    own: UpstreamDialect | None
    """The upstream's."""
    now: float
    """Unix seconds."""
    model: str = ""
    """As the upstream calls the one that was asked."""

    @property
    def translates(self) -> bool:
        """The answer is written in another dialect than it comes in."""
        return self.client is not self.own

    def status(self, status: int) -> int:
        """Return an answer's status for the client."""
        if self.client is None or not self.translates:
            return status
        return translate_status(status, self.client)

    def headers(self, status: int, headers: Headers, *, strip: bool) -> Headers:
        """Return an answer's headers for the client. ``strip``: its usage chunk is removed."""
        folds = self.call.fold and is_event_stream(headers)
        down = headers_down(headers, body_changed=strip)
        if self.client is None or self.own is None or not (self.translates or folds):
            return down
        request = self.call.request
        streams = request is not None and request.stream and status < 400
        types = self.client.content_types
        content_type = types.stream if streams else types.json
        return translate_headers(down, self.own, self.client, content_type=content_type)

    def reader(self, status: int, headers: Headers, *, strip: bool) -> BodyReader:
        """Return the reader of an answer with these, as they came.

        Raises UpstreamProtocolError for an encoded body, unless it only passes: then it passes
        unread.
        """
        request = self.call.request
        if self.client is None or self.own is None or request is None:
            return BodyReader()
        if not is_plain(headers):
            if self.translates or self.call.fold:
                raise UpstreamProtocolError("the upstream compressed its answer against our wish")
            return BodyReader()
        streams = is_event_stream(headers)
        if self.translates:
            return self._translator(self.client, self.own, request, status, streams=streams)
        if streams and self.call.fold:
            return Folder(self.own, self.client, self._naming(self.client))
        if streams:
            return FrameReader(
                self.client, self.call.id, strip=strip, choices=max(1, request.choices)
            )
        return DocumentReader(self.client, status)

    def _translator(
        self,
        client: Dialect,
        own: UpstreamDialect,
        request: ChatRequest,
        status: int,
        *,
        streams: bool,
    ) -> BodyReader:
        naming = self._naming(client)
        if status >= 400:
            return DocumentTranslator(own, client, status, naming)
        if not request.stream:
            if streams:
                return Folder(own, client, naming)
            return DocumentTranslator(own, client, status, naming)
        encoder = self._encoder(client, request, naming)
        if streams:
            return Reencoder(own, client, naming, encoder)
        return DocumentTranslator(own, client, status, naming, encoder)

    def _naming(self, client: Dialect) -> Naming:
        request = self.call.request
        document = {} if request is None else request.document
        functions = bool(document.get("functions")) and not document.get("tools")
        return Naming(
            self.call.id,
            client.new_id(),
            int(self.now),
            functions,
            self.call.prompt_tokens,
            shows_reasoning=request is None or client.shows_reasoning(request),
            model=self.model,
            choices=1 if request is None else max(1, request.choices),
        )

    def _encoder(self, client: Dialect, request: ChatRequest, naming: Naming) -> EventEncoder:
        encoder = client.encoder(
            naming.answer_id, naming.created, include_usage=request.include_usage
        )
        if client.name == AnthropicMessages.name:
            # Its streams begin with the prompt's length, which others tell at their end.
            estimate = client.usage(Tokens(prompt=self.call.prompt_tokens))
            encoder.feed((UsageReported(usage=estimate),))
        return encoder
