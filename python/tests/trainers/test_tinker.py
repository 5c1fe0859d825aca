"""The adapter of Tinker with the classes of the package `tinker`."""

from __future__ import annotations

import unittest
from array import array

from floe import Client
from tests.trainers.served import Floe, adapter, records

tinker, REASON = adapter("tinker")


@unittest.skipIf(tinker is None, REASON)
class TinkerTest(unittest.TestCase):
    def test_yields_batches_of_datums_without_the_mask(self) -> None:
        assert tinker is not None
        given = records("tinker")
        with Floe([(0, given)]) as floe:
            batches = list(tinker.datums(Client(floe.url), "b", policy_version=lambda: 7, advantages="leave_one_out"))
            self.assertEqual(len(batches), 1)
            self.assertEqual(len(batches[0].datums), len(given))
            self.assertEqual(batches[0].batch["batch"], 1)
            query = floe.requested[0].query
            self.assertEqual(
                (query["format"], query["advantages"], query["policy_version"]), ("tinker", "leave_one_out", "7")
            )
        for datum, record in zip(batches[0].datums, given):
            self.assertEqual(datum.model_input.to_ints(), record["model_input"]["chunks"][0]["tokens"])
            self.assertEqual(set(datum.loss_fn_inputs), {"target_tokens", "logprobs", "advantages"})
            for name, tensor in datum.loss_fn_inputs.items():
                expected = record["loss_fn_inputs"][name]["data"]
                if name != "target_tokens":
                    expected = array("f", expected).tolist()
                self.assertEqual(tensor.tolist(), expected)
                self.assertEqual((tensor.dtype, tensor.shape), ("int64" if name == "target_tokens" else "float32", [8]))


if __name__ == "__main__":
    unittest.main()
