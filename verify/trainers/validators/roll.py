"""Reads the format `roll` as ROLL does.

Written from ROLL, commit 8eb27cc2: `TrajEnvManager.formulate_rollouts` in `roll/pipeline/agentic/env_manager/traj_env_manager.py` (what a
row of `DataProto` is: padding on the right, positions, the score on the last token before the padding, `infer_logprobs` without its first
entry), `ActorWorker.loss_func` in `roll/pipeline/agentic/agentic_actor_worker.py` (which uses `response_mask[:, 1:]` with them) and
`compute_response_level_rewards` in `roll/pipeline/agentic/utils.py` (the reward of a row is the sum of its scores; rows are grouped by
`traj_group_id`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from _ground_truth import (
    Record,
    Refused,
    Sequence,
    Trace,
    Validator,
    each,
    float32,
    pairs_one_to_one,
    replace_modules,
    require_length,
    run,
    use_source,
)

COLUMNS = ["attention_mask", "position_ids", "response_mask", "prompt_mask", "scores"]


def read(records: list[Record]) -> Iterable[Sequence | Refused]:
    return each(records, sequence_of)


def sequence_of(record: Record) -> Sequence:
    padded = len(record["input_ids"])
    for name in COLUMNS:
        require_length(name, record[name], padded)
    require_length("infer_logprobs", record["infer_logprobs"], padded - 1)
    used = sum(record["attention_mask"])
    if record["attention_mask"] != [1] * used + [0] * (padded - used):
        raise Refused("the padding is not on the right")
    if len(set(record["input_ids"][used:])) > 1:
        raise Refused("the padding has several ids")
    if record["position_ids"] != list(range(used)) + [0] * (padded - used):
        raise Refused("position_ids do not count the tokens, or are not 0 in the padding")
    if any(record["response_mask"][used:]):
        raise Refused("the response_mask covers padding")
    first = record["response_mask"].index(True)
    if record["prompt_mask"] != [at < first for at in range(padded)]:
        raise Refused("prompt_mask is not what comes before the first trained token")
    scored = [at for at, score in enumerate(record["scores"]) if score != 0]
    if scored not in ([], [used - 1]):
        raise Refused(f"scores are at {scored}, and the last token before the padding is {used - 1}")
    # Entry i of these columns is about token i + 1, like `response_mask[:, 1:]`. The first token is never trained.
    mask = [0] + [int(value) for value in record["response_mask"][1:]]
    if record["response_mask"][0]:
        raise Refused("the first token is in the response_mask, but has no logprob")
    advantages = record.get("advantages")
    if advantages is not None:
        require_length("advantages", advantages, padded - 1)
        advantages = [0, *advantages][:used]
    return Sequence(
        ids=record["input_ids"][:used],
        mask=mask[:used],
        logprobs=[0, *record["infer_logprobs"]][:used],
        reward=float32(sum(record["scores"])),
        advantages=advantages,
    )


def expect(trace: Trace) -> Sequence:
    """ROLL keeps scores as float32."""
    reward = None if trace.reward is None else float32(trace.reward)
    return Sequence(trace.ids, trace.mask, trace.logprobs, reward=reward, advantages=trace.advantages)


def grouping(records: list[Record], traces: list[Trace]) -> Iterator[str]:
    yield from pairs_one_to_one("traj_group_id", (record["traj_group_id"] for record in records), traces, "group_id")
    yield from pairs_one_to_one("traj_id", (record["traj_id"] for record in records), traces, "session_id")
    yield from pairs_one_to_one("group_ids", (record["group_ids"] for record in records), traces, "group_id")
    widths = {len(record["input_ids"]) for record in records}
    if len(widths) > 1:
        yield f"rows have the lengths {sorted(widths)}, which cannot be one tensor"
    for record, trace in zip(records, traces):
        if record["episode_scores"] != trace.sample_reward:
            yield f"trace {trace.trace_id}: episode_scores is {record['episode_scores']} instead of {trace.sample_reward}"


def read_with_source(records: list[Record], source: Path) -> Iterable[Sequence | Refused]:
    """Makes one `DataProto` of all rows and reads them from it, grouped by `traj_id` as ROLL does. Needs torch, tensordict and ray."""
    use_source(source)
    # The protocol of `DataProto` uses none of them.
    replace_modules("codetiming", "omegaconf", "transfer_queue")
    import numpy as np
    import torch
    from roll.distributed.scheduler.protocol import DataProto

    kinds = {"scores": torch.float32, "infer_logprobs": torch.float32, "advantages": torch.float32, "response_mask": torch.bool, "prompt_mask": torch.bool}
    names = ["input_ids", *COLUMNS, "infer_logprobs", *(["advantages"] if "advantages" in records[0] else [])]
    tensors = {name: torch.tensor([record[name] for record in records], dtype=kinds.get(name, torch.int64)) for name in names}
    labels = {name: np.array([record[name] for record in records], dtype=object) for name in ("traj_id", "traj_group_id", "tags")}
    labels["row"] = np.arange(len(records)).astype(object)
    batch = DataProto.from_dict(tensors=tensors, non_tensors=labels)
    rows: dict[int, Record] = {}
    for group in batch.group_by(keys="traj_id").values():
        for at, number in enumerate(group.non_tensor_batch["row"]):
            rows[int(number)] = {name: tensor[at].tolist() for name, tensor in group.batch.items()}
    return each((rows[at] for at in range(len(records))), own)


def own(row: Record) -> Sequence:
    """Reads a row of the tensors as the loss does, which sees the columns after the first token only."""
    used = sum(row["attention_mask"])
    shifted = [int(value) for value in row["response_mask"][1:]]
    return Sequence(
        ids=row["input_ids"][:used],
        mask=[0, *shifted][:used],
        logprobs=[0, *row["infer_logprobs"]][:used],
        reward=float32(sum(row["scores"])),
        advantages=[0, *row["advantages"]][:used] if "advantages" in row else None,
    )


if __name__ == "__main__":
    run(Validator("ROLL", "8eb27cc", "roll", read, read_with_source, expect, has_untrained=False, grouping=grouping))
