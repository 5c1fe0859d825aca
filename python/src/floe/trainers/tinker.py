"""Tinker 0.38: batches of Datum for TrainingClient.forward_backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Iterator

from tinker import types

from ..batches import Version
from ..client import Client
from ..api_types import AdvantageMethod, Batch, Json


@dataclass(frozen=True)
class Datums:
    """A batch as Tinker trains it, with the facts of its groups."""

    datums: list[types.Datum]
    batch: Batch


def datums(
    client: Client,
    batch_id: str,
    *,
    policy_version: Callable[[], Version] | None = None,
    after: int | None = None,
    advantages: AdvantageMethod = "grpo",
    per_session: bool = False,
    **request: Any,
) -> Iterator[Datums]:
    """Yields the batches of a stream for the losses `importance_sampling` and `ppo`. Takes the arguments of Client.batches."""
    for batch in client.batches(
        batch_id,
        policy_version=policy_version,
        after=after,
        format="tinker",
        advantages=advantages,
        per_session=per_session,
        **request,
    ):
        yield Datums([datum(record) for record in batch["records"]], batch)


def datum(record: Json) -> types.Datum:
    """Returns a record of the format `tinker` as a Datum, without `mask`, which these losses refuse: advantages are 0 where it is 0."""
    chunks = [types.EncodedTextChunk(tokens=chunk["tokens"]) for chunk in record["model_input"]["chunks"]]
    inputs = {
        name: types.TensorData(data=tensor["data"], dtype=tensor["dtype"], shape=tensor["shape"])
        for name, tensor in record["loss_fn_inputs"].items()
        if name != "mask"
    }
    return types.Datum(model_input=types.ModelInput(chunks=chunks), loss_fn_inputs=inputs)
