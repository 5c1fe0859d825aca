"""
Trains the simulated policy with asynchronous GRPO: sessions run while the trainer works and while weights are updated.

    floe up --sim --scenario examples/learn-sim/scenario.yaml
    pip install ./python numpy && python examples/learn-sim/learn.py --harness pi

It does what learn.ts does, with numpy: it reads batches in floe's own format, with advantages that the server computes.
"""

from __future__ import annotations

import argparse
import json
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator, Literal, Union, cast

import numpy as np
from numpy.typing import NDArray

import floe

FOLDER = Path(__file__).parent
BATCH_GROUPS = 4
LEARNING_RATE, EPOCHS, CLIP = 8.0, 4, 0.2

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Rule:
    """
    The replies that one rule can write. Row i of `picked` has a 1 at the logit of each option that leads to reply i, and row i of `weighed`
    at every logit of the choices between those options.
    """

    replies: list[list[int]]
    picked: Vector
    weighed: Vector


@dataclass(frozen=True)
class Decision:
    """A token at which the policy chose: the replies that were possible before it, and those of them that continue with it."""

    rule: Rule
    before: list[int]
    after: list[int]


#: `certain`: the only possible token, with log-probability 0. `impossible`: the policy never samples it there.
Placement = Union[Decision, Literal["certain", "impossible"]]


class SoftmaxPolicy:
    """A softmax over the scripted replies of a scenario, with the logits of all choices in one vector."""

    def __init__(self, engine: str, scenario: str) -> None:
        """Reads the choices and the current logits from a simulated engine."""
        self.scenario = scenario
        listed = call(f"{engine}/__sim/choices?scenario={scenario}")
        logits = call(f"{engine}/__sim/weights")["logits"][scenario]
        self.choices: dict[str, slice] = {}
        for name, values in logits.items():
            start = sum(len(logits[other]) for other in self.choices)
            self.choices[name] = slice(start, start + len(values))
        self.logits: Vector = np.array([value for values in logits.values() for value in values], dtype=np.float64)
        self.turn_start = cast("list[int]", listed["turn_start_ids"])
        self.rules = [self._rule(rule["turns"]) for rule in listed["rules"]]

    def _rule(self, turns: list[Any]) -> Rule:
        picked, weighed = np.zeros((2, len(turns), len(self.logits)))
        for row, turn in enumerate(turns):
            for pick in turn["picks"]:
                choice = self.choices[pick["choice"]]
                picked[row, choice.start + pick["option"]] = 1
                weighed[row, choice] = 1
        return Rule([turn["token_ids"] for turn in turns], picked, weighed)

    def place(self, ids: list[int]) -> list[Placement]:
        """Finds each token among the replies that the policy can write. A reply follows the ids that begin a turn of the model."""
        placements: list[Placement] = ["impossible"] * len(ids)
        head = self.turn_start
        for start in range(len(head), len(ids)):
            if ids[start - len(head) : start] != head:
                continue
            agreeing = (rule for rule in self.rules if any(_agrees(reply, ids[start:]) for reply in rule.replies))
            rule = next(agreeing, None)
            if rule is None:
                continue
            live = list(range(len(rule.replies)))
            for position in range(start, len(ids)):
                at = position - start
                after = [one for one in live if rule.replies[one][at : at + 1] == [ids[position]]]
                if not after:
                    break
                placements[position] = "certain" if len(after) == len(live) else Decision(rule, live, after)
                live = after
        return placements

    def logprob(self, placement: Placement, logits: Vector) -> float:
        if isinstance(placement, str):
            return 0.0 if placement == "certain" else -np.inf
        weights = placement.rule.picked @ self._log_softmax(logits)
        return float(_log_sum_exp(weights[placement.after]) - _log_sum_exp(weights[placement.before]))

    def gradient(self, decision: Decision) -> Vector:
        """Returns the gradient of the token's log-probability."""
        log_softmax = self._log_softmax(self.logits)
        weights = decision.rule.picked @ log_softmax
        gradients = decision.rule.picked - decision.rule.weighed * np.exp(log_softmax)

        def mean(replies: list[int]) -> Vector:
            shares = np.exp(weights[replies] - _log_sum_exp(weights[replies]))
            return cast(Vector, shares @ gradients[replies])

        return mean(decision.after) - mean(decision.before)

    def table(self) -> dict[str, dict[str, list[float]]]:
        """Returns the logits as the engine takes them."""
        return {self.scenario: {name: self.logits[choice].tolist() for name, choice in self.choices.items()}}

    def _log_softmax(self, logits: Vector) -> Vector:
        result = logits.copy()
        for choice in self.choices.values():
            result[choice] -= _log_sum_exp(logits[choice])
        return result


def _agrees(reply: list[int], ids: list[int]) -> bool:
    """Whether `ids` begin with the reply, or end within it."""
    length = min(len(reply), len(ids))
    return reply[:length] == ids[:length]


def _log_sum_exp(values: Vector) -> float:
    return float(np.logaddexp.reduce(values))


@dataclass(frozen=True)
class Token:
    """A token with a loss mask of 1. `version` is None when floe does not know which version sampled it."""

    placement: Placement
    recorded: float
    version: str | None
    advantage: float


