"""Measures the policy on rows that are never trained."""

import json

from floe import Client
from task import evaluation


def evaluate(name: str, rows: int) -> None:
    """Samples each row once, and prints the mean reward."""
    with Client() as client:
        client.create_batches(evaluation(name, rows))
        groups = [group for batch in client.batches(name) for group in batch["groups"]]
    reward = sum(group["mean_reward"] for group in groups) / len(groups)
    print(json.dumps({"evaluation": name, "reward": reward, "sessions": len(groups)}), flush=True)
