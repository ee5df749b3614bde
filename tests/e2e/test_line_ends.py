"""Streams whose lines end with a carriage return alone, as server-sent events allow."""

from __future__ import annotations

import pytest

from support.proxied import proxied
from support.scripted import USAGE_CHUNK, ScriptedUpstream, chunk
from support.sdks import KEY, streamed_text

pytestmark = pytest.mark.anyio

PARTS = [chunk({"role": "assistant", "content": "Sky"}), chunk({"content": " blue."})]
STREAM = b"".join([*PARTS, chunk({}, "stop"), USAGE_CHUNK, b"data: [DONE]\n\n"])


@pytest.mark.parametrize("responses", [False, True], ids=["untouched", "translated"])
@pytest.mark.parametrize("end", [b"\r", b"\r\n"])
async def test_a_stream_is_read_to_its_end(responses: bool, end: bytes) -> None:
    provider = ScriptedUpstream()
    provider.headers = [(b"content-type", b"text/event-stream")]
    provider.body = STREAM.replace(b"\n", end)
    async with proxied(provider) as proxy:
        if responses or end != b"\r":  # OpenAI's own client does not take the others
            assert await streamed_text(proxy.url, responses=responses) == "Sky blue."
        else:
            body = {"model": "m", "messages": [{"role": "user", "content": "Sky?"}], "stream": True}
            headers = {"authorization": f"Bearer {KEY}"}
            async with proxy.session.post(
                proxy.url + "/v1/chat/completions", json=body, headers=headers
            ) as reply:
                # Nobody asked for the usage, so its event is left out.
                assert await reply.read() == provider.body.replace(
                    USAGE_CHUNK.replace(b"\n", end), b""
                )
        again = await streamed_text(proxy.url, responses=responses)
        assert again == "Sky blue."
    assert len(provider.calls) == 1