def tokens_of(record: Any, policy: SoftmaxPolicy) -> Iterator[Token]:
    """Yields the trained tokens of a record in floe's format, each placed in the context of the ids before it."""
    placements = policy.place(record["prompt_ids"] + record["response_ids"])[len(record["prompt_ids"]) :]
    for index, bit in enumerate(record["loss_mask"]):
        if bit == 1:
            spans = (span["version"] for span in record["version_spans"] if span["start"] <= index < span["end"])
            yield Token(placements[index], record["logprobs"][index], next(spans, None), record["advantages"][index])


def train_on(records: list[Any], policy: SoftmaxPolicy, versions: dict[str, Vector], current: str) -> dict[str, int]:
    """
    Takes gradient steps on the mean over records of the sum over tokens of min(ratio A, clip(ratio) A). An impossible token has the ratio
    0, so it adds nothing to the gradient; it counts as trained and as impossible.
    """
    tokens = [token for record in records for token in tokens_of(record, policy)]
    for _ in range(EPOCHS):
        gradient = np.zeros_like(policy.logits)
        for token in tokens:
            ratio = np.exp(policy.logprob(token.placement, policy.logits) - token.recorded)
            clipped = ratio > 1 + CLIP if token.advantage > 0 else ratio < 1 - CLIP
            if not clipped and isinstance(token.placement, Decision):
                gradient += token.advantage * ratio / len(records) * policy.gradient(token.placement)
        policy.logits = policy.logits + LEARNING_RATE * gradient
    known = [token for token in tokens if token.version is not None]

    def is_mismatched(token: Token) -> bool:
        logits = versions.get(token.version or "")
        return logits is None or not abs(policy.logprob(token.placement, logits) - token.recorded) < 1e-4

    return {
        "tokens": len(tokens),
        "choices": sum(isinstance(token.placement, Decision) for token in tokens),
        "impossible": sum(token.placement == "impossible" for token in tokens),
        "stale": sum(token.version != current for token in known),
        "mismatched": sum(is_mismatched(token) for token in known),
    }


def train(client: floe.Client, policy: SoftmaxPolicy, engine: str, data: Any, steps: int) -> Iterator[dict[str, Any]]:
    """
    Trains on a source and a task template, which `data` has. Yields each step after its weights are in effect. It waits for the following
    batch first, as a slower trainer would.
    """
    version = "v0"
    versions = {version: policy.logits}
    stream = client.create_batches(
        {
            **data,
            "batch_size": BATCH_GROUPS,
            "max_staleness": 1,
            "accept": {"zero_variance": "keep"},
        }
    )
    batches = client.batches(
        stream["batch_id"], after=0, policy_version=lambda: version, format="floe", advantages="grpo"
    )
    batch = next(batches)
    for step in range(1, steps + 1):
        records = cast("list[Any]", batch["records"])
        rewards = [record["sample_reward"] for record in records]
        trained = train_on(records, policy, versions, version)
        if step < steps:
            batch = next(batches)
        version = f"v{step}"
        versions[version] = policy.logits
        client.pause_engines("keep")
        try:
            call(f"{engine}/update_weights", {"version": version, "logits": policy.table()})
            client.set_policy_version(version)
        finally:
            client.resume_engines()
        mean = float(np.mean(rewards))
        yield {"version": version, "sessions": len(rewards), "meanReward": mean, "logits": policy.table(), **trained}


def data_of(folder: Path, harness: str) -> dict[str, Any]:
    """Reads the rows and the task of a folder. `harness` is for a task without an agent."""
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    task = json.loads((folder / "task.json").read_text())
    return {"source": {"kind": "rows", "rows": rows}, "task": {"agent": agent_of(harness), **task}}


def agent_of(harness: str) -> dict[str, Any]:
    if harness != "shell":
        return {"harness": harness}
    # The shell command starts the small agent of this folder, which reaches the sandbox in a variable.
    command = 'node --input-type=module -e "$AGENT"'
    return {"harness": harness, "custom_shell": command, "env": {"AGENT": (FOLDER / "agent.mjs").read_text()}}


def call(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", help="default: FLOE_URL, else http://127.0.0.1:8080")
    parser.add_argument("--token", help="default: FLOE_TOKEN")
    parser.add_argument("--harness", default="shell")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder with rows.jsonl and task.json")
    parser.add_argument("--scenario", default="repair", help="scenario of the simulated engine that the policy is read from")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--json", action="store_true", help="print each step as JSON")
    options = parser.parse_args()
    with floe.Client(options.url, options.token) as client:
        engine = client.engines()["engines"][0]["base_url"]
        policy = SoftmaxPolicy(engine, options.scenario)
        for step in train(client, policy, engine, data_of(options.folder, options.harness), options.steps):
            if options.json:
                print(json.dumps(step), flush=True)
            else:
                share = 100 * step["stale"] / step["tokens"]
                print(
                    f"{step['version']}: mean reward {step['meanReward']:.2f} of {step['sessions']} sessions; "
                    f"{step['tokens']} tokens, {step['choices']} at a choice, {share:.0f} % stale",
                    flush=True,
                )


if __name__ == "__main__":
    main()
