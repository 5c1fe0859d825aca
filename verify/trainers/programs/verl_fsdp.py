"""verl's FSDP2 engine takes an optimizer step with the rows of the format `verl`.

The rows become `AgentLoopOutput`s, which verl's own agent loop worker makes into a `DataProto`. The format `verl_batch` must be the same
`DataProto`. The engine computes the logprobs of all rows, and then trains all of them in one step of PPO.
"""

import asyncio
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from exported import REAL_STEP, Cases, Row, floe_rows, print_report, records
from verl_cpu import use_cpu
from weights import become_only_rank, copied, largest_change

become_only_rank()
use_cpu()
torch.distributed.init_process_group("gloo")

import verl
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput, AgentLoopWorker
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage
from verl.utils import tensordict_utils
from verl.workers.config import ActorConfig, FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
from verl.workers.engine_workers import TrainingWorker, TrainingWorkerConfig
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import left_right_2_no_padding, no_padding_2_padding

# The parts of a record that say to which prompt and sample the row belongs, and are not fields of AgentLoopOutput.
KEYS = ("uid", "session_id", "index")
# Maximum number of tokens of one forward pass.
MICROBATCH_TOKENS = 4096


def agent_loop_batch(rows: list[dict[str, Any]], model: HFModelConfig, prompt: int, response: int) -> DataProto:
    """Makes the batch that verl makes of the outputs of its agent loops. The worker has what it reads of its configuration."""
    worker = object.__new__(AgentLoopWorker)
    worker.tokenizer = model.tokenizer
    worker.processor = None
    worker.reward_loop_worker_handles = None
    worker.distillation_enabled = False
    worker.mm_processor_kwargs = {}
    worker.rollout_config = SimpleNamespace(prompt_length=prompt, response_length=response)

    async def processed() -> list[Any]:
        outputs = []
        for row in rows:
            fields = {name: value for name, value in row.items() if name not in KEYS}
            output = AgentLoopOutput(**{**fields, "metrics": AgentLoopMetrics(**row["metrics"])})
            outputs.append(await worker._agent_loop_postprocess(output, False, raw_prompt=[]))
        return outputs

    uid = np.array([row["uid"] for row in rows], dtype=object)
    return worker._postprocess(asyncio.run(processed()), input_non_tensor_batch={"uid": uid})


def exported_batch(record: dict[str, Any]) -> DataProto:
    """Makes a DataProto of the format `verl_batch`."""
    dtypes = {"rollout_log_probs": torch.float32, "rm_scores": torch.float32}
    texts = ("uid", "floe_trace_id", "__num_turns__")
    tensors = {
        name: torch.tensor(column, dtype=dtypes.get(name, torch.int64))
        for name, column in record.items()
        if name not in texts
    }
    return DataProto.from_dict(tensors, {name: np.array(record[name], dtype=object) for name in texts})


def compare(cases: Cases, exported: DataProto, made: DataProto, rows: list[Row]) -> None:
    """Compares the rows of the format `verl_batch` with those that verl made of the format `verl`."""
    same = ("prompts", "responses", "response_mask", "input_ids", "attention_mask", "position_ids", "rollout_log_probs")
    for at, row in enumerate(rows):
        different = [name for name in same if not torch.equal(exported.batch[name][at], made.batch[name][at])]
        cases.check(not different, f"{row.trace_id}: verl_batch differs from verl in {', '.join(different)}")
    # verl puts the reward on the last token of the response. verl_batch puts it on the last trained token, which GAE does not ignore.
    scores = [batch.batch["rm_scores"].sum(-1).tolist() for batch in (exported, made)]
    cases.check_equal("rewards of verl_batch", scores[0], scores[1])
    last = [int(scores.abs().argmax()) for scores in exported.batch["rm_scores"]]
    wrong = [row.trace_id for at, row in zip(last, rows) if row.trained and row.reward and not row.response_mask[at]]
    cases.check(not wrong, f"the reward is on a token that is not trained, in {wrong}")


