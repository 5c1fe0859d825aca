"""slime 0.3: --rollout-function-path floe.trainers.slime.generate_rollout."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, List, Union

from slime.rollout.base_types import RolloutFnEvalOutput, RolloutFnTrainOutput
from slime.utils.types import Sample

from ..api_types import Batch, Json
from .experts import expert_array
from .settings import Settings
from .streams import StepStream, evaluation as evaluate

#: Fields of a record that are those of Sample with the same value.
_SAME = (
    "group_index",
    "index",
    "rollout_id",
    "prompt",
    "tokens",
    "multimodal_inputs",
    "response",
    "response_length",
    "reward",
    "loss_mask",
    "weight_versions",
    "rollout_log_probs",
    "remove_sample",
    "session_id",
    "metadata",
)
Nested = List[Union["Sample", List["Sample"]]]


@lru_cache(maxsize=1)
def _stream(path: str | None) -> tuple[StepStream, Settings]:
    settings = Settings.load(path)
    return StepStream(settings), settings


def generate_rollout(
    args: Any, rollout_id: int, data_source: Any, evaluation: bool = False
) -> RolloutFnTrainOutput | RolloutFnEvalOutput:
    """
    Returns `rollout_batch_size` groups of the batch stream that the settings describe; they are read from the file `args.floe_config`, which
    `--custom-config-path` may set, or FLOE_CONFIG. The data source of slime is not used. A rollout that is requested again is the same.
    """
    stream, settings = _stream(getattr(args, "floe_config", None))
    if evaluation:
        return _evaluation(stream, settings)
    batch = stream.batch(rollout_id, "slime", size=args.rollout_batch_size)
    progress = batch["progress"]
    metrics = {
        "floe/rejected_groups": sum(progress.get("rejected", {}).values()),
        "floe/running_groups": progress.get("running", 0),
    }
    return RolloutFnTrainOutput(samples=groups(batch), metrics=metrics)


def _evaluation(stream: StepStream, settings: Settings) -> RolloutFnEvalOutput:
    found = [sample(record) for batch in evaluate(stream.client, settings, "slime") for record in batch["records"]]
    data = {
        "rewards": [item.reward for item in found],
        "truncated": [item.status == Sample.Status.TRUNCATED for item in found],
        "samples": found,
    }
    return RolloutFnEvalOutput(data={"floe": data})


def groups(batch: Batch) -> list[Nested]:
    """Returns the samples of a batch by group. When a session has several traces, each session is a list of its own in the group."""
    nested: dict[int, dict[int, list[Sample]]] = {}
    for record in batch["records"]:
        sessions = nested.setdefault(record["group_index"], {})
        sessions.setdefault(record["rollout_id"], []).append(sample(record))
    # slime needs one depth for all samples of a batch.
    is_flat = all(len(traces) == 1 for sessions in nested.values() for traces in sessions.values())
    return [
        [traces[0] for traces in sessions.values()] if is_flat else list(sessions.values())
        for sessions in nested.values()
    ]


def sample(record: Json) -> Sample:
    """Returns a record of the format `slime` as a Sample."""
    fields = {name: record[name] for name in _SAME}
    experts = expert_array(record["rollout_routed_experts"])
    if experts is not None:
        import torch

        fields["rollout_routed_experts"] = torch.from_numpy(experts)
    return Sample(status=Sample.Status(record["status"]), **fields)
