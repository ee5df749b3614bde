"""Django sites in one process: its settings can be configured once, so each site overrides them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


@contextlib.contextmanager
def django_site(
    views: Mapping[str, Callable[..., Any]], middleware: Sequence[str] = (), **settings: Any
) -> Iterator[Any]:
    """Yield the ASGI app of a site with these views, by path."""
    from django.core.asgi import get_asgi_application
    from django.urls import path

    patterns = [path(name.removeprefix("/"), view) for name, view in views.items()]
    urls = type("urls", (), {"urlpatterns": patterns})
    with django_settings(ROOT_URLCONF=urls, MIDDLEWARE=list(middleware), **settings):
        yield get_asgi_application()


@contextlib.contextmanager
def django_settings(**settings: Any) -> Iterator[None]:
    """Run with these settings, whoever has configured Django before."""
    import django
    from django.conf import settings as configured
    from django.test.utils import override_settings

    if not configured.configured:
        configured.configure(ALLOWED_HOSTS=["*"], SECRET_KEY="test", ROOT_URLCONF=())
    django.setup()
    apps = ["django.contrib.auth", "django.contrib.contenttypes"]
    with override_settings(INSTALLED_APPS=apps, **settings):
        yield