def training_worker(model: HFModelConfig) -> TrainingWorker:
    float32 = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    engine = FSDPEngineConfig(
        strategy="fsdp2",
        forward_only=False,
        fsdp_size=1,
        ulysses_sequence_parallel_size=1,
        use_dynamic_bsz=True,
        use_remove_padding=False,
        max_token_len_per_gpu=MICROBATCH_TOKENS,
        infer_max_token_len_per_gpu=MICROBATCH_TOKENS,
        model_dtype="fp32",
        dtype="float32",
        mixed_precision=float32,
        use_torch_compile=False,
    )
    optimizer = FSDPOptimizerConfig(lr=1e-2, lr_warmup_steps=0, total_training_steps=10)
    EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu", vendor="cpu")(
        FSDPEngineWithLMHead
    )
    worker = TrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model",
            model_config=model,
            engine_config=engine,
            optimizer_config=optimizer,
            checkpoint_config=None,
        )
    )
    worker.reset()
    return worker


def main() -> None:
    folder = Path(sys.argv[1])
    cases = Cases()
    rows = floe_rows(folder)
    [record] = records(folder, "verl_batch")
    prompt, response = len(record["prompts"][0]), len(record["responses"][0])
    model = HFModelConfig(
        path=str(folder / "model"), use_remove_padding=False, override_config={"attn_implementation": "eager"}
    )
    data = agent_loop_batch(records(folder, "verl"), model, prompt, response)
    cases.check_equal("number of rows", len(data), len(rows))
    compare(cases, exported_batch(record), data, rows)

    worker = training_worker(model)
    data.meta_info = {
        "temperature": 1.0,
        "global_token_num": data.batch["attention_mask"].sum(-1).tolist(),
        "compute_loss": False,
    }
    unpadded = left_right_2_no_padding(data.to_tensordict())
    computed = no_padding_2_padding(tensordict_utils.get(worker.infer_batch(unpadded), "log_probs"), unpadded)
    mask = data.batch["response_mask"].bool()
    for at, row in enumerate(rows):
        used = data.batch["attention_mask"][at].bool()
        cases.check_equal(f"{row.trace_id}: ids", data.batch["input_ids"][at][used].tolist(), row.ids)
        cases.check_equal(
            f"{row.trace_id}: mask", mask[at].int().tolist(), row.response_mask + [0] * (response - len(row.response_ids))
        )
        steps = [step for step in row.steps if step >= 0] or [-1]
        extra = tuple(data.non_tensor_batch[name][at] for name in ("min_global_steps", "max_global_steps"))
        cases.check_equal(f"{row.trace_id}: steps", extra, (min(steps), max(steps)))
        recorded = data.batch["rollout_log_probs"][at][mask[at]].tolist()
        cases.check_logprobs(row, computed[at][mask[at]].tolist(), recorded)

    advantages, _ = compute_grpo_outcome_advantage(
        token_level_rewards=data.batch["rm_scores"],
        response_mask=data.batch["response_mask"],
        index=data.non_tensor_batch["uid"],
    )
    data.batch["old_log_probs"] = computed
    data.batch["advantages"] = advantages
    actor = ActorConfig(
        strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=-1, ppo_mini_batch_size=len(rows)
    )
    worker.set_loss_fn(partial(ppo_loss, config=actor))
    batch = left_right_2_no_padding(data.to_tensordict())
    tensordict_utils.assign_non_tensor(batch, global_batch_size=len(rows))
    before = copied(worker.engine.module.parameters())
    metrics = tensordict_utils.get(worker.train_batch(batch), "metrics")
    moved = largest_change(before, worker.engine.module.parameters())
    cases.check(moved > 0, f"the step did not change the weights; its metrics are {metrics}")
    print_report(cases, trainer="verl", version=verl.__version__, how=REAL_STEP, rows=2 * len(rows), real_step=moved > 0)


main()
