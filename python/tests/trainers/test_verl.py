"""The adapter of verl with its AgentLoopOutput and the worker that writes to the TransferQueue."""

from __future__ import annotations

import asyncio
import unittest
from types import SimpleNamespace
from typing import Any
from unittest import mock

from floe import AsyncClient, FloeError
from floe.trainers.settings import Settings
from tests.trainers.served import TASK, Floe, adapter, records

verl, REASON = adapter("verl")


class Queue:
    """Records what would get into the TransferQueue."""

    def __init__(self) -> None:
        self.tags: list[tuple[str, str, str]] = []
        self.rows: dict[str, Any] = {}

    async def async_kv_put(self, key: str, partition_id: str, tag: dict[str, str]) -> None:
        self.tags.append((key, partition_id, tag["status"]))

    async def async_kv_batch_put(self, keys: list[str], fields: Any, tags: list[Any], partition_id: str) -> None:
        for index, key in enumerate(keys):
            self.rows[key] = (fields[index], tags[index], partition_id)


@unittest.skipIf(verl is None, REASON)
class ManagerTest(unittest.TestCase):
    def run_prompts(self, floe: Floe, queue: Queue, validate: bool = False) -> None:
        import numpy as np
        import torch
        from tensordict import NonTensorData, NonTensorStack, TensorDict

        assert verl is not None
        # A worker as verl makes it, without the model that its constructor loads.
        worker = object.__new__(verl._Worker)
        worker.processor = None
        worker.reward_loop_worker_handles = None
        worker.distillation_enabled = False
        rollout = SimpleNamespace(n=3, val_kwargs=SimpleNamespace(n=1))
        config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout))
        prompts = TensorDict(
            {
                "uid": NonTensorStack("u0", "u1"),
                "index": torch.tensor([4, 5]),
                "raw_prompt": NonTensorStack(*[NonTensorData([{"role": "user", "content": text}]) for text in "ab"]),
                "extra_info": NonTensorStack(
                    NonTensorData({"size": np.int64(2)}), NonTensorData({"size": np.int64(3)})
                ),
                "agent_name": NonTensorData("floe"),
                "global_steps": NonTensorData(7),
            },
            batch_size=2,
        )
        if validate:
            prompts["validate"] = NonTensorData(True)
        client = AsyncClient(floe.url, retry_seconds=0)
        with mock.patch.multiple(verl.tq, async_kv_put=queue.async_kv_put, async_kv_batch_put=queue.async_kv_batch_put):
            manager = verl.FloeAgentLoopManager(config, worker, Settings(task=TASK), client)
            manager.generate_sequences(prompts)
            for task in list(manager._running):
                task.result(60)
        asyncio.run(client.close())

    def test_puts_the_samples_of_each_prompt_into_the_queue(self) -> None:
        for case in ("single", "several"):
            given = [records("verl", case, group) for group in (0, 1)]
            queue = Queue()
            with self.subTest(case), Floe([(1, given[1]), (0, given[0])]) as floe:
                self.run_prompts(floe, queue)
                self.assertEqual(
                    queue.tags,
                    [
                        ("u0", "train", "running"),
                        ("u1", "train", "running"),
                        ("u1", "train", "finished"),
                        ("u0", "train", "finished"),
                    ],
                )
                sessions = {(record["session_id"], record["index"]) for record in given[0]}
                self.assertEqual(
                    set(queue.rows), {f"u{n}_{session}_{index}" for n in (0, 1) for session, index in sessions}
                )
                for record in given[1]:
                    fields, tag, _ = queue.rows[f"u1_{record['session_id']}_{record['index']}"]
                    for name, field in (
                        ("prompt_ids", "prompts"),
                        ("response_ids", "responses"),
                        ("response_mask", "response_mask"),
                        ("response_logprobs", "rollout_log_probs"),
                    ):
                        self.assertEqual(fields[field].tolist(), record[name])
                    self.assertEqual(tuple(fields["routed_experts"].shape), (9, 2, 2))
                    self.assertEqual(fields["rm_scores"].tolist()[-1], record["reward_score"])
                    self.assertEqual((tag["min_global_steps"], tag["max_global_steps"], tag["global_steps"]), (6, 7, 7))
                rows = floe.created[0]["source"]["rows"]
                self.assertEqual(
                    [(row["instruction"], row["index"], row["extra_info"], row["samples"]) for row in rows],
                    [("a", 4, {"size": 2}, 3), ("b", 5, {"size": 3}, 3)],
                )

    def test_a_prompt_of_which_a_sample_failed_is_a_failure_and_puts_nothing(self) -> None:
        queue = Queue()
        with Floe([(0, records("verl", group=0)[:2]), (1, records("verl", group=1))]) as floe:
            self.run_prompts(floe, queue)
        self.assertEqual(dict((key, status) for key, _, status in queue.tags), {"u0": "failure", "u1": "finished"})
        self.assertEqual({key.split("_")[0] for key in queue.rows}, {"u1"})

    def test_prompts_without_a_group_are_failures(self) -> None:
        queue = Queue()
        with Floe([(1, records("verl", group=1))]) as floe:
            self.run_prompts(floe, queue)
        self.assertEqual(dict((key, status) for key, _, status in queue.tags), {"u0": "failure", "u1": "finished"})

    def test_a_server_that_fails_makes_all_prompts_failures(self) -> None:
        queue = Queue()
        with Floe() as floe, self.assertLogs("floe.trainers.verl", "ERROR"):
            with mock.patch.object(floe, "answer", side_effect=lambda call: {"unexpected": True}):
                self.run_prompts(floe, queue)
        self.assertEqual([status for _, _, status in queue.tags[2:]], ["failure", "failure"])

    def test_a_validation_has_its_partition_and_its_number_of_samples(self) -> None:
        queue = Queue()
        with Floe([(n, records("verl", group=n)[:1]) for n in (0, 1)]) as floe:
            self.run_prompts(floe, queue, validate=True)
            self.assertEqual(
                (floe.created[0]["purpose"], floe.created[0]["source"]["rows"][0]["samples"]), ("evaluate", 1)
            )
        self.assertEqual({partition for _, _, partition in queue.rows.values()}, {"val"})


@unittest.skipIf(verl is None, REASON)
class AgentLoopTest(unittest.IsolatedAsyncioTestCase):
    async def run_loop(self, floe: Floe) -> Any:
        assert verl is not None
        loop = object.__new__(verl.FloeAgentLoop)
        loop._settings = Settings(task=TASK)
        async with AsyncClient(floe.url) as client:
            loop._client = client
            return await loop.run({}, raw_prompt=[{"role": "user", "content": "a"}], uid="u0", global_steps=7)

    async def test_returns_the_traces_of_one_session(self) -> None:
        given = records("verl", "several", 0)[:2]
        with Floe([(0, given)]) as floe:
            outputs = await self.run_loop(floe)
            self.assertEqual([output.response_ids for output in outputs], [record["response_ids"] for record in given])
        with Floe([(0, given[:1])]) as floe:
            self.assertEqual((await self.run_loop(floe)).extra_fields, given[0]["extra_fields"])

    async def test_raises_when_the_session_cannot_be_trained_on(self) -> None:
        with Floe([(0, [])]) as floe, self.assertRaises(FloeError) as raised:
            await self.run_loop(floe)
        self.assertEqual(raised.exception.code, "no_completions")


if __name__ == "__main__":
    unittest.main()
