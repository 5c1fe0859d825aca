"""TRL's GRPOTrainer takes optimizer steps with the samples of the format `trl`, which a `rollout_func` returns.

TRL itself ignores the returned logprobs unless it samples with vLLM. So this program compares them with the logprobs that the trainer computes
for its loss.
"""

import os
import sys
from pathlib import Path

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import torch
import trl
from datasets import Dataset
from exported import REAL_STEP, Cases, floe_rows, print_report, records
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

GENERATIONS = 4
# Maximum number of samples of one forward pass.
MAX_MICROBATCH = 40


class Recorder(GRPOTrainer):
    """Keeps, for each micro-batch, the token ids, the mask and the logprobs from which the loss is computed."""

    seen: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]]

    def _compute_loss(self, model, inputs):
        self._logprobs = None
        loss = super()._compute_loss(model, inputs)
        mask = inputs["completion_mask"] * inputs["tool_mask"]
        self.seen.append((inputs["prompt_ids"] * inputs["prompt_mask"], inputs["completion_ids"], mask, self._logprobs))
        return loss

    def _get_per_token_logps_and_entropies(self, *args, **named):
        result = super()._get_per_token_logps_and_entropies(*args, **named)
        self._logprobs = result[0].detach()
        return result


def main() -> None:
    folder = Path(sys.argv[1])
    cases = Cases()
    rows = floe_rows(folder / "one-trace")
    [batch] = records(folder / "one-trace", "trl")
    model_folder = folder / "model"
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    before = [parameter.detach().clone() for parameter in model.parameters()]

    # All samples are of one optimizer step, so that all logprobs are those of the initial weights.
    count = len(rows)
    microbatch = max(size for size in range(GENERATIONS, MAX_MICROBATCH + 1, GENERATIONS) if count % size == 0)
    prompts = Dataset.from_list([{"prompt": [{"role": "user", "content": str(at)}]} for at in range(count // GENERATIONS)])
    rewards_seen: list[float] = []

    def rollout(prompts: list, trainer: GRPOTrainer) -> dict:
        names = ("prompt_ids", "completion_ids", "logprobs", "env_mask", "reward", "session_id")
        return {name: batch[name][: len(prompts)] for name in names}

    def reward(completions: list, reward: list[float], **_: object) -> list[float]:
        rewards_seen.extend(reward)
        return reward

    args = GRPOConfig(
        output_dir=str(folder / "trl_grpo"),
        per_device_train_batch_size=microbatch,
        gradient_accumulation_steps=count // microbatch,
        num_generations=GENERATIONS,
        max_steps=1,
        learning_rate=1e-2,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        shuffle_dataset=False,
        beta=0.0,
        disable_tqdm=True,
    )
    trainer = Recorder(
        model=model,
        reward_funcs=reward,
        args=args,
        train_dataset=prompts,
        processing_class=tokenizer,
        rollout_func=rollout,
    )
    trainer.seen = []
    trainer.train()

    # Samples are found by the ids that were exported. The padding, on both sides, does not occur in them.
    by_ids = {(tuple(batch["prompt_ids"][at]), tuple(batch["completion_ids"][at])): at for at in range(count)}
    for prompt_ids, completion_ids, masks, logprobs in trainer.seen:
        for ids, completion, mask, computed in zip(prompt_ids, completion_ids, masks, logprobs):
            key = tuple(tuple(id for id in part.tolist() if id != tokenizer.pad_token_id) for part in (ids, completion))
            at = by_ids.pop(key, None)
            if not cases.check(at is not None, f"no sample has the ids {key}"):
                continue
            row, used = rows[at], len(key[1])
            cases.check_equal(f"{row.trace_id}: ids", [*key[0], *key[1]], row.ids)
            cases.check_equal(f"{row.trace_id}: mask", mask.tolist(), row.response_mask + [0] * (len(mask) - used))
            recorded = [value for value, trained in zip(batch["logprobs"][at], batch["env_mask"][at]) if trained]
            cases.check_logprobs(row, [float(value) for value, trained in zip(computed, mask) if trained], recorded)
    cases.check(not by_ids, f"{len(by_ids)} samples were not trained")
    cases.check_equal("rewards", rewards_seen, [row.reward for row in rows])
    moved = max(float((a - b.detach()).abs().max()) for a, b in zip(before, model.parameters()))
    cases.check(trainer.state.global_step == 1 and moved > 0, "no optimizer step changed the weights")
    print_report(
        cases, trainer="TRL GRPOTrainer", version=trl.__version__, how=REAL_STEP, rows=count, real_step=moved > 0
    )


main()
