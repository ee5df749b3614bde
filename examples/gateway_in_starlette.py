"""The provider gateway inside an app of your own, under ``/llm``.

    HEADSTART_UPSTREAM='[{"base_url": "https://api.openai.com/v1"}]' \\
        uvicorn examples.gateway_in_starlette:app

Then: ``OpenAI(base_url="http://127.0.0.1:8000/llm/v1")``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.routing import Mount

from headstart import gateway

llm = gateway(store="memory:")


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    """Mounted apps get no lifespan of their own: stop the gateway with ours."""
    yield
    await llm.aclose()


app = Starlette(routes=[Mount("/llm", app=llm)], lifespan=lifespan)
