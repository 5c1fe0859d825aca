"""The order of a weight update, and what remains when it fails."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import Callable, Iterator, Mapping

from ..client import Client
from ..errors import FloeError
from ..api_types import EngineChange
from .push import Engines, EngineState, PauseMode, Push, StepFailed

#: Pause between two checks of engines whose replies a pause does not stop, in seconds.
_CHECK_SECONDS = 0.5


class WeightUpdateError(FloeError):
    """
    An update of the weights failed. `state` is what the engines have: `old` and `new` weights entirely, or `mixed`. `engines` has the
    state of each engine by its address, where the push is floe's. `paused`: the engines are still paused; repeat the whole update, which
    overwrites all weights, or resume them yourself.
    """

    def __init__(
        self,
        message: str,
        *,
        state: EngineState,
        paused: bool,
        old_version: str | None,
        new_version: str,
        engines: Mapping[str, EngineState] | None = None,
    ) -> None:
        details = {
            "state": state,
            "paused": paused,
            "old_version": old_version,
            "new_version": new_version,
            "engines": dict(engines or {}),
        }
        super().__init__("engine_error", message, details, retryable=False)
        self.state: EngineState = state
        self.paused = paused
        self.engines: dict[str, EngineState] = dict(engines or {})


def engine_urls(client: Client, pool: str = "default") -> list[str]:
    """Returns the addresses of the engines of a pool that floe uses."""
    return [str(engine["base_url"]) for engine in client.engines()["engines"] if engine["pool"] == pool]


def update_weights(
    client: Client,
    push: Push,
    version: str,
    *,
    mode: PauseMode = "keep",
    drain_seconds: float = 60.0,
    timeout: float = 600.0,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """
    Pauses the engines, pushes the weights, names them `version` and resumes. Raises WeightUpdateError when a part fails. While all
    engines certainly have the old weights, they are resumed and keep the old version; otherwise they stay paused, and the error says
    which engine has what. Engines that are paused already may have a mixture, which an earlier update has left, so they are resumed only
    after a complete update. `timeout`: longest time of one call to an engine, in seconds. `drain_seconds`: see updating.
    """
    if not push.urls:
        raise FloeError("bad_request", "push.urls: there is no engine")
    old, was_paused = _before(client)
    engines = Engines(push, timeout, "mixed" if was_paused else "old")
    try:
        engines.run(push.prepare())
    except StepFailed as failed:
        reason = f"the update was not begun: {failed}"
        raise _failure(reason, _summary(engines.states), was_paused, old, version, engines.states) from failed
    with updating(client, version, mode=mode, drain_seconds=drain_seconds, pause=pause, states=engines.states):
        engines.run(push.steps(version, mode))


@contextmanager
def updating(
    client: Client,
    version: str,
    *,
    mode: PauseMode = "keep",
    drain_seconds: float = 60.0,
    pause: Callable[[float], None] = time.sleep,
    states: dict[str, EngineState] | None = None,
) -> Iterator[None]:
    """
    Pauses the engines for a block in which a trainer pushes weights in its own way, then names the weights `version` and resumes. When
    the block raises, the weights may be mixed and the engines stay paused. Replies that the pause does not stop get `drain_seconds` to
    end; if they do not, nothing is pushed, and the engines are resumed unless they were paused before.
    """
    old, was_paused = _before(client)
    try:
        _pause(client, mode, drain_seconds, pause)
    except BaseException as thrown:
        if was_paused and isinstance(thrown, FloeError):
            raise _failure(f"the engines could not be paused: {thrown}", "mixed", True, old, version, states) from thrown
        if not was_paused:
            _resume_old(client, f"the engines could not be paused: {thrown}", old, version, states, thrown)
        raise
    try:
        yield
    except BaseException as thrown:
        # Without states, the block was the trainer's: how far it came is not known.
        found = _summary(states)
        reason = f"{type(thrown).__name__}: {thrown}" if not isinstance(thrown, StepFailed) else str(thrown)
        if found == "old":
            _resume_old(client, reason, old, version, states, thrown)
        if not isinstance(thrown, Exception):
            raise
        raise _failure(reason, found, True, old, version, states) from thrown
    ending: list[tuple[str, bool, Callable[[], EngineChange]]] = [
        ("name the version", False, lambda: client.set_policy_version(version)),
        ("resume the engines", True, client.resume_engines),
    ]
    for name, is_named, finish in ending:
        try:
            change = finish()
        except FloeError as error:
            reason = f"could not {name}: {error}"
            raise _failure(reason, "new", True, old, version, states, is_named=is_named) from error
        if change["pending"]:
            reason = f"could not {name}: {_unconfirmed(change)}"
            raise _failure(reason, "new", not is_named, old, version, states, is_named=is_named)


def _before(client: Client) -> tuple[str | None, bool]:
    """Returns the policy version of the engines, and whether they are paused."""
    status = client.engines()
    return status["policy_version"], status.get("paused") is not None


def _unconfirmed(change: EngineChange) -> str:
    return f"the nodes {', '.join(change['pending'])} did not apply it in time"


def _pause(client: Client, mode: PauseMode, drain_seconds: float, pause: Callable[[float], None]) -> None:
    end = time.monotonic() + drain_seconds
    while True:
        change = client.pause_engines(mode)
        if not change["pending"] and not change["problems"]:
            return
        if time.monotonic() >= end:
            reasons = [f"{problem['engine_id']}: {problem['message']}" for problem in change["problems"]]
            reasons += [f"node {node} did not confirm the pause" for node in change["pending"]]
            raise FloeError("engine_error", "; ".join(reasons))
        pause(_CHECK_SECONDS)


def _resume_old(
    client: Client,
    reason: str,
    old: str | None,
    version: str,
    states: dict[str, EngineState] | None,
    cause: BaseException,
) -> None:
    """Resumes engines with the old weights, and raises the error of the update. Returns when `cause` is an interruption of the program."""
    paused = False
    try:
        change = client.resume_engines()
        if change["pending"]:
            reason, paused = f"{reason}; resuming failed too: {_unconfirmed(change)}", True
    except FloeError as error:
        reason, paused = f"{reason}; resuming failed too: {error}", True
    if isinstance(cause, Exception):
        raise _failure(reason, "old", paused, old, version, states) from cause


def _summary(states: dict[str, EngineState] | None) -> EngineState:
    if states is None:
        return "mixed"
    found = set(states.values())
    return found.pop() if len(found) == 1 else "mixed"


_CONSEQUENCES: dict[tuple[EngineState, bool], str] = {
    ("old", False): "All engines have the weights of {old} and are running.",
    ("old", True): "All engines have the weights of {old} and may be paused: resume them.",
    ("mixed", True): "The engines may have weights of both {old} and {new}, and stay paused: repeat the update.",
    ("new", True): "All engines have the weights of {new}, and stay paused under the version {old}: repeat the update.",
    ("new", False): "All engines have the weights of {new} under that version; repeat the resume.",
}

_NAMED_BUT_PAUSED = "All engines have the weights of {new} under that version, and may be paused: repeat the update or resume them."


def _failure(
    reason: str,
    state: EngineState,
    paused: bool,
    old: str | None,
    new: str,
    states: Mapping[str, EngineState] | None,
    *,
    is_named: bool = False,
) -> WeightUpdateError:
    consequence = _CONSEQUENCES.get((state, paused), _CONSEQUENCES["mixed", True])
    if is_named and paused:
        consequence = _NAMED_BUT_PAUSED
    named = consequence.format(old=old or "no named version", new=new)
    return WeightUpdateError(
        f"update of the weights to {new}: {reason}. {named}",
        state=state,
        paused=paused,
        old_version=old,
        new_version=new,
        engines=states,
    )
