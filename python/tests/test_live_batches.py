"""Batch streams of a running floe whose engine is simulated: FLOE_TEST_URL is its address."""

from __future__ import annotations

import json
import unittest
import uuid
from typing import Any

from floe import AsyncClient, BatchStreamRequest, Client, FloeError
from floe.api_types import BatchStreamRequestAccept
from tests.test_live import AGENT, URL

#: Names the row in the result, and takes the reward from it.
TASK: dict[str, Any] = {
    "instruction": "Answer: {{row.question}}",
    "num_samples": 2,
    "agent": {"harness": "shell", "custom_shell": AGENT},
    "evaluator": {"strategy": "session_completed"},
}
ROWS = [{"question": f"{n}+{n}"} for n in range(4)]
KEEP: BatchStreamRequestAccept = {"zero_variance": "keep"}
#: New ids, so that the tests can be repeated with the same server.
STREAM, FORMATS = f"live-{uuid.uuid4()}", f"live-{uuid.uuid4()}"


@unittest.skipUnless(URL, "FLOE_TEST_URL is not set: start `floe up --sim` and set it")
class LiveBatchesTest(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        self.client = Client(URL)
        self.addCleanup(self.client.close)
        self.client.set_policy_version("step-50")

    def test_hands_out_batches_that_stay_the_same_until_they_are_acknowledged(self) -> None:
        client = self.client
        stream: BatchStreamRequest = {
            "batch_id": STREAM,
            "source": {"kind": "rows", "rows": ROWS[:1], "open": True},
            "task": TASK,
            "batch_size": 2,
            "accept": KEEP,
            "order": {"epochs": 1},
            "max_staleness": 100,
        }
        self.assertEqual(client.create_batches(stream)["batch"], 0)
        self.assertTrue(client.create_batches(stream).get("duplicate"))
        self.assertEqual(client.push_rows(STREAM, ROWS[1:], last=True), {"row_count": 4, "invalid": []})
        self.assertEqual(client.push_rows(STREAM, ROWS[1:], last=True, after=1)["row_count"], 4)
        step = 1
        batches = client.batches(STREAM, policy_version=lambda: step)
        first = next(batches)
        self.assertEqual((first["batch"], len(first["groups"]), first["policy_step"]), (1, 2, 1))
        for group in first["groups"]:
            self.assertEqual(len(group["results"]), 2)
            self.assertEqual(group["row"], ROWS[group["row_index"]])
        again = client.next_batch(STREAM, after=0, policy_version=1)
        self.assertEqual(
            [group["group_id"] for group in again["groups"]], [group["group_id"] for group in first["groups"]]
        )
        step = 2
        second = next(batches)
        rows = {group["row_index"] for batch in (first, second) for group in batch["groups"]}
        self.assertEqual(rows, {0, 1, 2, 3})
        self.assertEqual(list(batches), [])
        with self.assertRaises(FloeError) as older:
            client.next_batch(STREAM, after=2, policy_version=1)
        self.assertEqual(older.exception.code, "conflict")
        self.assertEqual(client.rewind_batches(STREAM, after=1, policy_version=1)["batch"], 1)
        self.assertIn(STREAM, [view["batch_id"] for view in client.batch_streams()])
        self.assertEqual(client.delete_batches(STREAM)["status"], "ended")

    def test_every_format_has_records_of_the_batch(self) -> None:
        stream: BatchStreamRequest = {"batch_id": FORMATS, "source": {"kind": "rows", "rows": ROWS}, "task": TASK, "batch_size": 4}
        self.client.create_batches({**stream, "accept": KEEP, "order": {"epochs": 1}})
        options = {
            "roll": {"sequence_length": 4096, "pad_token_id": 0},
            "verl_batch": {"prompt_length": 4096, "response_length": 4096, "pad_token_id": 0},
        }
        counts = {"skyrl": 1, "trl": 1, "verl_batch": 1}
        for format in (
            "floe",
            "slime",
            "verl",
            "verl_batch",
            "nemo_rl",
            "skyrl",
            "tinker",
            "prime_rl",
            "trl_async",
            "trl",
            "areal",
            "roll",
            "rllm",
            "openrlhf",
            "art",
        ):
            with self.subTest(format):
                (batch,) = [
                    self.client.next_batch(FORMATS, after=0, wait=60, format=format, options=options.get(format))
                ]
                self.assertEqual(len(batch["records"]), counts.get(format, 8))
                self.assertNotIn("results", batch["groups"][0])
        facts, data = self.client.next_batch_arrow(FORMATS, after=0, format="verl")
        self.assertEqual((facts["batch"], len(facts["groups"])), (1, 4))
        self.assertGreater(len(data), 1000)
        self.client.delete_batches(FORMATS)

    def test_rollouts_sample_the_given_rows_and_leave_no_stream(self) -> None:
        found = {}
        for batch in self.client.rollouts(
            [{**row, "samples": n + 1} for n, row in enumerate(ROWS)],
            {**TASK, "num_samples": "{{row.samples}}"},
            format="trl",
        ):
            found[batch["groups"][0]["row_index"]] = len(batch["records"][0]["prompt_ids"])
        self.assertEqual(found, {0: 1, 1: 2, 2: 3, 3: 4})
        running = [view for view in self.client.batch_streams() if view["status"] == "running"]
        self.assertEqual([view["batch_id"] for view in running if view["batch_id"].startswith("client-")], [])

    def test_a_row_whose_samples_failed_has_a_group_without_records(self) -> None:
        failing = {**TASK, "agent": {"harness": "shell", "custom_shell": "{{row.command}}"}, "max_attempts": 1}
        rows = [{"question": "x", "command": "exit 3"}, {"question": "y", "command": AGENT}]
        found = {
            batch["groups"][0]["row_index"]: len(batch["records"])
            for batch in self.client.rollouts(rows, failing, format="verl", stream={"purpose": "evaluate"})
        }
        self.assertEqual(found, {0: 0, 1: 2})

    async def test_the_asynchronous_client_samples_rows_at_the_same_time(self) -> None:
        async with AsyncClient(URL) as client:
            seen = [
                json.dumps(batch["groups"][0]["row"]) async for batch in client.rollouts(ROWS, TASK, format="areal")
            ]
        self.assertEqual(sorted(seen), sorted(json.dumps(row) for row in ROWS))


if __name__ == "__main__":
    unittest.main()
