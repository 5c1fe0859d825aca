"""
What a Python process in which plug-ins run shares with them. The process and its node call each other with JSON objects, one on each line,
over stdin and stdout.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import queue
import threading
from typing import Any, Callable, Dict, Mapping, Optional, Protocol

Json = Dict[str, Any]

#: Maximum number of characters of an error message.
_MAX_MESSAGE = 2_000


class NodeError(Exception):
    """The node could not do what code of an episode asked for: the error of a model call, or the end of the session."""

    def __init__(self, code: str, message: str, call: int) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        #: Number of the call that failed, by which the node recognises its own error.
        self.call = call


class Plugin(Protocol):
    """What a process serves."""

    #: Facts that the node gets when the plug-in is loaded.
    about: Json

    def call(self, method: str, episode: int, params: Json) -> Any:
        """Does something for an episode. Returns a JSON value, or an awaitable of one."""

    def end(self, episode: int) -> None:
        """Frees what an episode uses. Called once for each episode that has called something."""


class Setup:
    """What the node gives a process at its start."""

    def __init__(self, message: Mapping[str, Any]) -> None:
        #: What the operator has set for every instance.
        self.options: Json = dict(message.get("options") or {})
        #: Number of episodes whose code may run at the same time; None for all.
        self.threads: Optional[int] = message.get("threads", 1)
        #: Maximum length of a message to the node in bytes.
        self.max_message: int = message.get("max_message", 32 * 1024 * 1024)


class NodeConnection:
    """Sends calls to the node and receives its replies. Methods may be called in any thread."""

    def __init__(self, output: int, max_message: int) -> None:
        self._output = output
        self._max_message = max_message
        self._lock = threading.Lock()
        self._calls = 0
        self._waiting: Dict[int, tuple[int, "queue.SimpleQueue[Json]"]] = {}
        self._aborted: Dict[int, Json] = {}

    def send(self, message: Mapping[str, Any]) -> None:
        self.send_line(line_of(message))

    def send_line(self, line: str) -> None:
        data = line.encode("ascii") + b"\n"
        with self._lock:
            while data:
                data = data[os.write(self._output, data) :]

    def call(self, episode: int, method: str, params: Mapping[str, Any]) -> Any:
        """
        Lets the node do something for an episode, and waits for the result. Raises a NodeError, or a TypeError or ValueError for params that are
        not JSON or too large.
        """
        replies: "queue.SimpleQueue[Json]" = queue.SimpleQueue()
        with self._lock:
            self._calls += 1
            number = self._calls
        message = {"type": "call", "id": number, "episode": episode, "method": method, "params": dict(params)}
        line = limited_line(message, self._max_message, f"what {method} was called with")
        with self._lock:
            aborted = self._aborted.get(episode)
            if aborted is None:
                self._waiting[number] = (episode, replies)
        if aborted is not None:
            raise NodeError(aborted["code"], aborted["message"], 0)
        try:
            self.send_line(line)
            reply = replies.get()
        finally:
            with self._lock:
                self._waiting.pop(number, None)
        if reply["type"] == "error":
            raise NodeError(reply["code"], reply["message"], number)
        return reply["value"]

    def settle(self, reply: Json) -> None:
        with self._lock:
            waiting = self._waiting.get(reply["id"])
        if waiting is not None:
            waiting[1].put(reply)

    def abort(self, episode: int, error: Json) -> None:
        """Lets all calls of an episode fail, those that wait now and later ones."""
        with self._lock:
            self._aborted[episode] = error
            waiting = [replies for owner, replies in self._waiting.values() if owner == episode]
        for replies in waiting:
            replies.put({"type": "error", **error})

    def forget(self, episode: int) -> None:
        with self._lock:
            self._aborted.pop(episode, None)


def line_of(message: Mapping[str, Any]) -> str:
    """Returns a message as one line of ASCII. Raises TypeError, ValueError or RecursionError for what is not JSON."""
    return json.dumps(message, allow_nan=False)


def limited_line(message: Mapping[str, Any], max_bytes: int, what: str) -> str:
    """Returns a message as one line. Raises TypeError when it is not JSON and ValueError when it is too long; the errors call it `what`."""
    try:
        line = line_of(message)
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"{what} is not JSON: {error}") from error
    if len(line) > max_bytes:
        raise ValueError(f"{what} has {len(line)} bytes as JSON; the maximum is {max_bytes}")
    return line


def message_of(error: BaseException) -> str:
    """Returns the type and the text of an error, which may have a text that fails."""
    try:
        text = str(error)
    except Exception:
        text = ""
    return f"{type(error).__name__}: {text}"[:_MAX_MESSAGE] if text else type(error).__name__


_loops = threading.local()


def finished(value: Any) -> Any:
    """Waits for a value that is awaitable. All awaitables of a thread are run by one event loop."""
    if not inspect.isawaitable(value):
        return value
    if not hasattr(_loops, "loop"):
        _loops.loop = asyncio.new_event_loop()

    async def wait() -> Any:
        return await value

    return _loops.loop.run_until_complete(wait())


def imported(target: str) -> Any:
    """Imports what `module:name` or `module.name` names. Raises ImportError with the name of what is missing."""
    module_name, _, name = target.partition(":") if ":" in target else target.rpartition(".")
    if not module_name or not name:
        raise ImportError(f"{target!r} must have the form module:Class")
    value: Any = importlib.import_module(module_name)
    for part in name.split("."):
        if not hasattr(value, part):
            raise ImportError(f"module {module_name} has no {name}")
        value = getattr(value, part)
    return value
