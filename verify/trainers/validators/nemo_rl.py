"""Reads the format `nemo_rl` as NeMo-RL does.

Written from NeMo-RL, commit 7ea279ab: `NemoGym._postprocess_nemo_gym_to_nemo_rl_result` in `nemo_rl/environments/nemo_gym.py` (what a
message log is, and that each prompt begins with all tokens before it), `add_grpo_token_loss_masks_and_generation_logprobs` in
`nemo_rl/algorithms/grpo.py` (which messages are trained), `message_log_to_flat_messages` in `nemo_rl/data/llm_message_utils.py` (one
tensor for each field, concatenated over the messages) and `run_async_nemo_gym_rollout` in `nemo_rl/experience/rollouts.py` (reward and
length). A sample with `loss_multiplier` 0 is not trained. `backfill_missing_routed_experts` in the latter file has -1 for experts that are
unknown.
"""

from __future__ import annotations

import math
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
    replace_modules,
    require_length,
    run,
    use_source,
)


def read(records: list[Record]) -> Iterable[Sequence | Refused]:
    return each(records, sequence_of)


def sequence_of(record: Record) -> Sequence:
    log = record["message_log"]
    if record["input_message_log"] != log[:1]:
        raise Refused("input_message_log is not the first message")
    if record["length"] != len(log[0]["token_ids"]):
        raise Refused(f"length is {record['length']}, and the first message has {len(log[0]['token_ids'])} tokens")
    if len(log) > 1 or record["loss_multiplier"] != 0:
        require_turns(log)
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    advantages: list[float] = []
    for message in log:
        length = len(message["token_ids"])
        # The fields are concatenated one by one: a message without a field would shift those after it.
        require_length("generation_logprobs", message["generation_logprobs"], length)
        ids += message["token_ids"]
        mask += [1 if message["role"] == "assistant" else 0] * length
        logprobs += message["generation_logprobs"]
        advantages += message.get("advantages", [])
    if any(math.isnan(value) for value in logprobs):
        raise Refused("a logprob is not a number")
    if record["loss_multiplier"] == 0:
        mask = [0] * len(mask)
    return Sequence(ids, mask, logprobs, reward=reward_of(record), advantages=advantages or None, experts=experts_of(log))


def experts_of(log: list[Record]) -> list[int] | None:
    """Returns the experts of all tokens but the last, flat; None when some are unknown. NeMo-RL concatenates those of the messages."""
    if all(message["routed_experts"] is None for message in log):
        return None
    experts: list[int] = []
    size = 0
    for message in log:
        array = message["routed_experts"]
        if array is None:
            raise Refused("a message has no experts, and another has some")
        positions, layers, per_token = array["shape"]
        size = layers * per_token
        values = decoded(array["data"], array["dtype"])
        if positions != len(message["token_ids"]):
            raise Refused(f"routed_experts has {positions} rows for {len(message['token_ids'])} tokens")
        require_length("routed_experts", values, positions * size)
        experts += values
    return without_last(experts, size)


def without_last(experts: list[int], size: int) -> list[int] | None:
    """Removes the row of the last token, which no engine reports. Returns None when another row is missing."""
    if any(value != -1 for value in experts[len(experts) - size :]):
        raise Refused("the last token has experts")
    known = experts[: len(experts) - size]
    return None if -1 in known else known


def require_turns(log: list[Record]) -> None:
    """Raises `Refused` unless the log is what NeMo-RL makes of a Gym's reply: the new tokens of a prompt, then the reply to it."""
    for at, message in enumerate(log):
        role = ("user", "assistant")[at % 2]
        # Tokens after the last reply, such as the last tool result, are a message of their own.
        if message["role"] != role:
            raise Refused(f"message {at} has the role {message['role']} instead of {role}")
        if len(message["token_ids"]) == 0:
            raise Refused(f"message {at} has no tokens")


def reward_of(record: Record) -> float:
    reward = record["full_result"]["reward"]
    if not isinstance(reward, (int, float)):
        raise Refused(f"the reward is {reward}, which fits in no tensor")
    return reward


def expect(trace: Trace) -> Sequence:
    return Sequence(
        trace.ids, trace.mask, trace.logprobs, reward=trace.reward, advantages=trace.advantages, experts=trace.experts
    )


