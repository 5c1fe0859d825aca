"""The adapter of ROLL with its DataProto."""

from __future__ import annotations

import json
import tempfile
import unittest
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tests.trainers.served import TASK, Floe, adapter, records

roll, REASON = adapter("roll")


@unittest.skipIf(roll is None, REASON)
class RollTest(unittest.TestCase):
    def play(self, floe: Floe, episodes: list[int | None]) -> list[Any]:
        """Runs the loop with a queue that hands out `episodes`, and returns what it put into the queue."""
        assert roll is not None
        put: list[Any] = []

        class Remote:
            def __init__(self, call: Any) -> None:
                self.remote = call

        given = iter(episodes)
        queue = SimpleNamespace(
            get_episode_id=Remote(lambda *_: next(given)), put=Remote(lambda *args: put.append(args))
        )
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write(json.dumps({"url": floe.url, "task": TASK}))
            file.flush()
            env = {
                "group_id": 1,
                "env_id": 2,
                "tag": "floe",
                "group_seed": 40,
                "config": {"floe_config": file.name, "attempts": 2},
            }
            pipeline, tokenizer = SimpleNamespace(sequence_length=16), SimpleNamespace(pad_token_id=0)
            manager = roll.FloeEnvManager(None, pipeline, env, tokenizer, None, queue)
        manager.update_step(7)
        with mock.patch.object(roll.ray, "get", side_effect=lambda value: value):
            manager.run_rollout_loop(SimpleNamespace(meta_info={"seed": 2}))
        return put

    def test_plays_episodes_until_the_queue_ends(self) -> None:
        record = records("roll", group=0)[1]
        # Every episode has a stream of its own, whose first batch is the session.
        with Floe([(0, [record])]) as floe:
            put = self.play(floe, [0, 1, None])
            rows = [created["source"]["rows"][0] for created in floe.created]
            self.assertEqual([(row["seed"], row["episode_id"]) for row in rows], [(42, 0), (43, 1)])
            self.assertIn('"sequence_length": 16', floe.requested[0].query["options"])
        self.assertEqual(
            [(entry[0], entry[1], entry[2], entry[4]) for entry in put], [(1, 0, 7, 2), (1, 1, 7, 2), (1, None, 7, 2)]
        )
        rollout = put[0][3]
        for name in (
            "input_ids",
            "attention_mask",
            "position_ids",
            "response_mask",
            "prompt_mask",
            "scores",
            "infer_logprobs",
        ):
            self.assertEqual(rollout.batch[name][0].tolist(), record[name], name)
        self.assertEqual(rollout.batch["infer_logprobs"].shape, (1, 15))
        self.assertEqual(rollout.non_tensor_batch["traj_id"][0], "floe_1_0_42_2")
        self.assertEqual(rollout.non_tensor_batch["episode_scores"][0], 1)

    def test_repeats_an_episode_whose_session_failed_and_then_raises(self) -> None:
        from floe import FloeError

        with Floe([(0, [])]) as floe, self.assertRaises(FloeError) as raised:
            self.play(floe, [0, None])
        self.assertEqual((len(floe.created), raised.exception.code), (2, "no_completions"))


if __name__ == "__main__":
    unittest.main()
