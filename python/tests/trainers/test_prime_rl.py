"""The adapter of prime-rl with its packing and its files for the trainer's ranks."""

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace

from floe.trainers.settings import Settings
from tests.trainers.served import TASK, Floe, adapter, records

prime_rl, REASON = adapter("prime_rl")


@unittest.skipIf(prime_rl is None, REASON)
class PrimeRlTest(unittest.IsolatedAsyncioTestCase):
    async def test_the_trainer_receives_the_samples_of_a_step(self) -> None:
        from prime_rl.trainer.batch import build_bin_cost, prepare_batch
        from prime_rl.transports.rollouts import FileSystemMicroBatchReceiver, FileSystemMicroBatchSender

        assert prime_rl is not None
        given = records("prime_rl")
        stream = {"batch_id": "b", "source": {"kind": "endless"}}
        packer = SimpleNamespace(
            pack=lambda samples: prepare_batch(
                rollouts=samples, seq_len=64, num_train_workers=2, bin_cost=build_bin_cost(None)
            )
        )
        with tempfile.TemporaryDirectory() as folder, Floe([(0, given)]) as floe:
            sender = FileSystemMicroBatchSender(Path(folder), 2)
            settings = Settings(url=floe.url, task=TASK, stream=stream)
            await prime_rl.FloeOrchestrator(packer, sender, settings, advantages="centered").step(0)
            self.assertEqual(floe.requested[0].query["advantages"], "centered")
            received = [
                batch for rank in (0, 1) for batch in FileSystemMicroBatchReceiver(Path(folder), rank).receive()
            ]
        trained = [
            (ids, logprob, advantage)
            for batch in received
            for ids, mask, logprob, advantage in zip(
                batch.input_ids, batch.loss_mask, batch.inference_logprobs, batch.advantages
            )
            if mask
        ]
        expected = [
            (ids, logprob, advantage)
            for record in given
            for ids, mask, logprob, advantage in zip(
                record["token_ids"], record["mask"], record["logprobs"], record["advantages"]
            )
            if mask
        ]
        self.assertEqual(sorted(trained), sorted(expected))

    def test_routed_experts_keep_their_rows(self) -> None:
        assert prime_rl is not None
        sample = prime_rl.training_sample(records("prime_rl")[0])
        self.assertEqual((sample.routed_experts.shape, sample.routed_experts.dtype), ([9, 2, 2], "int32"))
        self.assertEqual(len(sample.routed_experts.data), 9 * 2 * 2 * 4)


if __name__ == "__main__":
    unittest.main()
