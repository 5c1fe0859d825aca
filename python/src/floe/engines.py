"""Calls that manage the engines of the server."""

from __future__ import annotations

from typing import Any, Literal, cast
from urllib.parse import quote

from .api_types import EngineChange, EngineSpec, EnginesStatus, PauseMode
from .connection import Connection, Query

#: Longest time that the server waits for its nodes to apply a change, in seconds; its own default.
_CHANGE_WAIT = 15.0


class EngineCalls:
    """The part of the client that manages engines. Each change returns when the healthy nodes have applied it, or after `wait`."""

    _connection: Connection

    def engines(self) -> EnginesStatus:
        return cast(EnginesStatus, self._connection.json("GET", "/engines"))

    def add_engine(self, spec: EngineSpec, *, replace: bool = False, wait: float = _CHANGE_WAIT) -> EngineChange:
        """Registers an engine with every node. Raises `conflict` when another one has the same id and `replace` is not set."""
        return self._change("POST", "/engines", wait, spec, {"replace": replace or None})

    def remove_engine(self, engine_id: str, *, wait: float = _CHANGE_WAIT) -> EngineChange:
        """Removes an engine. The nodes in `done` of the reply no longer call it."""
        return self._change("DELETE", f"/engines/{quote(engine_id, safe='')}", wait)

    def clear_engines(self, *, wait: float = _CHANGE_WAIT) -> EngineChange:
        return self._change("DELETE", "/engines", wait)

    def pause_engines(
        self,
        mode: PauseMode = "keep",
        *,
        while_paused: Literal["hold", "reject"] = "hold",
        wait: float = _CHANGE_WAIT,
    ) -> EngineChange:
        """Pauses the engines: running replies are frozen (`keep`) or interrupted (`abort`), new calls wait or get 429."""
        return self._change("POST", "/engines/pause", wait, {"mode": mode, "while_paused": while_paused})

    def resume_engines(self, *, wait: float = _CHANGE_WAIT) -> EngineChange:
        return self._change("POST", "/engines/resume", wait)

    def set_policy_version(self, version: str, *, wait: float = _CHANGE_WAIT) -> EngineChange:
        """Names the weights with which engines sample from now on, for engines that do not report a version themselves."""
        return self._change("POST", "/engines/version", wait, {"version": version})

    def _change(
        self, method: str, path: str, wait: float, body: Any = None, query: Query | None = None
    ) -> EngineChange:
        given = {**(query or {}), "wait": wait}
        return cast(EngineChange, self._connection.json(method, path, query=given, body=body, wait=wait))
