"""An HTTP server for tests that answers each call with the next reply of a script, and records the calls."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable, TypeVar
from urllib.parse import parse_qsl, urlsplit


@dataclass
class Call:
    method: str
    path: str
    query: dict[str, str]
    body: Any
    headers: dict[str, str]

    @property
    def line(self) -> str:
        return f"{self.method} {self.path}"


@dataclass
class Reply:
    body: Any = field(default_factory=dict)
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    #: Close the connection after this many bytes of the body; None sends all of it.
    cut: int | None = None


def error(
    code: str, status: int, *, retryable: bool = False, headers: dict[str, str] | None = None, **details: Any
) -> Reply:
    body = {"error": {"code": code, "message": f"the message of {code}", "details": details, "retryable": retryable}}
    return Reply(body, status, headers or {})


#: Closes the connection without a reply.
HANG_UP = Reply(cut=-1)


S = TypeVar("S", bound="Stub")


class Stub:
    """Answers a call of "METHOD /path" with `routes[line]`: a reply, a list of replies whose last one stays, or a function of the call."""

    def __init__(self, routes: dict[str, Any] | None = None) -> None:
        self.routes: dict[str, Any] = routes or {}
        self.calls: list[Call] = []
        #: The reply to calls without a route; None for 404.
        self.fallback: Reply | None = None
        self.arrived = threading.Condition()
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def answer(self) -> None:
                address = urlsplit(self.path)
                size = int(self.headers.get("content-length") or 0)
                data = self.rfile.read(size)
                call = Call(
                    self.command,
                    address.path,
                    dict(parse_qsl(address.query)),
                    json.loads(data) if data else None,
                    {name.lower(): value for name, value in self.headers.items()},
                )
                reply = stub.reply_to(call)
                if reply.cut == -1:
                    self.close_connection = True
                    return
                body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.close_connection = True
                try:
                    self.wfile.write(body if reply.cut is None else body[: reply.cut])
                except OSError:
                    pass  # The client has closed the connection.

            do_GET = do_POST = do_DELETE = answer

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def lines(self) -> list[str]:
        return [call.line for call in self.calls]

    def reply_to(self, call: Call) -> Reply:
        with self.arrived:
            self.calls.append(call)
            self.arrived.notify_all()
            route = self.routes.get(call.line, self.fallback or error("not_found", 404, route=call.line))
            if isinstance(route, list):
                route = route.pop(0) if len(route) > 1 else route[0]
        answered = route(call) if callable(route) else route
        return answered if isinstance(answered, Reply) else Reply(answered)

    def wait_for(self, line: str, count: int = 1) -> None:
        """Returns when the server has received `count` calls of `line`."""
        with self.arrived:
            if not self.arrived.wait_for(lambda: self.lines.count(line) >= count, timeout=30):
                raise TimeoutError(f"{line} was not called {count} times: {self.lines}")

    def __enter__(self: S) -> S:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._server.shutdown()
        self._server.server_close()


Route = Callable[[Call], Any]


def held(release: threading.Event, reply: Any) -> Route:
    """A route that answers when `release` is set."""

    def answer(_: Call) -> Any:
        release.wait(30)
        return reply

    return answer