def grouping(records: list[Record], traces: list[Trace]) -> Iterator[str]:
    for record, trace in zip(records, traces):
        if record["task_name"] != trace.group_id:
            yield f"trace {trace.trace_id}: task_name is {record['task_name']} instead of {trace.group_id}"
        if record["loss_multiplier"] != int(trace.trained):
            yield f"trace {trace.trace_id}: loss_multiplier is {record['loss_multiplier']}"


def gym_reply(record: Record) -> Record:
    """Returns the reply of a NeMo Gym agent from which NeMo-RL makes the message log: each item has its whole prompt."""
    items = []
    seen: list[int] = []
    for message in record["message_log"]:
        if message["role"] == "assistant":
            items.append(
                {
                    "type": "message",
                    "role": "assistant",
                    "content": [],
                    "prompt_token_ids": list(seen),
                    "generation_token_ids": message["token_ids"],
                    "generation_log_probs": message["generation_logprobs"],
                }
            )
        seen += message["token_ids"]
    return {"response": {"output": items}, "responses_create_params": {"input": []}, **record["full_result"]}


def read_with_source(records: list[Record], source: Path) -> Iterable[Sequence | Refused]:
    """
    Lets NeMo-RL flatten and mask the message logs, and lets it make the same logs of replies of a NeMo Gym agent. Needs torch, ray,
    and transformers before 5.12.
    """
    use_source(source)
    # Settings, loggers, data loaders and servers, of which only the imports matter.
    replace_modules("matplotlib", "mlflow", "prometheus_client", "pynvml", "swanlab", "torch.utils.tensorboard", "wandb")
    replace_modules("absl", "aiohttp", "datasets", "fastapi", "hydra", "pandas", "scipy", "soundfile", "torchdata", "uvicorn", "zmq")
    import torch
    from nemo_rl.algorithms.grpo import add_grpo_token_loss_masks_and_generation_logprobs
    from nemo_rl.data.llm_message_utils import batched_message_log_to_flat_message
    from nemo_rl.environments.nemo_gym import NemoGym

    gym = getattr(NemoGym, "__ray_metadata__", None)
    gym = NemoGym if gym is None else gym.modified_class
    tokenizer = types.SimpleNamespace(batch_decode=lambda batch: ["" for _ in batch])
    owner = types.SimpleNamespace(cfg={}, _processor=None)

    def tensors(message: Record) -> dict[str, Any]:
        columns = {"generation_logprobs": message["generation_logprobs"]} | ({"advantages": message["advantages"]} if "advantages" in message else {})
        routed = message["routed_experts"]
        experts = {} if routed is None else {"routed_experts": torch.tensor(decoded(routed["data"], routed["dtype"])).reshape(routed["shape"])}
        return {
            "role": message["role"],
            "content": message["content"],
            **experts,
            "token_ids": torch.tensor(message["token_ids"], dtype=torch.int64),
            **{name: torch.tensor(column, dtype=torch.float32) for name, column in columns.items()},
        }

    def own(record: Record) -> Sequence:
        log = [tensors(message) for message in record["message_log"]]
        if any(message["role"] == "assistant" for message in log):
            made = gym._postprocess_nemo_gym_to_nemo_rl_result(owner, {}, gym_reply(record), tokenizer)["message_log"]
            if not all(one["role"] == other["role"] and one["token_ids"].equal(other["token_ids"]) for one, other in zip(made, log)):
                raise Refused("NeMo-RL makes another message log of the same replies")
        add_grpo_token_loss_masks_and_generation_logprobs([log])
        flat, lengths = batched_message_log_to_flat_message([log], pad_value_dict={"token_ids": 0})
        length = int(lengths[0])
        sample_mask = record["loss_multiplier"]
        experts = flat["routed_experts"][0][:length] if "routed_experts" in flat else None
        return Sequence(
            ids=flat["token_ids"][0][:length].tolist(),
            mask=[int(value * sample_mask) for value in flat["token_loss_mask"][0][:length].tolist()],
            logprobs=flat["generation_logprobs"][0][:length].tolist(),
            reward=reward_of(record),
            advantages=flat["advantages"][0][:length].tolist() if "advantages" in flat else None,
            experts=None if experts is None else without_last(experts.flatten().tolist(), experts[0].numel()),
        )

    return each(records, own)


if __name__ == "__main__":
    run(Validator("NeMo-RL", "7ea279a", "nemo_rl", read, read_with_source, expect, has_untrained=True, grouping=grouping))
