"""The adapter of TRL with its trainers' own classes."""

from __future__ import annotations


import unittest
from types import SimpleNamespace
from typing import Any

from floe import Client, FloeError
from tests.stub import Reply, Stub
from tests.trainers.served import TASK, Floe, adapter, records

trl, REASON = adapter("trl")
try:
    from trl.experimental.async_grpo.async_grpo_trainer import RolloutWorkerProtocol
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample
except ImportError as missing:
    trl, REASON = None, f"trl cannot be imported: {missing}"


@unittest.skipIf(trl is None, REASON)
class RolloutWorkerTest(unittest.TestCase):
    def worker(self, floe: Floe, **options: Any) -> Any:
        assert trl is not None
        worker = trl.FloeRolloutWorker(Client(floe.url, retry_seconds=0), "b", **options)
        self.addCleanup(worker.stop)
        return worker

    def test_has_what_the_trainer_calls(self) -> None:
        names = {name for name in vars(RolloutWorkerProtocol) if not name.startswith("_")}
        with Floe() as floe:
            worker = self.worker(floe)
            self.assertEqual(
                [name for name in names | set(RolloutWorkerProtocol.__annotations__) if not hasattr(worker, name)], []
            )

    def test_fills_the_buffer_with_the_samples_of_the_batches(self) -> None:
        for case in ("single", "several"):
            given = records("trl_async", case)
            with self.subTest(case), Floe([(0, given), (1, given)]) as floe:
                worker = self.worker(floe, per_session=True)
                worker.update_model_version(7)
                worker.start()
                for record in given:
                    sample = worker.rollout_buffer.get(timeout=30)
                    self.assertIsInstance(sample, RolloutSample)
                    for name in ("input_ids", "completion_mask", "old_log_probs"):
                        self.assertEqual(getattr(sample, name).tolist(), record[name])
                    for name in ("prompt", "completion", "advantage", "model_version", "group_id", "metrics"):
                        self.assertEqual(getattr(sample, name), record[name])
                self.assertEqual(worker.metrics_queue.get(timeout=30), {"floe/batch": 1.0, "floe/rejected_groups": 1.0})
                query = floe.requested[0].query
                self.assertEqual((query["policy_version"], query["per_session"], query["after"]), ("7", "true", "0"))

    def test_requests_the_next_batch_only_when_the_trainer_has_taken_the_samples(self) -> None:
        given = records("trl_async")
        with Floe([(0, given), (1, given)]) as floe:
            worker = self.worker(floe, buffered=1)
            worker.start()
            worker.rollout_buffer.get(timeout=30)
            self.assertEqual(len(floe.requested), 1)
            for _ in given:
                worker.rollout_buffer.get(timeout=30)
            floe.wait_for("GET /rollout/batches/b/next", 2)

    def test_reports_why_the_rollouts_ended(self) -> None:
        with Floe([]) as floe:
            worker = self.worker(floe)
            worker.check_health(60)
            worker.start()
            worker._thread.join(30)
            with self.assertRaises(RuntimeError) as raised:
                worker.check_health(60)
            self.assertIn("no further batch", str(raised.exception))
            with self.assertRaises(RuntimeError):
                self.worker(floe).check_health(-1)

    def test_stops_while_the_trainer_takes_no_samples(self) -> None:
        with Floe([(0, records("trl_async"))]) as floe:
            worker = self.worker(floe, buffered=1)
            worker.start()
            worker.rollout_buffer.get(timeout=30)
            worker.stop()
            self.assertFalse(worker._thread.is_alive())
            worker.check_health(60)

    def test_rewinds_the_stream_to_the_batch_of_the_checkpoint(self) -> None:
        with Floe([(n, records("trl_async")) for n in range(4)]) as floe:
            worker = self.worker(floe, after=2)
            worker.update_model_version(5)
            worker.start()
            worker.rollout_buffer.get(timeout=30)
            (rewind,) = [call for call in floe.calls if call.path.endswith("/rewind")]
            self.assertEqual(rewind.body, {"after": 2, "policy_version": "5"})
            self.assertEqual(floe.requested[0].query["after"], "2")


