"""The adapter of SkyRL with its own validator of outputs."""

from __future__ import annotations

import unittest
from typing import Any

from floe import AsyncClient, FloeError
from floe.trainers.settings import Settings
from tests.trainers.served import TASK, Floe, adapter, records

skyrl, REASON = adapter("skyrl")


@unittest.skipIf(skyrl is None, REASON)
class SkyrlTest(unittest.IsolatedAsyncioTestCase):
    async def generate(self, floe: Floe, phase: str = "train", step_wise: bool = False) -> Any:
        from skyrl.train.generators.base import BatchMetadata, GeneratorInput, TrajectoryID

        assert skyrl is not None
        # The prompts of two instances alternate, so that order and grouping differ.
        places = [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2), ("b", 2)]
        given = GeneratorInput(
            prompts=[[{"role": "user", "content": instance}] for instance, _ in places],
            env_classes=["floe"] * 6,
            env_extras=[{"answer": instance} for instance, _ in places],
            sampling_params=None,
            trajectory_ids=[TrajectoryID(*place) for place in places],
            batch_metadata=BatchMetadata(global_step=7, training_phase=phase),
        )
        async with AsyncClient(floe.url) as client:
            return await skyrl.FloeGenerator(Settings(task=TASK), step_wise=step_wise, client=client).generate(given)

    def served(self, case: str, first: list[dict[str, Any]] | None = None) -> Floe:
        groups = [records("skyrl", case, group) for group in (0, 1)]
        # Groups are done in another order than their rows.
        return Floe([(1, groups[1]), (0, groups[0] if first is None else first)])

    async def test_returns_the_samples_in_the_order_of_the_prompts(self) -> None:
        from skyrl.train.utils.trainer_utils import validate_generator_output

        with self.served("single") as floe:
            output = await self.generate(floe)
            validate_generator_output(6, output)
            self.assertEqual([ids[0] for ids in output["response_ids"]], [100, 200, 120, 220, 140, 240])
            self.assertEqual(
                [item.to_string() for item in output["trajectory_ids"]], ["a_0", "b_0", "a_1", "b_1", "a_2", "b_2"]
            )
            self.assertEqual(output["rewards"], [0, 0, 1, 1, 0, 0])
            rows = floe.created[0]["source"]["rows"]
            self.assertEqual(
                [(row["instruction"], row["answer"], row["samples"]) for row in rows], [("a", "a", 3), ("b", "b", 3)]
            )
            self.assertEqual(floe.created[0]["task"]["num_samples"], "{{row.samples}}")

    async def test_returns_the_steps_of_a_session_next_to_each_other(self) -> None:
        from skyrl.train.utils.trainer_utils import validate_generator_output

        with self.served("several") as floe:
            output = await self.generate(floe, step_wise=True)
            validate_generator_output(6, output, step_wise=True)
            self.assertEqual(output["is_last_step"], [False, True, False, True, True, True, True, True])
            self.assertEqual([ids[0] for ids in output["response_ids"]], [100, 110, 200, 210, 120, 220, 140, 240])
            self.assertIn('"step_wise": true', floe.requested[0].query["options"])

    async def test_trains_no_sample_of_an_instance_of_which_one_failed(self) -> None:
        from skyrl.train.utils.trainer_utils import validate_generator_output

        (record,) = records("skyrl", "single", 0)
        for name, column in record.items():
            if isinstance(column, list):
                column.pop()
        for first in ([record], []):
            with self.subTest(samples=len(first)), self.served("single", first) as floe:
                output = await self.generate(floe)
                validate_generator_output(6, output)
                sums = [sum(mask) for mask in output["loss_masks"]]
                self.assertEqual(sums, [0, 4, 0, 4, 0, 4])

    async def test_a_step_without_any_sample_is_an_error(self) -> None:
        with Floe([(0, []), (1, [])]) as floe, self.assertRaises(FloeError) as raised:
            await self.generate(floe)
        self.assertEqual(raised.exception.code, "no_completions")

    async def test_an_evaluation_has_the_purpose_of_one(self) -> None:
        with self.served("single") as floe:
            await self.generate(floe, "eval")
            self.assertEqual(floe.created[0]["purpose"], "evaluate")


if __name__ == "__main__":
    unittest.main()
