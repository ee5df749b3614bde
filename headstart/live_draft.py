"""The Python client of live drafts: tells a Headstart server what is being typed."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec

from headstart.errors import HeadstartError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType
    from typing import Self

INTERVAL_S = 0.1


class LiveDraft:
    """One prompt that is being written; ``docs/live-drafts.md`` has an example.

    ``request`` is the body of the final call, with ``{{draft}}`` in the place of the text; ``url``
    is the server's address. ``headers`` are those of the final call that say who is calling, such
    as ``authorization``. Give ``write`` each state of the text: it never waits, and sends the last
    state at most every ``interval_s`` seconds. Then make the final call with ``call_headers``.

    Nothing that fails here is raised later than ``async with`` begins: the final call is then an
    ordinary one. Beginning raises HeadstartError.
    """

    def __init__(
        self,
        url: str,
        request: Mapping[str, Any],
        *,
        headers: Mapping[str, str] | None = None,
        path: str = "/v1/chat/completions",
        stages: Sequence[str] | None = None,
        budget_usd: float | None = None,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._url = url.rstrip("/").removesuffix("/v1") + "/v1/live"
        opening = {"request": request, "path": path, "stages": stages, "budget_usd": budget_usd}
        self._opening = {name: value for name, value in opening.items() if value is not None}
        self._headers = {**(headers or {}), "content-type": "application/json"}
        self._interval_s = interval_s
        self._text = ""
        self._news = asyncio.Event()
        self._session: aiohttp.ClientSession | None = None
        self._sending: asyncio.Task[None] | None = None
        self.state: dict[str, Any] = {}
        """What the server last said: ``rev``, ``cache``, ``warm``, ``answer``, ``spent_usd``."""

    @property
    def call_headers(self) -> dict[str, str]:
        """The header for the final call (``extra_headers`` of the SDKs)."""
        return {"x-headstart-live": self.state["id"]} if self.state else {}

    def write(self, text: str) -> None:
        """Tell the present text."""
        if text != self._text:
            self._text = text
            self._news.set()

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(headers=self._headers)
        try:
            body = msgspec.json.encode(self._opening)
            async with self._session.post(self._url, data=body) as response:
                answer = await response.read()
        except (aiohttp.ClientError, OSError) as error:
            await self._session.close()
            raise HeadstartError(f"the live draft did not begin: {error}") from error
        except BaseException:
            await self._session.close()
            raise
        if response.status != 201:
            await self._session.close()
            raise HeadstartError(f"the live draft was refused: {answer.decode(errors='replace')}")
        self.state = msgspec.json.decode(answer)
        self._sending = asyncio.create_task(self._send_all(self._session))  # noqa: TID251 - ended below
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the draft, if the final call has not taken it."""
        assert self._session is not None
        assert self._sending is not None
        self._sending.cancel()
        await asyncio.wait([self._sending])
        with contextlib.suppress(aiohttp.ClientError, OSError):
            async with self._session.delete(f"{self._url}/{self.state['id']}"):
                pass
        await self._session.close()

    async def _send_all(self, session: aiohttp.ClientSession) -> None:
        rev = 0
        while True:
            await self._news.wait()
            self._news.clear()
            rev += 1
            body = msgspec.json.encode({"rev": rev, "text": self._text})
            with contextlib.suppress(aiohttp.ClientError, OSError, msgspec.DecodeError):
                async with session.put(f"{self._url}/{self.state['id']}", data=body) as response:
                    if response.status == 202:
                        self.state = msgspec.json.decode(await response.read())
            await asyncio.sleep(self._interval_s)
