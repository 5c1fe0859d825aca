"""Reading a batch stream by the steps of a trainer that counts them itself."""

from __future__ import annotations

from typing import Any, cast

from ..batches import Version
from ..client import Client
from ..errors import FloeError
from ..api_types import Batch, BatchStreamRequest, FormatName
from .settings import Settings


class StepStream:
    """
    The batch stream of the settings, one batch for each step of a trainer. The first step of a process that is older than the stream
    rewinds it, because the trainer has restored a checkpoint.
    """

    def __init__(self, settings: Settings, client: Client | None = None) -> None:
        if not settings.stream.get("batch_id") or not settings.stream.get("source"):
            raise FloeError(
                "setup_failed", "stream: needs `batch_id` and `source`, so that a restarted trainer finds its stream"
            )
        self.client = client or settings.client()
        self._settings = settings
        self._after: dict[int, int] = {}
        self._batch_id = str(settings.stream["batch_id"])

    def batch(
        self,
        step: int,
        format: FormatName,
        *,
        policy_version: Version | None = None,
        size: int | None = None,
        **request: Any,
    ) -> Batch:
        """Returns the batch of step `step`, counted from 0; a repeated call returns the same one. Raises when the data is used up."""
        version = step if policy_version is None else policy_version
        after = self._after.get(step)
        if after is None:
            after = self._begin(step, version)
            self._after[step] = after
        while True:
            reply = self.client.next_batch(
                self._batch_id,
                after=after,
                size=size,
                policy_version=version,
                format=format,
                options=self._settings.options,
                **request,
            )
            if reply["batch"] is not None:
                return reply  # type: ignore[return-value]
            if reply["done"]:
                raise FloeError(
                    "not_found", f"the batch stream {self._batch_id} has no batch for step {step}: its data is used up"
                )

    def _begin(self, step: int, version: Version) -> int:
        """Returns the number of the batch before that of `step`."""
        view = self.client.create_batches(
            cast(BatchStreamRequest, {"task": dict(self._settings.task), **self._settings.stream})
        )
        if not self._after and view["batch"] > step:
            view = self.client.rewind_batches(self._batch_id, after=step, policy_version=version)
        return min(step, view["batch"])


def evaluation(client: Client, settings: Settings, format: FormatName, **request: Any) -> list[Batch]:
    """Samples `evaluation` of the settings, a source of rows, once and returns its groups, one in each batch."""
    if not settings.evaluation:
        raise FloeError(
            "setup_failed", 'evaluation: the settings name no rows to evaluate, such as {"kind": "file", "path": …}'
        )
    stream = {"purpose": "evaluate", "source": dict(settings.evaluation)}
    return list(client.rollouts([], settings.task, format=format, options=settings.options, stream=stream, **request))
