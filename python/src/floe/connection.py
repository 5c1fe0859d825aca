"""HTTP calls to the rollout server, with typed errors, retries and cancellation."""

from __future__ import annotations

import http.client
import json
import random
import socket
import ssl
import threading
import time
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Callable, Iterator, Mapping, Union
from urllib.parse import urlencode, urlsplit

from .errors import FloeError, error_of_reply, unreachable

Query = Mapping[str, Union[str, int, float, bool, None]]

#: The pauses between two tries of a call, in seconds. The longest is short, so that a restarted server is called within seconds.
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0
#: Longest time that opening a connection may take, in seconds. A replica that takes longer counts as down.
_CONNECT_SECONDS = 5.0
#: Longest text of a reply that is not floe's in an error message, in characters.
_EXCERPT = 200


class Scope:
    """The running call of one thread, which another thread can abort."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: http.client.HTTPConnection | None = None
        self._ended = threading.Event()

    @property
    def aborted(self) -> bool:
        return self._ended.is_set()

    def attach(self, connection: http.client.HTTPConnection | None) -> None:
        with self._lock:
            self._connection = connection
        if self.aborted:
            self.abort()

    def abort(self) -> None:
        """Ends the call with an error: closes its connection and ends the pause before its next try."""
        self._ended.set()
        with self._lock:
            connected = self._connection.sock if self._connection is not None else None
        if connected is not None:
            try:
                connected.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # The connection has ended on its own.

    def pause(self, seconds: float) -> None:
        self._ended.wait(seconds)


#: The scope in which the current thread makes its calls. The asynchronous client sets one for each of its calls.
current_scope: ContextVar[Scope | None] = ContextVar("floe_scope", default=None)


class RetryBudget:
    """Decides whether and when a failed call is repeated, until it has failed for `seconds` without a success in between."""

    def __init__(self, seconds: float, pause: Callable[[float], None]) -> None:
        self._seconds = seconds
        self._pause = pause
        self._failures = 0
        self._failing_since: float | None = None

    def reset(self) -> None:
        self._failures = 0
        self._failing_since = None

    def wait_after(self, error: FloeError) -> None:
        """Returns when the call should be repeated. Raises `error` when that cannot help or the time is used up."""
        # `internal` is retryable, but reports a defect, which the same call would very likely trigger too.
        if not error.retryable or error.code == "internal":
            raise error
        now = time.monotonic()
        self._failing_since = now if self._failing_since is None else self._failing_since
        left = self._failing_since + self._seconds - now
        if left <= 0:
            raise error
        longest = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**self._failures)
        self._failures = min(self._failures + 1, 10)
        pause = longest * random.uniform(0.5, 1)
        self._pause(min(left, max(pause, error.retry_after or 0)))


class Connection:
    """
    Makes calls to one server, or to several replicas: a call that one cannot serve is sent to the next. Thread-safe. `token` may be a
    function, which is called for each call that is sent.
    """

    def __init__(
        self,
        url: str,
        token: str | Callable[[], str | None] | None = None,
        *,
        timeout: float = 30.0,
        retry_seconds: float = 60.0,
        context: ssl.SSLContext | None = None,
        pause: Callable[[float], None] | None = None,
    ) -> None:
        self._servers = [_server(text.strip()) for text in url.split(",") if text.strip()]
        if not self._servers:
            raise FloeError("bad_request", "url: there is no URL")
        self._current = 0
        self._token = token
        self._timeout = timeout
        self._retry_seconds = retry_seconds
        self._context = context
        self._pause = pause
        self._closed = False
        self._running: set[Scope] = set()
        self._lock = threading.Lock()

    def close(self) -> None:
        """Ends every running call with an error. Later calls fail."""
        with self._lock:
            self._closed = True
            running = list(self._running)
        for scope in running:
            scope.abort()

    @contextmanager
    def scoped(self) -> Iterator[Scope]:
        """The scope of the calls that the block makes."""
        scope = current_scope.get() or Scope()
        with self._lock:
            if self._closed:
                raise FloeError("peer_unreachable", "the client was closed")
            self._running.add(scope)
        try:
            yield scope
        finally:
            with self._lock:
                self._running.discard(scope)

    def budget(self, scope: Scope) -> RetryBudget:
        return RetryBudget(self._retry_seconds, scope.pause if self._pause is None else self._pause)

    def json(self, method: str, path: str, *, query: Query | None = None, body: Any = None, wait: float = 0.0) -> Any:
        """Returns the JSON of the reply. The server may hold the call for `wait` seconds."""
        return parse_json(self.fetch(method, path, query=query, body=body, wait=wait)[1], f"{method} {path}")

    def fetch(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Any = None,
        wait: float = 0.0,
        accept: str = "application/json",
    ) -> tuple[Mapping[str, str], bytes]:
        """Returns the headers, with names in lower case, and the bytes of the reply. Repeats the call after a transient failure."""
        with self.scoped() as scope:
            budget = self.budget(scope)
            while True:
                try:
                    with self.open(scope, method, path, query=query, body=body, wait=wait, accept=accept) as reply:
                        return {name.lower(): value for name, value in reply.getheaders()}, reply.read()
                except FloeError as error:
                    self.check(scope)
                    budget.wait_after(error)
                    self.check(scope)

    def check(self, scope: Scope) -> None:
        if self._closed:
            raise FloeError("peer_unreachable", "the client was closed")
        if scope.aborted:
            raise FloeError("cancelled", "the call was cancelled")

    @contextmanager
    def open(
        self,
        scope: Scope,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Any = None,
        wait: float = 0.0,
        accept: str = "application/json",
    ) -> Iterator[http.client.HTTPResponse]:
        """Sends a call once and yields the reply while its connection is open. The time limit holds for each wait for bytes."""
        index = self._current
        secure, host, port, prefix = self._servers[index % len(self._servers)]
        connection = (
            http.client.HTTPSConnection(host, port, timeout=_CONNECT_SECONDS, context=self._context)
            if secure
            else http.client.HTTPConnection(host, port, timeout=_CONNECT_SECONDS)
        )
        headers = {"accept": accept, "connection": "close"}
        if body is not None:
            headers["content-type"] = "application/json"
        data = None if body is None else _encode(body, f"{method} {path}")
        sent = False
        try:
            connection.connect()
            sent = True
            connection.sock.settimeout(self._timeout + wait)
            scope.attach(connection)
            # Found after the connection is made: a server that has just started has then written its token.
            token = self._token() if callable(self._token) else self._token
            if token is not None:
                headers["authorization"] = f"Bearer {token}"
            connection.request(method, f"{prefix}{path}{_query_text(query)}", data, headers)
            reply = connection.getresponse()
            if reply.status >= 400:
                raise _error_of(reply)
            yield reply
        except (OSError, http.client.HTTPException) as thrown:
            self._current = index + 1
            reason = str(thrown) or type(thrown).__name__
            origin = f"http{'s' if secure else ''}://{host}" + (f":{port}" if port else "")
            raise unreachable(f"{method} {origin}{prefix}{path}: {reason}", sent=sent) from thrown
        except FloeError as error:
            if error.status == 503:
                self._current = index + 1
            raise
        finally:
            scope.attach(None)
            connection.close()


def _encode(body: Any, name: str) -> bytes:
    try:
        return json.dumps(body, allow_nan=False).encode()
    except (TypeError, ValueError) as thrown:
        raise FloeError("bad_request", f"the body of {name} cannot be written as JSON: {thrown}") from thrown


def parse_json(data: bytes, name: str) -> Any:
    """Parses a reply. Raises `malformed_json` with the beginning of a reply that is none, such as the page of a proxy."""
    try:
        return json.loads(data)
    except ValueError as thrown:
        excerpt = data[:_EXCERPT].decode("utf-8", "replace")
        raise FloeError("malformed_json", f"the reply of {name} is not JSON: {excerpt}") from thrown


def _error_of(reply: http.client.HTTPResponse) -> FloeError:
    data = reply.read()
    try:
        body = json.loads(data)
    except ValueError:
        body = None
    try:
        retry_after = max(0.0, float(reply.headers.get("retry-after", "")))
    except ValueError:
        retry_after = None
    return error_of_reply(reply.status, body, data[:_EXCERPT].decode("utf-8", "replace"), retry_after)


def _server(url: str) -> tuple[bool, str, int | None, str]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as thrown:
        raise FloeError("bad_request", f"url: {url!r} is not a URL: {thrown}") from thrown
    if parts.scheme not in ("http", "https") or host is None:
        raise FloeError("bad_request", f"url: {url!r} is not an http or https URL")
    return parts.scheme == "https", host, port, parts.path.rstrip("/")


def _query_text(query: Query | None) -> str:
    given = {name: _text(value) for name, value in (query or {}).items() if value is not None}
    return f"?{urlencode(given)}" if given else ""


def _text(value: str | int | float | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
