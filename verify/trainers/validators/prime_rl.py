"""Reads the format `prime_rl` as prime-rl does.

Written from prime-rl 0.8.0, commit 559b4477: the struct `TrainingSample` in `src/prime_rl/transports/rollouts/types.py`, whose values
travel as an array in the order of its fields, and `prepare_sample` in `src/prime_rl/trainer/batch.py`, which asserts that all columns have
the length of the ids and demands advantages for trained tokens. `shift_tensor_right` in `src/prime_rl/trainer/rl/train.py` gives the
trainer's logprobs to the tokens that they belong to, so entry i of each column is about token i.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from _ground_truth import Record, Refused, Sequence, Trace, Validator, decoded, each, replace_modules, require_length, run, use_source

FIELDS = [
    "token_ids",
    "mask",
    "logprobs",
    "temperatures",
    "env_name",
    "ref_logprobs",
    "mm_kwargs",
    "routed_experts",
    "mm_token_type_ids",
    "rl_weights",
    "ce_weights",
    "ref_kl_weights",
    "advantages",
]
COLUMNS = ["mask", "logprobs", "temperatures"]
OPTIONAL_COLUMNS = ["ref_logprobs", "mm_token_type_ids", "rl_weights", "ce_weights", "ref_kl_weights", "advantages"]


def read(records: list[Record]) -> Iterable[Sequence | Refused]:
    return each(records, sequence_of)


def sequence_of(record: Record) -> Sequence:
    if list(record) != FIELDS:
        raise Refused(f"the fields are {list(record)}, and their order is that of the array")
    length = len(record["token_ids"])
    for name in COLUMNS:
        require_length(name, record[name], length)
    for name in OPTIONAL_COLUMNS:
        if record[name] is not None:
            require_length(name, record[name], length)
    mask = [weighted(record, at) for at in range(length)]
    if record["advantages"] is None and any(mask):
        raise Refused("there are trained tokens and no advantages")
    if record["env_name"] == "all":
        raise Refused("the env_name all is reserved")
    if any(temperature <= 0 for temperature in record["temperatures"]):
        raise Refused("a temperature is not positive")
    return Sequence(
        ids=record["token_ids"],
        mask=mask,
        logprobs=record["logprobs"],
        advantages=record["advantages"],
        experts=experts_of(record["routed_experts"], length),
    )


def weighted(record: Record, at: int) -> int:
    """Returns 1 for a token of the policy-gradient loss: it is in the mask, which holds booleans, and its weight is not 0."""
    if not isinstance(record["mask"][at], bool):
        raise Refused(f"mask[{at}] is {record['mask'][at]!r} and no boolean")
    return int(record["mask"][at] and (record["rl_weights"] is None or record["rl_weights"][at] != 0))


def experts_of(experts: Any, length: int) -> list[int] | None:
    """Returns the experts of all tokens but the last, whose row is never used. prime-rl wants a row for each token."""
    if experts is None:
        return None
    rows, layers, per_token = experts["shape"]
    numbers = decoded(experts["data"], experts["dtype"])
    if rows != length or len(numbers) != rows * layers * per_token:
        raise Refused(f"routed_experts have the shape {experts['shape']} and {len(numbers)} values for {length} tokens")
    return numbers[: (rows - 1) * layers * per_token]


def expect(trace: Trace) -> Sequence:
    return Sequence(trace.ids, trace.mask, trace.logprobs, advantages=trace.advantages, experts=trace.experts)


def read_with_source(records: list[Record], source: Path) -> Iterable[Sequence | Refused]:
    """Lets prime-rl read the records from msgpack and pack them with `prepare_batch`. Needs msgspec and numpy."""
    use_source(source / "src", source / "packages" / "prime-rl-configs" / "src")
    # The transport over sockets, which packing does not use.
    replace_modules("zmq")
    import msgspec
    from prime_rl.trainer.batch import build_bin_cost, prepare_batch
    from prime_rl.transports.rollouts.types import TrainingSample

    def received(record: Record) -> Any:
        values = dict(record)
        if values["routed_experts"] is not None:
            experts = values["routed_experts"]
            values["routed_experts"] = [base64.b64decode(experts["data"]), experts["shape"], experts["dtype"]]
        return msgspec.msgpack.decode(msgspec.msgpack.encode(list(values.values())), type=TrainingSample)

    def own(record: Record) -> Sequence:
        sample = received(record)
        length = len(sample.token_ids)
        [[batch]] = prepare_batch([sample], length, 1, build_bin_cost(None), pad_to_multiple_of=8)
        experts = batch.routed_experts
        row = 0 if experts is None else len(experts.data) // experts.shape[0]
        return Sequence(
            ids=batch.input_ids[:length],
            mask=[int(value) for value in batch.loss_mask[:length]],
            logprobs=batch.inference_logprobs[:length],
            advantages=batch.advantages[:length],
            experts=None if experts is None else decoded(base64.b64encode(experts.data[: (length - 1) * row]).decode(), experts.dtype),
        )

    yield from each(records, own)
    # All together, so that prime-rl packs several samples into one batch and checks the result.
    longest = max(len(record["token_ids"]) for record in records)
    prepare_batch([received(record) for record in records], 2 * longest, 2, build_bin_cost(None), pad_to_multiple_of=8)


if __name__ == "__main__":
    run(Validator("prime-rl", "0.8.0 (559b447)", "prime_rl", read, read_with_source, expect, has_untrained=False))
