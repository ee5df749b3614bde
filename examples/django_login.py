"""Logins checked by a view's decorator: the cache is asked below it, in the view's own function.

    uvicorn examples.django_login:app

A real site has ``login_required`` and ``AuthenticationMiddleware``, and wraps the application in
its ``asgi.py``. This example is a single file, and accepts two tokens.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Awaitable, Callable

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path

from headstart import Endpoint, HeadstartMiddleware, after_checks

SESSIONS = {"token-of-ann": "ann", "token-of-bob": "bob"}
View = Callable[[HttpRequest], Awaitable[HttpResponse]]


def token_required(view: View) -> View:
    """Refuse unknown tokens."""

    @functools.wraps(view)
    async def checked(request: HttpRequest) -> HttpResponse:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token not in SESSIONS:
            return JsonResponse({"error": "log in first"}, status=401)
        return await view(request)

    return checked


@token_required
@after_checks
async def ask(request: HttpRequest) -> HttpResponse:
    """Answer slowly and expensively: call your model here."""
    return JsonResponse({"answer": f"You asked: {json.loads(request.body)['question']}"})


urlpatterns = [path("ask", ask)]
if not settings.configured:
    settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="x")  # noqa: S106

app = HeadstartMiddleware(
    get_asgi_application(),
    endpoints=[Endpoint("/ask", prompt="question", after_checks=True)],
)
