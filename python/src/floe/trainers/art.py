"""ART 0.5.23: batches of TrajectoryGroup for `backend.train`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Iterable, Iterator

from art import Trajectory, TrajectoryGroup
from art.trajectories import LegacyHistory
from openai.types.chat.chat_completion import Choice

from ..batches import Version
from ..client import Client
from ..api_types import Batch, Json


@dataclass(frozen=True)
class TrajectoryGroups:
    """A batch as ART trains it, with the facts of its groups."""

    groups: list[TrajectoryGroup]
    batch: Batch


def trajectory_groups(
    client: Client,
    batch_id: str,
    *,
    policy_version: Callable[[], Version] | None = None,
    after: int | None = None,
    **request: Any,
) -> Iterator[TrajectoryGroups]:
    """Yields the batches of a stream. Takes the arguments of Client.batches."""
    for batch in client.batches(batch_id, policy_version=policy_version, after=after, format="art", **request):
        yield TrajectoryGroups(grouped(batch["records"]), batch)


def grouped(records: Iterable[Json]) -> list[TrajectoryGroup]:
    """Returns records of the format `art` as groups: the samples of one task are those of one group."""
    groups: dict[str, list[Trajectory]] = {}
    for record in records:
        groups.setdefault(record["metadata"]["group_id"], []).append(trajectory(record))
    return [TrajectoryGroup(trajectories) for trajectories in groups.values()]


def trajectory(record: Json) -> Trajectory:
    """
    Returns a record of the format `art` as a Trajectory. Its choices become objects first: ART takes a dict in their place for a message, and
    trains nothing of it.
    """
    return Trajectory(
        messages_and_choices=_choices(record),
        additional_histories=[
            LegacyHistory(messages_and_choices=_choices(history)) for history in record["additional_histories"]
        ],
        reward=record["reward"],
        initial_policy_version=record["initial_policy_version"],
        final_policy_version=record["final_policy_version"],
        metrics=record["metrics"],
        metadata=record["metadata"],
    )


def _choices(history: Json) -> list[Choice]:
    return [Choice.model_validate(choice) for choice in history["messages_and_choices"]]
