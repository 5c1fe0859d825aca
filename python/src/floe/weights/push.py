"""The calls with which new weights get into engines."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from typing import Any, Callable, Literal, Protocol, Sequence

from ..connection import Connection
from ..errors import FloeError

#: `old` and `new`: the engine has these weights entirely. `mixed`: an update ended halfway, or its end is not known.
EngineState = Literal["old", "mixed", "new"]
PauseMode = Literal["keep", "abort"]


@dataclass(frozen=True)
class Step:
    """One call that every engine gets at the same time. The next step begins when all engines have replied."""

    path: str
    body: Any = None
    #: Whether the call changes weights, so that an engine on which it fails may have a mixture.
    changes: bool = False
    #: Runs while the engines handle the call, such as the trainer's side of a broadcast.
    during: Callable[[], None] | None = None


class Push(Protocol):
    """A way to get weights into engines."""

    @property
    def urls(self) -> Sequence[str]:
        """Addresses of the engines, without /v1."""
        ...

    @property
    def api_key(self) -> str | None: ...

    def prepare(self) -> Sequence[Step]:
        """Steps before the pause. They leave the weights as they are."""
        ...

    def steps(self, version: str, mode: PauseMode) -> Sequence[Step]:
        """Steps during the pause. After the last one that changes weights, every engine has all new weights."""
        ...


class StepFailed(Exception):
    """A step failed on one engine or more, or in `during`."""

    def __init__(self, step: Step, errors: dict[str, BaseException]) -> None:
        super().__init__("; ".join(f"{where}{step.path}: {error}" for where, error in errors.items()))
        self.step = step
        self.errors = errors


class Engines:
    """The engines of a push, with what is known about their weights."""

    def __init__(self, push: Push, timeout: float, state: EngineState = "old") -> None:
        self._connections = {url: Connection(url, push.api_key, timeout=timeout, retry_seconds=0) for url in push.urls}
        self.states: dict[str, EngineState] = {url: state for url in push.urls}

    def run(self, steps: Sequence[Step]) -> None:
        """Makes the calls of all steps. Raises StepFailed when one fails; `states` then says what the engines have."""
        changing = [index for index, step in enumerate(steps) if step.changes]
        for index, step in enumerate(steps):
            self._call(step)
            if changing and index == changing[-1]:
                # In place, because the pause around the steps has the same dictionary.
                self.states.update({url: "new" for url in self.states})

    def _call(self, step: Step) -> None:
        errors: dict[str, BaseException] = {}

        def post(url: str, connection: Connection) -> None:
            before = self.states[url]
            try:
                if step.changes:
                    self.states[url] = "mixed"
                _check_reply(connection.fetch("POST", step.path, body={} if step.body is None else step.body)[1])
            except FloeError as error:
                if _refused(error):
                    self.states[url] = before
                errors[url] = error

        threads = [
            threading.Thread(target=post, args=(url, connection), name=f"push {url}", daemon=True)
            for url, connection in self._connections.items()
        ]
        for thread in threads:
            thread.start()
        if step.during is not None:
            try:
                step.during()
            except BaseException as thrown:
                # The engines wait for weights that will not come: their calls end now instead of after the time limit.
                for connection in self._connections.values():
                    connection.close()
                for thread in threads:
                    thread.join()
                if not isinstance(thrown, Exception):
                    raise
                raise StepFailed(step, {"the trainer's side of ": thrown}) from thrown
        for thread in threads:
            thread.join()
        if errors:
            raise StepFailed(step, errors)


def check_parts(parts: Sequence[Any]) -> None:
    """Raises `bad_request` for an update without parts, which would give the old weights a new version."""
    if not parts:
        raise FloeError("bad_request", "parts: there are none, so no weights would be sent")


def _check_reply(data: bytes) -> None:
    """Raises when a reply with status 200 reports a failure. Some routes reply with text, or with nothing."""
    try:
        reply = json.loads(data)
    except ValueError:
        return
    if isinstance(reply, dict) and reply.get("success") is False:
        raise FloeError("engine_error", str(reply.get("message") or "the engine reports a failure"))


def _refused(error: FloeError) -> bool:
    """Whether the call changed nothing: it was not received, or the engine does not know the route or refuses a field."""
    if error.code == "peer_unreachable" and error.details.get("sent") is False:
        return True
    if error.status is None or not 400 <= error.status < 500:
        return False
    # SGLang reports an update that failed halfway with 400 and `success`.
    reply = error.details.get("reply")
    return not (isinstance(reply, dict) and "success" in reply)
