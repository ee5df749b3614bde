"""A whole sidecar in a thread, for tests with a browser or with a command."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from typing import TYPE_CHECKING, Any

from headstart.config.loading import load_settings
from headstart.sidecar import build_sidecar
from support.patience import PATIENCE_S, wait_for
from support.scripted import ScriptedUpstream
from support.serving import serving_in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Remote:
    """A running sidecar, asked over HTTP alone."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self._token = token

    def ask(self, prompt: str, *, tags: str = "", key: str = "key") -> str:
        """Send a prompt and return its request's id."""
        body = {"model": "m", "messages": [{"role": "user", "content": prompt}]}
        _, headers = self._send("/v1/chat/completions", body, key, tags)
        return str(headers["x-headstart-request-id"])

    def ask_first(self, prompt: str) -> str:
        """Send a prompt, and wait until later prompts can find its answer by meaning."""
        id = self.ask(prompt)
        self.until(lambda: self.admin("stats")["now"]["partitions"] == 1)
        return id

    def admin(self, path: str) -> Any:
        answer, _ = self._send(f"/_headstart/{path}", None, self._token)
        return answer

    def until(self, condition: Callable[[], bool]) -> None:
        """Ask again until a condition holds."""
        wait_for(condition)

    def _send(self, path: str, body: Any, key: str, tags: str = "") -> tuple[Any, Any]:
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        if tags:
            headers["x-headstart-tags"] = tags
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers)
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            return json.load(response), response.headers


@contextlib.contextmanager
def remote(
    answer: str = "An answer.", *, token_env: str | None = None, token: str = "", **cache: Any
) -> Iterator[Remote]:
    """Run a sidecar whose provider always gives the same answer. Nothing is audited."""
    provider = ScriptedUpstream()
    provider.words = [answer]
    with serving_in_thread(provider) as upstream:
        settings = {
            "cache.store": "memory:",
            "cache.audit.mode": "off",
            **({} if "match" in cache else {"cache.cold_start": "optimistic"}),
            "encoder.max_wait_ms": 20_000.0,
            "learning.cpu_share": 1.0,
            "server.admin_token_env": token_env,
            "upstream": [{"name": "sim", "base_url": upstream + "/v1"}],
            **{f"cache.{name}": value for name, value in cache.items()},
        }
        with serving_in_thread(build_sidecar(load_settings(None, {}, settings))) as url:
            yield Remote(url, token)
