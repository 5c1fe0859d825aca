"""Reads the format `slime` as slime does.

Written from slime 0.3.1, commit 624b824a: the class `Sample` with `_validate_response_metadata_lengths` in `slime/utils/types.py`,
`RolloutManager._convert_samples_to_train_data` in `slime/ray/rollout.py`, and `validate_rollout_id_annotated` in
`slime/observability/rollout_data_utils.py`. slime trains the last `response_length` of `tokens`; masks and logprobs cover these. It sets
the mask of a sample with `remove_sample` to 0, and divides the loss of a token by the trained tokens of all samples with its `rollout_id`.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from _ground_truth import (
    Record,
    Refused,
    Sequence,
    Trace,
    Validator,
    decoded,
    each,
    pairs_one_to_one,
    replace_modules,
    require_length,
    run,
    use_source,
)

STATUSES = {"pending", "completed", "truncated", "aborted", "failed"}


def read(records: list[Record]) -> Iterable[Sequence | Refused]:
    return each(records, sequence_of)


def sequence_of(record: Record) -> Sequence:
    length = record["response_length"]
    require_length("loss_mask", record["loss_mask"], length)
    require_length("rollout_log_probs", record["rollout_log_probs"], length)
    if record["status"] not in STATUSES:
        raise Refused(f"{record['status']} is no Sample.Status")
    context = [0] * (len(record["tokens"]) - length)
    return Sequence(
        ids=record["tokens"],
        mask=context + ([0] * length if record["remove_sample"] else record["loss_mask"]),
        logprobs=context + record["rollout_log_probs"],
        reward=record["reward"],
        advantages=advantages_of(record, context),
        versions=record["weight_versions"],
        experts=experts_of(record),
    )


def advantages_of(record: Record, context: list[int]) -> list[float] | None:
    """Returns the advantages, which `Sample.from_dict` keeps as an attribute for functions of the user."""
    advantages = record.get("advantages")
    return None if advantages is None else context + advantages


def experts_of(record: Record) -> list[int] | None:
    """Returns the experts, which slime wants for each token but the last."""
    experts = record["rollout_routed_experts"]
    if experts is None:
        return None
    rows, layers, per_token = experts["shape"]
    numbers = decoded(experts["data"], experts["dtype"])
    if experts["dtype"] != "int32" or rows != len(record["tokens"]) - 1 or len(numbers) != rows * layers * per_token:
        raise Refused(f"rollout_routed_experts are {experts['dtype']} {experts['shape']} for {len(record['tokens'])} tokens")
    return numbers


def expect(trace: Trace) -> Sequence:
    return Sequence(
        ids=trace.ids,
        mask=trace.mask,
        logprobs=trace.logprobs,
        reward=trace.reward,
        advantages=trace.advantages,
        versions=["unknown" if version is None else version for version in trace.versions],
        experts=trace.experts,
    )


def grouping(records: list[Record], traces: list[Trace]) -> Iterator[str]:
    yield from pairs_one_to_one("rollout_id", (record["rollout_id"] for record in records), traces, "session_id")
    yield from pairs_one_to_one("group_index", (record["group_index"] for record in records), traces, "group_id")
    yield from pairs_one_to_one("index", (record["index"] for record in records), traces, "trace_id")
    for record, trace in zip(records, traces):
        if record["remove_sample"] == trace.trained:
            yield f"trace {trace.trace_id}: remove_sample is {record['remove_sample']}"


def read_with_source(records: list[Record], source: Path) -> Iterable[Sequence | Refused]:
    """Lets slime's own `Sample` read the records and slime's `RolloutManager` make its training data of them. Needs torch and ray."""
    use_source(source)
    # These need a GPU or log, and the conversion of samples uses nothing of them.
    replace_modules("sglang", "sglang_router", "megatron", "mbridge", "memray", "wandb")
    import torch
    from slime.ray import rollout
    from slime.utils.types import Sample

    manager = getattr(rollout.RolloutManager, "__ray_metadata__", None)
    manager = rollout.RolloutManager if manager is None else manager.modified_class
    arguments = types.SimpleNamespace(advantage_estimator="ppo", rewards_normalization=False, reward_key=None, rollout_top_p=1.0)
    owner = types.SimpleNamespace(args=arguments, custom_convert_samples_to_train_data_func=None, custom_reward_post_process_func=None)
    owner._post_process_rewards = lambda samples: manager._post_process_rewards(owner, samples)

    samples = [Sample.from_dict(record) for record in records]
    rollouts: dict[int, list[Any]] = {}
    for sample in samples:
        rollouts.setdefault(sample.rollout_id, []).append(sample)
    rollout.validate_rollout_id_annotated([list(rollouts.values())])

    def own(record: Record) -> Sequence:
        sample = Sample.from_dict(record)
        sample._validate_response_metadata_lengths()
        experts = record["rollout_routed_experts"]
        if experts is not None:
            sample.rollout_routed_experts = torch.tensor(decoded(experts["data"], experts["dtype"])).reshape(experts["shape"])
            if experts["shape"][0] != len(sample.tokens) - 1:
                raise Refused(f"experts of {experts['shape'][0]} tokens for {len(sample.tokens)}")
        data = manager._convert_samples_to_train_data(owner, [sample])
        [tokens], [length], [mask] = data["tokens"], data["response_lengths"], data["loss_masks"]
        context = [0] * (len(tokens) - length)
        return Sequence(
            ids=tokens,
            mask=context + mask,
            logprobs=context + data["rollout_log_probs"][0],
            reward=data["rewards"][0],
            advantages=advantages_of(record, context),
            versions=sample.weight_versions,
            experts=None if experts is None else data["rollout_routed_experts"][0].flatten().tolist(),
        )

    return each(records, own)


if __name__ == "__main__":
    run(Validator("slime", "0.3.1 (624b824)", "slime", read, read_with_source, expect, has_untrained=True, grouping=grouping))
