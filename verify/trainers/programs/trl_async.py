"""TRL's AsyncGRPOTrainer takes an optimizer step with the samples of the format `trl_async`, which a rollout worker puts into its queue.

TRL computes the ratio of its own logprobs and the delivered ones. This program compares both for every token of the loss.
"""

import itertools
import os
import queue
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import numpy as np
import torch
import trl
import trl.experimental.async_grpo.async_grpo_trainer as async_grpo_trainer
import trl.experimental.async_grpo.packing as packing
from datasets import Dataset
from exported import REAL_STEP, Cases, Row, float32, print_report, records, trained_rows
from transformers import AutoTokenizer
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample
from weights import copied, largest_change

# Number of samples of one forward pass.
MICROBATCH = 40


class Attention:
    """Attention of packed sequences on a CPU, in place of the GPU kernel that TRL downloads."""

    @staticmethod
    def flash_attn_varlen_func(q, k, v, cu_q, cu_k, max_q, max_k, softmax_scale=None, **_):
        heads = q.shape[1] // k.shape[1]
        outputs = []
        for (q_start, q_end), (k_start, k_end) in zip(_ranges(cu_q), _ranges(cu_k), strict=True):
            query = q[q_start:q_end].transpose(0, 1)
            key, value = (x[k_start:k_end].transpose(0, 1).repeat_interleave(heads, 0) for x in (k, v))
            queries, keys = q_end - q_start, k_end - k_start
            # The last query sees all keys.
            mask = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
            attended = torch.nn.functional.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, scale=softmax_scale
            )
            outputs.append(attended.transpose(0, 1))
        return torch.cat(outputs)


def _ranges(boundaries: torch.Tensor) -> Iterator[tuple[int, int]]:
    ends = boundaries.tolist()
    return zip(ends[:-1], ends[1:])


class Worker:
    """A rollout worker whose queue holds all samples from the start."""

    def __init__(self, samples: list[RolloutSample]):
        self.rollout_buffer: queue.Queue = queue.Queue()
        self.metrics_queue: queue.Queue = queue.Queue()
        self.versions: list[int] = []
        for sample in samples:
            self.rollout_buffer.put(sample)

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def update_model_version(self, model_version: int) -> None:
        self.versions.append(model_version)

    def check_health(self, stale_after_s: float) -> None:
        raise RuntimeError("the trainer dropped samples, and waits for more")


class WeightTransfer:
    """Receives the weights, and does not use them: there is no engine."""

    def init_weight_transfer(self) -> None:
        pass

    def pause(self) -> None:
        pass

    def send_weights(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        for _ in iterator:
            pass

    def resume(self) -> None:
        pass

    def destroy(self) -> None:
        pass


class Recorder(AsyncGRPOTrainer):
    """Keeps, for each sample of the loss: the trained ids, the logprobs of the model, the delivered ones, and the advantages."""

    seen: list[tuple[list[int], list[float], list[float], list[float]]]

    def compute_loss(self, model, inputs, *args, **named):
        captured: list[torch.Tensor] = []

        def recording(**arguments):
            outputs = model(**arguments)
            captured.append(outputs.log_probs.detach().flatten())
            return outputs

        loss = super().compute_loss(recording, inputs, *args, **named)
        selected = inputs["token_index"] >= 0
        index, segments = inputs["token_index"][selected], inputs["segment_id"][selected]
        labels = inputs["shift_labels"][inputs["attention_mask"].bool()][index]
        columns = (labels, captured[0][index], inputs["old_log_probs"][selected], inputs["advantages"][selected])
        for segment in range(int(segments.max()) + 1):
            self.seen.append(tuple(column[segments == segment].tolist() for column in columns))
        return loss


def sample_of(record: dict[str, Any]) -> RolloutSample:
    arrays = {
        "input_ids": np.asarray(record["input_ids"]),
        "completion_mask": np.asarray(record["completion_mask"]),
        "old_log_probs": np.asarray(record["old_log_probs"], dtype=np.float32),
    }
    return RolloutSample(**{**record, **arrays})


def check_fields(cases: Cases, row: Row, record: dict[str, Any]) -> None:
    cases.check_equal(f"{row.trace_id}: ids", record["input_ids"], row.ids)
    cases.check_equal(f"{row.trace_id}: mask", record["completion_mask"], row.mask)
    oldest = min(step for step in row.steps if step >= 0)
    cases.check_equal(f"{row.trace_id}: model_version", record["model_version"], oldest)


def main() -> None:
    folder = Path(sys.argv[1])
    cases = Cases()
    rows, exported = trained_rows(folder), records(folder, "trl_async")
    cases.check_equal("number of samples", len(exported), len(rows))
    for row, record in zip(rows, exported):
        check_fields(cases, row, record)

    packing._flash_attn = lambda: Attention
    async_grpo_trainer.get_peak_flops_per_device = lambda *_, **__: 1e12
    # All samples are of one optimizer step, so that all logprobs are those of the initial weights. Repeated samples fill the last micro-batch,
    # and two more, because the trainer reads ahead of its step.
    repeated = itertools.cycle(exported)
    filled = exported + list(itertools.islice(repeated, -len(exported) % MICROBATCH))
    ahead = list(itertools.islice(repeated, 2 * MICROBATCH))
    args = AsyncGRPOConfig(
        output_dir=str(folder / "trl_async"),
        per_device_train_batch_size=MICROBATCH,
        gradient_accumulation_steps=len(filled) // MICROBATCH,
        num_generations=4,
        max_steps=1,
        learning_rate=1e-2,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        dtype="float32",
        weight_sync_steps=1,
        token_budget=-1,
        disable_tqdm=True,
    )
    trainer = Recorder(
        model=str(folder / "model"),
        reward_funcs=[],
        args=args,
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": "x"}]}] * len(filled)),
        processing_class=AutoTokenizer.from_pretrained(folder / "model"),
        rollout_worker=Worker([sample_of(record) for record in filled + ahead]),
        weight_transfer=WeightTransfer(),
    )
    trainer.seen = []
    before = copied(trainer.model.parameters())
    trainer.train()

    # A sample of the loss is found by its delivered logprobs, which no other sample has.
    places = {delivered_logprobs(record): at for at, record in enumerate(exported)}
    trained: set[int] = set()
    for ids, computed, delivered, advantages in trainer.seen:
        at = places.get(tuple(delivered))
        if not cases.check(at is not None, f"no sample has the logprobs {delivered}"):
            continue
        trained.add(at)
        row = rows[at]
        cases.check_equal(f"{row.trace_id}: trained ids", ids, [id for id, mask in zip(row.ids, row.mask) if mask])
        cases.check_equal(f"{row.trace_id}: advantages", advantages, [float32(row.advantage)] * len(ids))
        cases.check_logprobs(row, computed, delivered)
    cases.check_equal("number of trained samples", len(trained), len(rows))
    moved = largest_change(before, trainer.model.parameters())
    cases.check(trainer.state.global_step == 1 and moved > 0, "no optimizer step changed the weights")
    print_report(
        cases, trainer="TRL AsyncGRPOTrainer", version=trl.__version__, how=REAL_STEP, rows=len(rows), real_step=moved > 0
    )


def delivered_logprobs(record: dict[str, Any]) -> tuple[float, ...]:
    # The first token of a sequence has no prediction, so it is never trained.
    pairs = list(zip(record["old_log_probs"], record["completion_mask"]))[1:]
    return tuple(float32(logprob) for logprob, mask in pairs if mask)


main()
