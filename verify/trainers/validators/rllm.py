"""Reads the format `rllm` as rLLM does.

Written from rLLM 0.3.0.pre, commit 9beb6e0f: `Step`, `Trajectory` and `Episode` in `rllm/types.py` (types of the fields, and one logprob
for each response id), `trajectory_to_datums` in `rllm/trainer/tinker/transform.py` (steps whose prompts extend each other become one
sequence; a step that does not begins another), `collect_reward_and_advantage_from_trajectory_groups` in
`rllm/trainer/algorithms/advantage.py` (a trajectory needs a reward), `_min_weight_version` in `rllm/trainer/buffer.py`, and
`_decode_routing_matrices` and `_process_trajectory` in `rllm/trainer/verl/transform.py` (the last step has the experts of all tokens).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from _ground_truth import Record, Refused, Sequence, Trace, Validator, decoded, each, replace_modules, require_length, run, use_source

STEP_NUMBER = re.compile(r"[0-9]+$")


def trajectories_of(records: list[Record]) -> Iterator[Record]:
    for record in records:
        yield from record["trajectories"]


def read(records: list[Record]) -> Iterable[Sequence | Refused]:
    return each(trajectories_of(records), sequence_of)


def sequence_of(trajectory: Record) -> Sequence:
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    advantages: list[float] = []
    versions: list[int | None] = []
    if not isinstance(trajectory["reward"], (int, float)):
        raise Refused(f"the reward is {trajectory['reward']}, and rLLM needs a number")
    for number, step in enumerate(trajectory["steps"]):
        prompt, reply = step["prompt_ids"], step["response_ids"]
        require_length("logprobs of a step", step["logprobs"], len(reply))
        if len(reply) == 0:
            raise Refused(f"step {number} has no response, so rLLM drops its trajectory")
        if prompt[: len(ids)] != ids:
            raise Refused(f"the prompt of step {number} does not begin with the steps before it")
        if not isinstance(step["reward"], (int, float)) or not isinstance(step["weight_version"], (int, type(None))):
            raise Refused(f"step {number} has the reward {step['reward']} and the version {step['weight_version']}")
        new = prompt[len(ids) :]
        advantage = step["advantage"]
        ids += new + reply
        mask += [0] * len(new) + [1] * len(reply)
        logprobs += [0] * len(new) + step["logprobs"]
        versions.append(step["weight_version"])
        if advantage is not None:
            advantages += [0] * len(new) + (advantage if isinstance(advantage, list) else [advantage] * len(reply))
    experts = experts_of(trajectory["steps"], len(ids))
    return Sequence(
        ids, mask, logprobs, reward=trajectory["reward"], advantages=advantages or None, versions=versions, experts=experts
    )


def experts_of(steps: list[Record], length: int) -> list[int] | None:
    """Returns the experts of the first `length` tokens, flat. rLLM takes those of the last step that has some."""
    given = [step["routing_matrices"] for step in steps if step["routing_matrices"] is not None]
    if len(given) == 0:
        return None
    header, data = given[-1]
    layers, per_token = json.loads(header)["shape"]
    experts = decoded(data, json.loads(header)["dtype"])
    require_length("the last step's routing_matrices", experts, length * layers * per_token)
    return experts


def expect(trace: Trace) -> Sequence:
    """rLLM's steps end with the last reply: what comes after it is in no prompt. A trace of which nothing is trained has no steps."""
    end = len(trace.mask) - trace.mask[::-1].index(1) if trace.trained else 0
    replies = [at for at in range(end) if trace.mask[at] == 1 and (at == 0 or trace.mask[at - 1] == 0)]
    return Sequence(
        ids=trace.ids[:end],
        mask=trace.mask[:end],
        logprobs=trace.logprobs[:end],
        reward=trace.reward,
        advantages=None if trace.advantages is None else trace.advantages[:end],
        versions=[step_number(trace.token_versions[at]) for at in replies],
        experts=expected_experts(trace, end),
    )


def expected_experts(trace: Trace, end: int) -> list[int] | None:
    """Returns the experts of the first `end` tokens. The last token of a trace has none, and zeros in their place."""
    if trace.experts is None or end == 0:
        return None
    size = len(trace.experts) // (len(trace.ids) - 1)
    experts = trace.experts[: end * size]
    return experts + [0] * (end * size - len(experts))


def step_number(version: str | None) -> int | None:
    """Returns the optimizer step at the end of a version's name."""
    match = STEP_NUMBER.search(version or "")
    return None if match is None else int(match.group())


def grouping(records: list[Record], traces: list[Trace]) -> Iterator[str]:
    expected = iter(traces)
    for record in records:
        group, _, _ = record["id"].partition(":")
        for trajectory, trace in zip(record["trajectories"], expected):
            if (trajectory["uid"], group) != (trace.trace_id, trace.group_id):
                yield f"trace {trace.trace_id}: is the trajectory {trajectory['uid']} of the task {group}"
            steps = trajectory["steps"]
            if steps and (steps[-1]["reward"] != trace.reward or any(step["done"] for step in steps[:-1]) or not steps[-1]["done"]):
                yield f"trace {trace.trace_id}: the reward or the end is not at the last step"


def read_with_source(records: list[Record], source: Path) -> Iterable[Sequence | Refused]:
    """Lets rLLM's `Episode` check the records, and `trajectory_to_datums` make Tinker's data of them. Needs tinker and tinker-cookbook."""
    use_source(source)
    # Settings, data sets and timers, of which only the imports matter.
    replace_modules("blobfile", "codetiming", "datasets", "omegaconf")
    from rllm.trainer.tinker.transform import trajectory_to_datums
    from rllm.types import Episode, Step

    def checked(record: Record) -> Any:
        episode = Episode(**record)
        for trajectory in episode.trajectories:
            for step in trajectory.steps:
                Step.model_post_init(step, None)
                if len(step.logprobs) != len(step.response_ids):
                    raise Refused(f"{len(step.logprobs)} logprobs for {len(step.response_ids)} ids")
        return episode

    def own(trajectory: Any) -> Sequence:
        has_advantages = any(step.advantage is not None for step in trajectory.steps)
        for step in trajectory.steps:
            step.advantage = 0.0 if step.advantage is None else step.advantage
        data = trajectory_to_datums(trajectory)
        if len(data) == 0:
            return Sequence([], [], [], reward=trajectory.reward, versions=[])
        [datum] = data
        inputs = {name: tensor.data for name, tensor in datum.loss_fn_inputs.items()}
        [chunk] = datum.model_input.chunks
        return Sequence(
            ids=[chunk.tokens[0], *inputs["target_tokens"]],
            mask=[0, *(int(value) for value in inputs["mask"])],
            logprobs=[0, *inputs["logprobs"]],
            reward=trajectory.reward,
            advantages=[0, *inputs["advantages"]] if has_advantages else None,
            versions=[step.weight_version for step in trajectory.steps],
            experts=experts_of([step.model_dump() for step in trajectory.steps], len(chunk.tokens) + 1),
        )

    return each((trajectory for record in records for trajectory in checked(record).trajectories), own)


if __name__ == "__main__":
    run(Validator("rLLM", "0.3.0.pre (9beb6e0)", "rllm", read, read_with_source, expect, has_untrained=True, grouping=grouping))
