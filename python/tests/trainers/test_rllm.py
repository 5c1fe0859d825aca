"""The adapter of rLLM with its Episode."""

from __future__ import annotations

import unittest
from types import SimpleNamespace
from typing import Any

from floe import AsyncClient, FloeError
from floe.trainers.settings import Settings
from tests.trainers.served import TASK, Floe, adapter, records

rllm, REASON = adapter("rllm")


@unittest.skipIf(rllm is None, REASON)
class RllmTest(unittest.IsolatedAsyncioTestCase):
    async def episode(self, floe: Floe, is_validation: bool = False) -> Any:
        assert rllm is not None
        task = SimpleNamespace(id="t", instruction="go", metadata={"answer": "4"})
        async with AsyncClient(floe.url) as client:
            return await rllm.FloeAgentFlow(Settings(task=TASK), client).arun(
                task, SimpleNamespace(is_validation=is_validation)
            )

    async def test_returns_an_episode_with_a_step_for_each_reply(self) -> None:
        assert rllm is not None
        given = records("rllm", "several", 0)[0]
        with Floe([(0, [given])]) as floe:
            episode = await self.episode(floe)
            self.assertEqual(floe.created[0]["source"]["rows"], [{"answer": "4", "prompt": "go", "instruction": "go"}])
        self.assertEqual([trajectory.uid for trajectory in episode.trajectories], ["trace-0-0-0", "trace-0-0-1"])
        steps = [step for trajectory in episode.trajectories for step in trajectory.steps]
        expected = [step for trajectory in given["trajectories"] for step in trajectory["steps"]]
        for step, record in zip(steps, expected, strict=True):
            self.assertEqual(
                (step.prompt_ids, step.response_ids, step.logprobs),
                (record["prompt_ids"], record["response_ids"], record["logprobs"]),
            )
        self.assertEqual([step.weight_version for step in steps], [6, 7, 6, 7])
        for step in steps:
            output = step.model_output
            self.assertEqual((output.prompt_ids, output.completion_ids), (step.prompt_ids, step.response_ids))
            self.assertEqual((output.logprobs, output.routing_matrices), (step.logprobs, step.routing_matrices))
        self.assertEqual(rllm.FloeEvaluator().evaluate(None, episode).reward, 0)

    async def test_a_validation_has_the_purpose_of_one_and_a_failed_sample_raises(self) -> None:
        with Floe([(0, [])]) as floe, self.assertRaises(FloeError):
            await self.episode(floe, is_validation=True)
        self.assertEqual(floe.created[0]["purpose"], "evaluate")


if __name__ == "__main__":
    unittest.main()
