"""`python -m floe.serve_plugin KIND TARGET` serves an environment, a class of runners or a handler to the node that has started it."""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from typing import Any, Callable, Dict, List, Optional

from .handler import Handlers, handler_class
from .plugin_process import (
    Json,
    NodeConnection,
    NodeError,
    Plugin,
    Setup,
    finished,
    limited_line,
    line_of,
    message_of,
)
from .serve_env import Environments, create_function
from .serve_runner import Runners, runner_class

#: Time in seconds in which calls may end after the node has closed stdin.
_STOP_SECONDS = 5.0
_PR_SET_PDEATHSIG = 1


def _load(kind: str, target: str, setup: Setup, node: NodeConnection) -> Plugin:
    """Imports a plug-in. Raises ImportError for a target that is not of its kind, or what its module raises."""
    if kind == "environment":
        return Environments(create_function(target), setup)
    if kind == "runner":
        return Runners(runner_class(target), setup, node)
    return Handlers(handler_class(target), setup, node)


def serve(kind: str, target: str) -> None:
    """
    Serves a plug-in until the node closes stdin. When it cannot be imported, the node gets the reason and the process ends. What the plug-in
    prints goes to stderr, because stdout has the protocol.
    """
    _end_with_parent()
    stdin, stdout = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    lines = os.fdopen(stdin, "rb")
    setup = Setup(json.loads(lines.readline() or b"{}"))
    node = NodeConnection(stdout, setup.max_message)
    try:
        plugin = _load(kind, target, setup, node)
    except BaseException as error:
        traceback.print_exc()
        node.send({"type": "broken", "message": message_of(error)})
        os._exit(1)
    node.send({"type": "ready", "about": plugin.about})
    calls = _Calls(plugin, node, setup)
    threading.Thread(target=_read, args=(lines, node, calls), daemon=True).start()
    calls.run_in_main_thread()


def _read(lines: Any, node: NodeConnection, calls: "_Calls") -> None:
    """Takes the messages of the node. Ends the process when it cannot take one, because calls would then wait indefinitely."""
    try:
        for line in lines:
            message = json.loads(line)
            kind = message["type"]
            if kind == "call":
                calls.start(message)
            elif kind == "abort":
                node.abort(message["episode"], {"code": message["code"], "message": message["message"]})
            else:
                node.settle(message)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    calls.stop()
    time.sleep(_STOP_SECONDS)
    os._exit(0)


def _end_with_parent() -> None:
    """Lets Linux kill this process when its parent ends: code that holds the interpreter's lock would never notice the end of stdin."""
    if sys.platform != "linux":
        return
    try:
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (ImportError, OSError, AttributeError):
        # Some interpreters have no ctypes.
        pass


class _EpisodeThread(threading.Thread):
    """Runs the calls of one episode in their order, until it gets None instead of a call."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.work: "queue.SimpleQueue[Optional[Callable[[], None]]]" = queue.SimpleQueue()
        self.start()

    def run(self) -> None:
        while (work := self.work.get()) is not None:
            work()


class _Calls:
    """
    Runs calls of the node. The code of an episode always runs in one thread: with one thread for all it is the main thread, because some
    libraries work in no other one; otherwise each episode has a thread.
    """

    def __init__(self, plugin: Plugin, node: NodeConnection, setup: Setup) -> None:
        self._plugin = plugin
        self._node = node
        self._max_message = setup.max_message
        self._has_one_thread = setup.threads == 1
        self._main: "queue.SimpleQueue[Callable[[], None]]" = queue.SimpleQueue()
        self._threads: Dict[int, _EpisodeThread] = {}
        #: Threads of episodes that have ended, which may still free what they use.
        self._ending: List[_EpisodeThread] = []

    def run_in_main_thread(self) -> None:
        while True:
            self._main.get()()

    def stop(self) -> None:
        """Ends the process after the calls that wait for the main thread, and after the episodes that have ended have freed what they use."""
        self._main.put(self._end)

    def start(self, message: Json) -> None:
        episode: int = message["episode"]
        self._submit(episode, lambda: self._run(message))
        if message["method"] == "end" and episode in self._threads:
            thread = self._threads.pop(episode)
            thread.work.put(None)
            self._ending = [*(one for one in self._ending if one.is_alive()), thread]

    def _end(self) -> None:
        for thread in self._ending:
            thread.join()
        os._exit(0)

    def _submit(self, episode: int, work: Callable[[], None]) -> None:
        if self._has_one_thread:
            self._main.put(work)
            return
        if episode not in self._threads:
            self._threads[episode] = _EpisodeThread()
        self._threads[episode].work.put(work)

    def _run(self, message: Json) -> None:
        number = message["id"]
        try:
            value = self._do(message["method"], message["episode"], message["params"])
            result = {"type": "result", "id": number, "value": value}
            line = limited_line(result, self._max_message, "what it returned")
        except BaseException as error:
            node_error = _node_error_of(error)
            if node_error is None:
                traceback.print_exc()
            cause = None if node_error is None else node_error.call
            line = line_of({"type": "error", "id": number, "message": message_of(error), "cause": cause})
        self._node.send_line(line)

    def _do(self, method: str, episode: int, params: Json) -> Any:
        if method != "end":
            return finished(self._plugin.call(method, episode, params))
        try:
            self._plugin.end(episode)
        finally:
            self._node.forget(episode)


def _node_error_of(error: Optional[BaseException]) -> Optional[NodeError]:
    """Returns the error of the node during which an error was raised; None when it has another origin."""
    known: List[BaseException] = []
    # `raise error from error` makes an error its own cause.
    while error is not None and not any(error is one for one in known):
        if isinstance(error, NodeError):
            return error
        known.append(error)
        error = error.__cause__ or error.__context__
    return None


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m floe.serve_plugin KIND TARGET")
    serve(sys.argv[1], sys.argv[2])
