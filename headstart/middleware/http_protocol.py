"""The sidecar's own HTTP limits: what uvicorn's fast parser leaves open."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024


class BoundedHeadProtocol(HttpToolsProtocol):
    """Answers 400 and closes once a request's head exceeds ``MAX_HEAD_BYTES``.

    The parser collects headers without a bound, so a caller could fill the memory with them. The
    count is by reads: a head that arrives whole in one read is served, however long.
    """

    _in_head = False
    _head_bytes = 0

    def on_message_begin(self) -> None:
        """Begin to count."""
        super().on_message_begin()
        self._in_head = True
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        """Stop counting."""
        self._in_head = False
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Parse what arrived."""
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.send_400_response("The request's headers are too large.")
