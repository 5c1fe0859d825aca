"""The adapter of OpenRLHF with its AgentExecutorBase."""

from __future__ import annotations

import unittest
from typing import Any

from floe import AsyncClient, FloeError
from floe.trainers.settings import Settings
from tests.trainers.served import TASK, Floe, adapter, records

openrlhf, REASON = adapter("openrlhf")


@unittest.skipIf(openrlhf is None, REASON)
class OpenRlhfTest(unittest.IsolatedAsyncioTestCase):
    async def execute(self, floe: Floe, max_length: int = 64) -> Any:
        from openrlhf.utils.agent import AgentExecutorBase

        assert openrlhf is not None
        async with AsyncClient(floe.url) as client:
            executor = openrlhf.AgentExecutor(Settings(task=TASK), client)
            self.assertIsInstance(executor, AgentExecutorBase)
            return await executor.execute("2+2", "4", None, max_length, None, None)

    async def test_returns_what_the_trainer_reads_of_an_execution(self) -> None:
        given = records("openrlhf", group=0)
        with Floe([(0, given[1:2])]) as floe:
            found = await self.execute(floe)
            self.assertEqual(floe.created[0]["source"]["rows"], [{"prompt": "2+2", "instruction": "2+2", "label": "4"}])
            self.assertEqual(floe.created[0]["task"]["num_samples"], 1)
        self.assertEqual((found["prompt"], found["label"], found["reward"]), ("2+2", "4", 1))
        self.assertEqual(found["action_ranges"], [(3, 5), (7, 9)])
        self.assertEqual(len(found["rollout_log_probs"]), len(found["observation_tokens"]))

    async def test_refuses_a_session_that_is_longer_than_the_trainer_allows(self) -> None:
        with Floe([(0, records("openrlhf", group=0)[:1])]) as floe, self.assertRaises(FloeError) as raised:
            await self.execute(floe, max_length=8)
        self.assertIn("9 tokens, more than the trainer's max_length 8", raised.exception.message)

    async def test_raises_when_the_session_cannot_be_trained_on(self) -> None:
        with Floe([(0, [])]) as floe, self.assertRaises(FloeError):
            await self.execute(floe)


if __name__ == "__main__":
    unittest.main()
