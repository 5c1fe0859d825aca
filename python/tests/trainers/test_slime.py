"""The adapter of slime with its Sample and its check of rollouts."""

from __future__ import annotations

import json
import os
import tempfile
import unittest
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tests.trainers.served import TASK, Floe, adapter, records

slime, REASON = adapter("slime")


@unittest.skipIf(slime is None, REASON)
class SlimeTest(unittest.TestCase):
    def generate(self, floe: Floe, evaluation: bool = False) -> Any:
        assert slime is not None
        slime._stream.cache_clear()
        stream = {"batch_id": "b", "source": {"kind": "endless"}}
        settings = {
            "url": floe.url,
            "task": TASK,
            "stream": stream,
            "evaluation": {"kind": "file", "path": "eval.jsonl"},
        }
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file, mock.patch.dict(os.environ):
            file.write(json.dumps(settings))
            file.flush()
            args = SimpleNamespace(rollout_batch_size=2, floe_config=file.name)
            return slime.generate_rollout(args, 0, None, evaluation=evaluation)

    def test_returns_groups_of_samples(self) -> None:
        from slime.utils.types import Sample

        given = records("slime")
        with Floe([(0, given)]) as floe:
            output = self.generate(floe)
            self.assertEqual([len(group) for group in output.samples], [3, 3])
            self.assertEqual((floe.requested[0].query["size"], output.metrics["floe/rejected_groups"]), ("2", 1))
        for sample, record in zip([sample for group in output.samples for sample in group], given):
            self.assertIsInstance(sample, Sample)
            for name in (
                "tokens",
                "loss_mask",
                "rollout_log_probs",
                "reward",
                "rollout_id",
                "weight_versions",
                "remove_sample",
            ):
                self.assertEqual(getattr(sample, name), record[name], name)
            self.assertEqual(sample.status.value, record["status"])
            self.assertEqual(tuple(sample.rollout_routed_experts.shape), (8, 2, 2))
            self.assertEqual(sample.rollout_routed_experts.flatten().tolist(), list(range(32)))

    def test_the_traces_of_a_session_share_its_rollout_in_one_depth(self) -> None:
        from slime.observability.rollout_data_utils import validate_rollout_id_annotated

        with Floe([(0, records("slime", "several"))]) as floe:
            samples = self.generate(floe).samples
        validate_rollout_id_annotated(samples)
        self.assertEqual([[len(session) for session in group] for group in samples], [[2, 1, 1], [2, 1, 1]])

    def test_evaluates_the_rows_of_the_settings(self) -> None:
        with Floe([(0, records("slime", group=0)), (1, records("slime", group=1))]) as floe:
            data = self.generate(floe, evaluation=True).data["floe"]
            self.assertEqual(data["rewards"], [0, 1, 0, 0, 1, 0])
            self.assertEqual(floe.created[0]["purpose"], "evaluate")


if __name__ == "__main__":
    unittest.main()
