"""The adapter of NeMo-RL, which needs nothing of it."""

from __future__ import annotations

import base64
import importlib.util
import struct
import unittest
from typing import Any

from floe import AsyncClient, FloeError
from floe.trainers.nemo_rl import FloeGym, gym_result
from floe.trainers.settings import Settings
from tests.trainers.served import TASK, Floe, records


def without_experts(group: int, case: str = "single") -> list[Any]:
    """Returns records whose adapter needs no torch."""
    found = records("nemo_rl", case, group)
    for record in found:
        for message in record["message_log"] + record["input_message_log"]:
            message["routed_experts"] = None
    return found


class NemoRlTest(unittest.IsolatedAsyncioTestCase):
    async def rollouts(self, floe: Floe) -> list[Any]:
        messages = [{"role": "user", "content": "go"}]
        rows = [
            {"_rowidx": index, "responses_create_params": {"input": messages}, "answer": str(index)} for index in (5, 6)
        ]
        async with AsyncClient(floe.url) as client:
            gym = FloeGym(Settings(task=TASK), client)
            return [result async for result in gym.run_rollouts(rows, "timing")]

    async def test_yields_each_row_with_its_messages_and_the_time_of_all_with_the_last(self) -> None:
        given = [without_experts(group)[0] for group in (0, 1)]
        with Floe([(1, [given[1]]), (0, [given[0]])]) as floe:
            found = await self.rollouts(floe)
            rows = floe.created[0]["source"]["rows"]
            self.assertEqual([(row["instruction"], row["answer"]) for row in rows], [("go", "5"), ("go", "6")])
        self.assertEqual([(row, timing is None) for row, _, timing in found], [(6, True), (5, False)])
        self.assertEqual(set(found[1][2]), {"timing/await_results"})
        log = found[1][1]["message_log"]
        self.assertEqual([message["role"] for message in log], ["user", "assistant", "user", "assistant"])
        # NeMo-RL makes tensors of the log-probabilities of replies only.
        self.assertEqual(["generation_logprobs" in message for message in log], [False, True, False, True])
        self.assertEqual([i for message in log for i in message["token_ids"]], [1, 2, 3, 100, 101, 7, 8, 102, 103])

    async def test_a_sample_that_failed_or_is_masked_is_not_trained(self) -> None:
        masked = without_experts(0)[2]
        with Floe([(0, [masked]), (1, [])]) as floe:
            found = {row: result["full_result"] for row, result, _ in await self.rollouts(floe)}
        self.assertEqual(found, {5: {"reward": 0, "mask_sample": True}, 6: {"reward": 0.0, "mask_sample": True}})

    @unittest.skipIf(importlib.util.find_spec("torch") is None, "experts become tensors of torch")
    async def test_experts_are_tensors_of_int16_and_a_message_without_any_has_no_field(self) -> None:
        import torch

        record = records("nemo_rl", group=0)[0]
        data = base64.b64encode(struct.pack("<4h", 5, 300, -1, -1)).decode()
        record["message_log"][1]["routed_experts"] = {"dtype": "int16", "shape": [2, 1, 2], "data": data}
        reply = gym_result(record)["message_log"][1]
        self.assertEqual(reply["routed_experts"].dtype, torch.int16)
        self.assertEqual(reply["routed_experts"].tolist(), [[[5, 300]], [[-1, -1]]])
        plain = gym_result(without_experts(0)[0])
        self.assertFalse(any("routed_experts" in message for message in plain["message_log"]))

    async def test_refuses_sessions_with_several_traces_and_steps_without_a_sample(self) -> None:
        for groups, code in (
            ([(0, without_experts(0, "several")[:2])], "unsupported"),
            ([(0, [])], "no_completions"),
        ):
            with self.subTest(code), Floe(groups) as floe, self.assertRaises(FloeError) as raised:
                await self.rollouts(floe)
            self.assertEqual(raised.exception.code, code)


if __name__ == "__main__":
    unittest.main()
