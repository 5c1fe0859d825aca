"""TRL 1.16: AsyncGRPOTrainer (rollout_worker, weight_transfer) and GRPOTrainer (rollout_func)."""

from __future__ import annotations

import queue
import threading
import time
from itertools import groupby
from typing import Any, Callable, Iterable, Mapping, Protocol, Sequence

from ..client import Client
from ..connection import Connection
from ..errors import FloeError
from ..api_types import AdvantageMethod, Json
from .settings import grouped, plain, prompt_row


class FloeRolloutWorker:
    """
    `rollout_worker` of AsyncGRPOTrainer: fills the trainer's buffer with the samples of a batch stream. The stream's tasks need versions
    that end in TRL's model version, as FloeWeightTransfer names them. `after`: the last batch that the restored checkpoint has trained
    on; the stream is rewound to it.
    """

    def __init__(
        self,
        client: Client,
        batch_id: str,
        *,
        advantages: AdvantageMethod = "grpo",
        per_session: bool = False,
        after: int | None = None,
        buffered: int = 64,
    ) -> None:
        #: The trainer takes samples from here. The next batch is requested when fewer than `buffered` are left.
        self.rollout_buffer: queue.Queue[Any] = queue.Queue(maxsize=buffered)
        self.metrics_queue: queue.Queue[dict[str, Any]] = queue.Queue()
        #: Number of the last batch whose samples are all in the buffer or trained. Save it with a checkpoint.
        self.batch: int | None = after
        self._client = client
        self._batch_id = batch_id
        self._request: dict[str, Any] = {"format": "trl_async", "advantages": advantages, "per_session": per_session}
        self._version = 0
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._alive_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="floe rollouts", daemon=True)

    def start(self) -> None:
        if self.batch is not None:
            self._client.rewind_batches(self._batch_id, after=self.batch, policy_version=self._version)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._client.close()
        if self._thread.ident is not None:
            self._thread.join()

    def update_model_version(self, model_version: int) -> None:
        self._version = model_version

    def check_health(self, stale_after_s: float) -> None:
        """Raises what ended the worker, or when the server has not replied for `stale_after_s` seconds."""
        if self._error is not None:
            raise RuntimeError(f"the rollouts of floe ended: {self._error}") from self._error
        if (silent := time.monotonic() - self._alive_at) > stale_after_s:
            raise RuntimeError(f"floe has sent no batch for {silent:.0f} s; see `floe status`")

    def _run(self) -> None:
        from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

        try:
            batches = self._client.batches(
                self._batch_id, policy_version=lambda: self._version, after=self.batch, **self._request
            )
            for batch in batches:
                self._alive_at = time.monotonic()
                for record in batch["records"]:
                    self._put(rollout_sample(RolloutSample, record))
                self.batch = batch["batch"]
                rejected = sum(batch["progress"].get("rejected", {}).values())
                self.metrics_queue.put({"floe/batch": float(batch["batch"]), "floe/rejected_groups": float(rejected)})
            if not self._ended.is_set():
                raise FloeError("not_found", f"the batch stream {self._batch_id} has no further batch")
        except BaseException as thrown:
            if not self._ended.is_set():
                self._error = thrown

    def _put(self, sample: Any) -> None:
        while not self._ended.is_set():
            self._alive_at = time.monotonic()
            try:
                return self.rollout_buffer.put(sample, timeout=1)
            except queue.Full:
                continue  # The trainer is busy with the samples that it has.


def rollout_sample(kind: Callable[..., Any], record: Json) -> Any:
    """Returns a record of the format `trl_async` as the trainer's RolloutSample."""
    import numpy as np

    return kind(
        prompt=record["prompt"],
        completion=record["completion"],
        input_ids=np.asarray(record["input_ids"]),
        completion_mask=np.asarray(record["completion_mask"]),
        old_log_probs=np.asarray(record["old_log_probs"], dtype=np.float32),
        advantage=record["advantage"],
        model_version=record["model_version"],
        group_id=record["group_id"],
        metrics={name: value for name, value in record["metrics"].items() if value is not None},
        enqueued_at=time.time(),
    )


class _Transfer(Protocol):
    """TRL's WeightTransferProtocol, as far as floe uses it."""

    def init_weight_transfer(self) -> None: ...
    def send_weights(self, iterator: Iterable[Any]) -> None: ...
    def destroy(self) -> None: ...


class FloeWeightTransfer:
    """
    `weight_transfer` of AsyncGRPOTrainer: `inner` sends the weights, such as TRL's WeightTransferClient, and floe pauses the engines and
    names the version, which is TRL's model version. `urls`: vLLM servers, which get the version as well. A push that fails leaves the
    engines paused, because their weights may be mixed, and the trainer ends with the error.
    """

    def __init__(self, client: Client, inner: _Transfer, urls: Sequence[str] = (), *, version: int = 0) -> None:
        self._client = client
        self._inner = inner
        self._urls = urls
        self._version = version

    def init_weight_transfer(self) -> None:
        self._inner.init_weight_transfer()

    def pause(self) -> None:
        change = self._client.pause_engines("keep")
        if change["pending"]:
            raise FloeError("not_ready", f"the nodes {', '.join(change['pending'])} did not pause their engines")

    def send_weights(self, iterator: Iterable[Any]) -> None:
        self._inner.send_weights(iterator)
        self._version += 1
        for url in self._urls:
            engine = Connection(url, timeout=300, retry_seconds=0)
            engine.fetch("POST", "/reset_prefix_cache")
            engine.fetch("POST", "/update_weight_version", body={"new_version": str(self._version)})
        self._client.set_policy_version(str(self._version))

    def resume(self) -> None:
        self._client.resume_engines()

    def destroy(self) -> None:
        self._inner.destroy()


def rollout_func(
    client: Client, task: Mapping[str, Any], *, row: Callable[[Any], Mapping[str, Any]] = prompt_row
) -> Callable[[list[Any], Any], dict[str, list[Any]]]:
    """
    `rollout_func` of GRPOTrainer. Equal prompts in a row are the samples of one task, whose template `task` gets the fields of `row`:
    `prompt` and `instruction` by default. A sample that failed is replaced by one whose mask is 0 and whose reward is None. Pass
    floe_reward as reward function.
    """

    def generate(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        runs = [list(run) for _, run in groupby(plain(prompts))]
        rows = [{**row(run[0]), "samples": len(run)} for run in runs]
        found: dict[int, Json] = {}
        for batch in client.rollouts(rows, grouped(task), policy_version=trainer.state.global_step, format="trl"):
            if batch["records"]:
                found[batch["groups"][0]["row_index"]] = batch["records"][0]
        spare = next((record for record in found.values() if record["prompt_ids"]), None)
        if spare is None:
            raise FloeError("no_completions", f"none of the {len(prompts)} samples of this step can be trained on")
        output: dict[str, list[Any]] = {name: [] for name in spare}
        for index, run in enumerate(runs):
            record = found.get(index, spare)
            usable = len(record["prompt_ids"]) if index in found else 0
            for place in range(len(run)):
                source, sample = (record if usable > 0 else spare), min(place, max(usable - 1, 0))
                for name, column in output.items():
                    column.append(source[name][sample])
                if place >= usable:
                    output["env_mask"][-1] = [0] * len(output["env_mask"][-1])
                    output["reward"][-1] = None
        return output

    return generate


def floe_reward(reward: list[float | None], **_: Any) -> list[float | None]:
    """Reward function of GRPOTrainer: the rewards that floe has computed."""
    return reward
