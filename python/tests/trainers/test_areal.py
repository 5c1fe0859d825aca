"""The adapter of AReaL with its RolloutWorkflow and its check of trajectories."""

from __future__ import annotations

import unittest
from types import SimpleNamespace

from floe import AsyncClient
from floe.trainers.settings import Settings
from tests.trainers.served import TASK, Floe, adapter, records

areal, REASON = adapter("areal")


@unittest.skipIf(areal is None, REASON)
class ArealTest(unittest.IsolatedAsyncioTestCase):
    async def episode(self, floe: Floe) -> object:
        assert areal is not None
        async with AsyncClient(floe.url) as client:
            workflow = areal.FloeWorkflow(Settings(task=TASK), client=client)
            engine = SimpleNamespace(get_version=lambda: 7)
            return await workflow.arun_episode(engine, {"messages": [{"role": "user", "content": "go"}], "answer": "4"})

    async def test_returns_the_traces_of_a_group_as_tensors_that_areal_accepts(self) -> None:
        import torch
        from areal.infra.workflow_executor import check_trajectory_format

        for case in ("single", "several"):
            given = records("areal", case, group=1)
            with self.subTest(case), Floe([(0, given)]) as floe:
                found = await self.episode(floe)
                assert isinstance(found, dict)
                check_trajectory_format(found)
                self.assertEqual(
                    {name: tuple(value.shape) for name, value in found.items()}["input_ids"], (len(given), 9)
                )
                for name, value in found.items():
                    expected = torch.cat([torch.tensor(record[name]) for record in given])
                    self.assertEqual(value.tolist(), expected.tolist(), name)
                self.assertEqual(found["versions"].dtype, torch.int32)
                self.assertEqual(found["rewards"].shape, (len(given),))
                row = {"messages": [{"role": "user", "content": "go"}], "answer": "4", "instruction": "go"}
                self.assertEqual(floe.created[0]["source"]["rows"], [{**row, "prompt": row["messages"]}])
                self.assertEqual(floe.requested[0].query["policy_version"], "7")

    async def test_rejects_an_episode_without_a_trace(self) -> None:
        with Floe([(0, [])]) as floe:
            self.assertIsNone(await self.episode(floe))


if __name__ == "__main__":
    unittest.main()