@unittest.skipIf(trl is None, REASON)
class WeightTransferTest(unittest.TestCase):
    def test_pauses_sends_names_the_model_version_and_resumes(self) -> None:
        assert trl is not None
        change: dict[str, Any] = {"pending": [], "problems": []}
        sent: list[Any] = []
        inner = SimpleNamespace(
            init_weight_transfer=lambda: None, send_weights=lambda it: sent.extend(it), destroy=lambda: None
        )
        routes = {f"POST /engines/{name}": change for name in ("pause", "version", "resume")}
        with (
            Stub(routes) as floe,
            Stub({"POST /reset_prefix_cache": Reply(b""), "POST /update_weight_version": {}}) as engine,
        ):
            transfer = trl.FloeWeightTransfer(Client(floe.url), inner, [engine.url])
            transfer.init_weight_transfer()
            for version in ("1", "2"):
                transfer.pause()
                transfer.send_weights(iter([("layer", version)]))
                transfer.resume()
                self.assertEqual(floe.calls[-2].body, {"version": version})
                self.assertEqual(engine.calls[-1].body, {"new_version": version})
            self.assertEqual(sent, [("layer", "1"), ("layer", "2")])
            self.assertEqual(floe.lines[:3], [f"POST /engines/{name}" for name in ("pause", "version", "resume")])
            transfer.destroy()

    def test_a_push_that_fails_names_no_version_and_resumes_nothing(self) -> None:
        assert trl is not None

        def fail(_: Any) -> None:
            raise RuntimeError("out of memory")

        with Stub({"POST /engines/pause": {"pending": [], "problems": []}}) as floe:
            transfer = trl.FloeWeightTransfer(Client(floe.url), SimpleNamespace(send_weights=fail))
            transfer.pause()
            with self.assertRaises(RuntimeError):
                transfer.send_weights(iter([]))
            self.assertEqual(floe.lines, ["POST /engines/pause"])
            floe.routes["POST /engines/pause"] = {"pending": ["node-2"], "problems": []}
            with self.assertRaises(FloeError) as raised:
                transfer.pause()
            self.assertIn("node-2", raised.exception.message)


@unittest.skipIf(trl is None, REASON)
class RolloutFuncTest(unittest.TestCase):
    def rollouts(self, floe: Floe, prompts: list[Any]) -> dict[str, list[Any]]:
        assert trl is not None
        trainer = SimpleNamespace(state=SimpleNamespace(global_step=7))
        found: dict[str, list[Any]] = trl.rollout_func(Client(floe.url), TASK)(prompts, trainer)
        return found

    def prompts(self) -> list[Any]:
        return [[{"role": "user", "content": text}] for text in ("a", "a", "a", "b", "b", "b")]

    def test_returns_one_completion_for_each_prompt_in_order(self) -> None:
        groups = [(1, records("trl", group=1)), (0, records("trl", group=0))]
        with Floe(groups) as floe:
            output = self.rollouts(floe, self.prompts())
            self.assertEqual([ids[0] for ids in output["completion_ids"]], [100, 120, 140, 200, 220, 240])
            self.assertEqual(output["reward"], [0, 1, 0, 0, 1, 0])
            rows = floe.created[0]["source"]["rows"]
            self.assertEqual([(row["instruction"], row["samples"]) for row in rows], [("a", 3), ("b", 3)])

    def test_replaces_failed_samples_by_masked_ones_without_a_reward(self) -> None:
        (short,) = records("trl", group=0)
        short = {name: column[:1] for name, column in short.items()}
        for groups, masked in (
            ([(0, [short]), (1, records("trl", group=1))], 2),
            ([(0, []), (1, records("trl", group=1))], 3),
        ):
            with self.subTest(masked), Floe(groups) as floe:
                output = self.rollouts(floe, self.prompts())
                self.assertEqual({len(column) for column in output.values()}, {6})
                self.assertEqual(output["reward"].count(None), masked)
                for mask, reward in zip(output["env_mask"], output["reward"]):
                    self.assertEqual(sum(mask), 0 if reward is None else 4)

    def test_a_step_without_any_sample_is_an_error(self) -> None:
        with Floe([(0, []), (1, [])]) as floe, self.assertRaises(FloeError) as raised:
            self.rollouts(floe, self.prompts())
        self.assertEqual(raised.exception.code, "no_completions")


if __name__ == "__main__":
    unittest.main()
