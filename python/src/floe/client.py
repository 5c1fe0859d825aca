"""The synchronous client of the rollout server."""

from __future__ import annotations

import os
import ssl
import uuid
from types import TracebackType
from typing import Callable, Iterator, cast
from urllib.parse import quote, urlsplit

from .api_types import (
    AttemptView,
    RolloutStatus,
    SessionResult,
    SessionView,
    SubmitReply,
    TaskRequest,
    TaskState,
    TaskStatus,
    TaskSummary,
    Trajectory,
)
from .batches import BatchCalls
from .connection import Connection, parse_json
from .engines import EngineCalls
from .errors import FloeError, unreachable

_DEFAULT_URL = "http://127.0.0.1:8080"
#: How long the server is asked to hold a request for results while there are none, in seconds.
_RESULTS_WAIT = 30.0
#: Seconds in addition to `timeout` for the largest archive of artifacts.
_ARCHIVE_SECONDS = 256.0


class Client(EngineCalls, BatchCalls):
    """
    Calls the rollout server. Every method raises FloeError. A call is repeated for `retry_seconds` after a transient failure: the server
    restarts, a limit is reached (429, with its Retry-After), its store is unavailable. Every call may be repeated safely. A client may be
    used by several threads.

    `url`: address of the server, or the comma-separated addresses of its replicas; default: FLOE_URL, else http://127.0.0.1:8080.
    `token`: default: FLOE_TOKEN, else that of the floe home (FLOE_HOME, else ~/.floe) for servers of this machine. `timeout`: longest wait for a reply in seconds, in addition to the time that the server
    holds the request.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout: float = 30.0,
        retry_seconds: float = 60.0,
        context: ssl.SSLContext | None = None,
        pause: Callable[[float], None] | None = None,
    ) -> None:
        address = url or os.environ.get("FLOE_URL") or _DEFAULT_URL
        self._connection = Connection(
            address,
            token or os.environ.get("FLOE_TOKEN") or (_home_token if _is_local(address) else None),
            timeout=timeout,
            retry_seconds=retry_seconds,
            context=context,
            pause=pause,
        )

    def close(self) -> None:
        """Ends the running calls of all threads with an error. Later calls fail."""
        self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def submit(self, task: TaskRequest) -> SubmitReply:
        """Submits a task (docs/tasks.md). One without `task_id` and `idempotency_key` gets a key, so that a retry submits nothing twice."""
        named = task.get("task_id") is not None or task.get("idempotency_key") is not None
        body = task if named else {**task, "idempotency_key": f"client-{uuid.uuid4()}"}
        return cast(SubmitReply, self._connection.json("POST", "/rollout/task/submit", body=body))

    def task(self, task_id: str, *, wait: float = 0.0) -> TaskStatus:
        """Returns the state of a task. The server holds the call for at most `wait` seconds, up to 60, until the task has ended."""
        path = _path("/rollout/task", task_id)
        return cast(TaskStatus, self._connection.json("GET", path, query={"wait": wait or None}, wait=wait))

    def task_results(self, task_id: str) -> list[SessionResult]:
        """Returns the finished sessions of a task with their token data."""
        reply = self._connection.json("GET", _path("/rollout/task", task_id), query={"results": "full"})
        return cast("list[SessionResult]", reply["results"])

    def tasks(self, *, status: TaskState | None = None, limit: int | None = None) -> list[TaskSummary]:
        reply = self._connection.json("GET", "/tasks", query={"status": status, "limit": limit})
        return cast("list[TaskSummary]", reply["tasks"])

    def cancel(self, task_id: str, *, register_if_missing: bool = False) -> TaskStatus:
        """Cancels what has not ended. With `register_if_missing`, a task that is submitted later under this id is refused."""
        query = {"register_if_missing": register_if_missing or None}
        return cast(TaskStatus, self._connection.json("DELETE", _path("/rollout/task", task_id), query=query))

    def sessions(self, task_id: str) -> list[SessionView]:
        reply = self._connection.json("GET", f"{_path('/tasks', task_id)}/sessions")
        return cast("list[SessionView]", reply["sessions"])

    def session(self, session_id: str) -> SessionView:
        return cast(SessionView, self._connection.json("GET", _path("/sessions", session_id)))

    def cancel_session(self, session_id: str) -> SessionView:
        return cast(SessionView, self._connection.json("DELETE", _path("/sessions", session_id)))

    def attempts(self, session_id: str) -> list[AttemptView]:
        reply = self._connection.json("GET", f"{_path('/sessions', session_id)}/attempts")
        return cast("list[AttemptView]", reply["attempts"])

    def trajectory(self, session_id: str, *, attempt: int | None = None) -> Trajectory:
        """Returns the token data of a finished session. `attempt`: default is the one that ended the session."""
        path = f"{_path('/sessions', session_id)}/trajectory"
        return cast(Trajectory, self._connection.json("GET", path, query={"attempt": attempt}))

    def completions(self, session_id: str, *, attempt: int | None = None) -> bytes:
        path = f"{_path('/sessions', session_id)}/completions"
        return self._connection.fetch("GET", path, query={"attempt": attempt})[1]

    def artifacts(self, session_id: str, *, attempt: int | None = None) -> bytes:
        """Returns the files that the agent left, as a tar archive compressed with gzip."""
        path = f"{_path('/sessions', session_id)}/artifacts"
        return self._connection.fetch("GET", path, query={"attempt": attempt}, wait=_ARCHIVE_SECONDS)[1]

    def status(self) -> RolloutStatus:
        """Returns the counts, nodes and limits of the server."""
        return cast(RolloutStatus, self._connection.json("GET", "/rollout/status"))

    def results(
        self,
        *,
        after: int | None = None,
        consumer: str | None = None,
        trainer: str | None = None,
        peek: bool = False,
        follow: bool = True,
        page_size: int = 100,
    ) -> Iterator[SessionResult]:
        """
        Yields finished sessions with their token data, in the order of their cursors. Requesting the next one acknowledges those before
        it. After an error, continue with the same `consumer`, or with `after` set to the cursor of the last result that was handled: no
        result is lost, and the one that was being handled may be repeated. `follow`: whether to wait for further results.
        """
        wait = _RESULTS_WAIT if follow else 0.0
        with self._connection.scoped() as scope:
            budget = self._connection.budget(scope)
            while True:
                query = {
                    "after": after,
                    "limit": page_size,
                    "wait": wait,
                    "consumer": consumer,
                    "trainer": trainer,
                    "peek": peek or None,
                }
                read = 0
                try:
                    with self._connection.open(
                        scope, "GET", "/rollout/results", query=query, wait=wait, accept="application/x-ndjson"
                    ) as page:
                        for line in page:
                            if not line.endswith(b"\n"):
                                raise unreachable("GET /rollout/results: the reply ended within a line")
                            result = cast(SessionResult, parse_json(line, "GET /rollout/results"))
                            yield result
                            after = result.get("cursor", after)
                            read += 1
                            budget.reset()
                    budget.reset()
                except FloeError as error:
                    self._connection.check(scope)
                    budget.wait_after(error)
                    self._connection.check(scope)
                    continue
                if read == 0 and not follow:
                    return


def _path(folder: str, name: str) -> str:
    return f"{folder}/{quote(name, safe='')}"


def _is_local(url: str) -> bool:
    """Whether all replicas of `url` are on the loopback interface, so that their token may be that of this user's floe home."""
    return all(urlsplit(one.strip()).hostname in ("127.0.0.1", "localhost", "::1") for one in url.split(","))


def _home_token() -> str | None:
    """Returns the control token that `floe up` has written; None when there is none. Raises `setup_failed` when it cannot be read."""
    path = os.path.join(os.environ.get("FLOE_HOME") or os.path.expanduser("~/.floe"), "control-token")
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as thrown:
        raise FloeError("setup_failed", f"the control token {path} cannot be read: {thrown}") from thrown
