"""A scripted floe with two scripted engines, for tests of weight updates."""

from __future__ import annotations

from typing import Any

from floe import Client
from floe.weights import Push, WeightUpdateError, update_weights
from tests.stub import Reply, Stub

CHANGE = {"revision": 1, "engine_ids": ["e"], "done": ["n"], "pending": [], "problems": []}
BROKEN = Reply({"error": {"message": "worker died", "type": "internal", "code": 500}}, 500)
UNKNOWN = Reply({"detail": "Not Found"}, 404)


class World:
    """floe and two engines, whose calls are recorded in one list."""

    def __init__(self, engine_routes: dict[str, Any]) -> None:
        self.calls: list[str] = []
        self.floe = Stub(
            {
                "GET /engines": {"policy_version": "v6", "engines": []},
                "POST /engines/pause": CHANGE,
                "POST /engines/version": CHANGE,
                "POST /engines/resume": CHANGE,
            }
        )
        self.engines = [Stub(dict(engine_routes)), Stub(dict(engine_routes))]

    def __enter__(self) -> World:
        for stub in (self.floe, *self.engines):
            stub.__enter__()
        return self

    def __exit__(self, *_: Any) -> None:
        for stub in (self.floe, *self.engines):
            stub.__exit__()

    @property
    def urls(self) -> list[str]:
        return [engine.url for engine in self.engines]

    def update(self, push: Push, **options: Any) -> None:
        with Client(self.floe.url, retry_seconds=0) as client:
            update_weights(client, push, "v7", pause=lambda _: None, **options)

    def failure(self, push: Push, **options: Any) -> WeightUpdateError:
        try:
            self.update(push, **options)
        except WeightUpdateError as raised:
            return raised
        raise AssertionError("the update did not fail")

    @property
    def changes(self) -> list[str]:
        """The calls that floe got, without reading."""
        return [line.removeprefix("POST /engines/") for line in self.floe.lines if line.startswith("POST")]


RELOAD = {
    "POST /collective_rpc": {"results": [None]},
    "POST /reset_prefix_cache": Reply(b""),
    "POST /update_weight_version": {},
}
TRANSFER = {
    "POST /init_weight_transfer_engine": {},
    "POST /start_weight_update": {},
    "POST /update_weights": {},
    "POST /finish_weight_update": {},
    "POST /reset_prefix_cache": Reply(b""),
}
