"""The client against a running floe whose engine is simulated: FLOE_TEST_URL is its address."""

from __future__ import annotations

import os
import unittest

from floe import AsyncClient, Client, FloeError, TaskRequest
from floe.weights import VllmReload, VllmTransfer, WeightUpdateError, engine_urls, update_weights

URL = os.environ.get("FLOE_TEST_URL", "")
ENGINE = os.environ.get("FLOE_TEST_ENGINE", "")
#: An agent that makes one model call.
AGENT = (
    'curl -sSf "$OPENAI_BASE_URL/chat/completions" -H "Authorization: Bearer $OPENAI_API_KEY" '
    """-H 'content-type: application/json' -d '{"model": "policy", "messages": [{"role": "user", "content": "Say hello."}]}'"""
)
TASK: TaskRequest = {
    "instruction": "Say hello.",
    "num_samples": 2,
    "agent": {"harness": "shell", "custom_shell": AGENT},
    "evaluator": {"strategy": "session_completed"},
}


@unittest.skipUnless(URL, "FLOE_TEST_URL is not set: start `floe up --sim` and set it")
class LiveTest(unittest.IsolatedAsyncioTestCase):
    def test_submits_a_task_and_reads_its_results_once(self) -> None:
        with Client(URL) as client:
            reply = client.submit({**TASK, "trainer": "live-sync"})
            self.assertFalse(reply["duplicate"])
            results = []
            for result in client.results(trainer="live-sync", consumer="live-sync"):
                results.append(result)
                if len(results) == 2:
                    break
            self.assertEqual({result["session_id"] for result in results}, set(reply["session_ids"]))
            for result in results:
                self.assertEqual((result["outcome"], result["reward"]), ("completed", 1))
                trajectory = result["trajectory"]
                assert trajectory is not None
                (trace,) = trajectory["traces"]
                self.assertEqual(sum(trace["loss_mask"]), result["trainable_tokens"])
                self.assertEqual(client.trajectory(result["session_id"])["traces"][0]["trace_id"], trace["trace_id"])
            self.assertEqual(client.task(reply["task_id"])["status"], "completed")
            self.assertEqual(len(client.task_results(reply["task_id"])), 2)
            self.assertEqual(len(client.sessions(reply["task_id"])), 2)
            self.assertGreater(len(client.completions(results[0]["session_id"])), 0)
            # The first result was acknowledged by requesting the second; the second was not.
            again = next(client.results(trainer="live-sync", consumer="live-sync"))
            self.assertIn(again["session_id"], reply["session_ids"])

    def test_a_submission_that_is_repeated_is_a_duplicate_and_another_one_a_conflict(self) -> None:
        with Client(URL) as client:
            task: TaskRequest = {**TASK, "task_id": "live-duplicate"}
            self.assertFalse(client.submit(task)["duplicate"])
            self.assertTrue(client.submit(task)["duplicate"])
            with self.assertRaises(FloeError) as raised:
                client.submit({**task, "num_samples": 3})
            self.assertEqual(raised.exception.code, "conflict")
            client.cancel("live-duplicate")

    def test_a_wrong_field_is_named(self) -> None:
        with Client(URL) as client, self.assertRaises(FloeError) as raised:
            client.submit({**TASK, "num_samples": 0})
        self.assertEqual(raised.exception.code, "schema_violation")
        self.assertEqual(raised.exception.details["issues"][0]["path"], "num_samples")

    def test_pauses_names_a_version_and_resumes_the_engines(self) -> None:
        with Client(URL) as client:
            paused = client.pause_engines("keep")
            self.assertEqual((len(paused["done"]), paused["problems"]), (1, []))
            self.assertEqual(client.engines()["paused"], "keep")
            client.set_policy_version("step-7")
            client.resume_engines()
            engines = client.engines()
            self.assertEqual((engines["paused"], engines["policy_version"]), (None, "step-7"))

    @unittest.skipUnless(ENGINE, "FLOE_TEST_ENGINE is not set to the address of the simulated vLLM")
    def test_pushes_weights_and_their_tokens_have_the_new_version(self) -> None:
        with Client(URL) as client:
            self.assertEqual(engine_urls(client), [ENGINE])
            update_weights(client, VllmTransfer([ENGINE], [{}], init_info={}), "step-41")
            task: TaskRequest = {**TASK, "num_samples": 1, "trainer": "live-weights"}
            client.submit(task)
            result = next(client.results(trainer="live-weights"))
            assert result["trajectory"] is not None
            spans = result["trajectory"]["traces"][0]["version_spans"]
            self.assertEqual({span["version"] for span in spans}, {"step-41"})
            with self.assertRaises(WeightUpdateError) as raised:
                # The simulated engine knows no reload from a folder, and reports it as a failure of its worker.
                update_weights(client, VllmReload([ENGINE], "/nowhere"), "step-42")
            self.assertEqual((raised.exception.state, client.engines()["paused"]), ("mixed", "keep"))
            update_weights(client, VllmTransfer([ENGINE], [{}]), "step-43")
            self.assertIsNone(client.engines()["paused"])

    async def test_the_asynchronous_client_submits_and_reads(self) -> None:
        async with AsyncClient(URL) as client:
            reply = await client.submit({**TASK, "trainer": "live-async"})
            seen = set()
            async for result in client.results(trainer="live-async"):
                seen.add(result["session_id"])
                if len(seen) == 2:
                    break
            self.assertEqual(seen, set(reply["session_ids"]))
            self.assertIn("sessions", await client.status())


if __name__ == "__main__":
    unittest.main()
