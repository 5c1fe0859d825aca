"""The settings file of the adapters, and streams that are read by steps."""

from __future__ import annotations

import json
import os
import tempfile
import unittest
from unittest import mock

from floe import Client, FloeError
from floe.trainers.settings import Settings, instruction_of, plain, prompt_row
from floe.trainers.streams import StepStream, evaluation
from tests.trainers.served import TASK, Floe, records

STREAM = {"batch_id": "b", "source": {"kind": "file", "path": "rows.jsonl"}}


class SettingsTest(unittest.TestCase):
    def load(self, text: str) -> Settings:
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write(text)
            file.flush()
            with mock.patch.dict(os.environ, FLOE_CONFIG=file.name):
                return Settings.load()

    def test_reads_the_file_that_the_environment_names(self) -> None:
        settings = self.load(json.dumps({"task": TASK, "stream": STREAM, "names_versions": True}))
        self.assertEqual((settings.task, settings.stream, settings.names_versions), (TASK, STREAM, True))

    def test_names_what_is_wrong_with_it(self) -> None:
        for text, message in (
            ("[]", "is not a JSON object"),
            ("{", "Expecting"),
            ('{"tusk": {}}', "unknown field tusk"),
        ):
            with self.subTest(text), self.assertRaises(FloeError) as raised:
                self.load(text)
            self.assertEqual(raised.exception.code, "setup_failed")
            self.assertIn(message, raised.exception.message)
        with mock.patch.dict(os.environ, clear=True), self.assertRaises(FloeError) as unset:
            Settings.load()
        self.assertIn("FLOE_CONFIG is not set", unset.exception.message)

    def test_makes_rows_of_prompts(self) -> None:
        messages = [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "go"}]}]
        self.assertEqual(instruction_of(messages), "go")
        self.assertEqual(prompt_row("go", index=3), {"prompt": "go", "instruction": "go", "index": 3})
        self.assertEqual(plain({"a": (1, None), 2: object}), {"a": [1, None], "2": str(object)})


class StepStreamTest(unittest.TestCase):
    def stream(self, floe: Floe) -> StepStream:
        return StepStream(Settings(task=TASK, stream=STREAM), Client(floe.url))

    def test_each_step_has_its_batch_also_when_it_is_requested_again(self) -> None:
        with Floe([(0, records("slime", group=0)), (1, records("slime", group=1))]) as floe:
            stream = self.stream(floe)
            found = [stream.batch(step, "slime", size=2)["batch"] for step in (0, 0, 1, 1)]
            self.assertEqual(found, [1, 1, 2, 2])
            self.assertEqual([call.query["policy_version"] for call in floe.requested], ["0", "0", "1", "1"])
            self.assertEqual(floe.created[0], {"task": TASK, **STREAM})

    def test_a_process_that_restored_a_checkpoint_rewinds_the_stream(self) -> None:
        with Floe([(n, records("slime", group=0)) for n in range(5)]) as floe:
            floe.last = 4
            self.assertEqual(self.stream(floe).batch(2, "slime")["batch"], 3)
            (rewind,) = [call for call in floe.calls if call.path.endswith("/rewind")]
            self.assertEqual(rewind.body, {"after": 2, "policy_version": "2"})

    def test_a_run_that_starts_at_a_later_step_begins_with_the_first_batch(self) -> None:
        with Floe([(0, records("slime", group=0))]) as floe:
            self.assertEqual(self.stream(floe).batch(40, "slime")["batch"], 1)

    def test_the_end_of_the_data_is_an_error(self) -> None:
        with Floe([]) as floe, self.assertRaises(FloeError) as raised:
            self.stream(floe).batch(0, "slime")
        self.assertIn("has no batch for step 0", raised.exception.message)

    def test_needs_a_named_stream(self) -> None:
        with self.assertRaises(FloeError) as raised:
            StepStream(Settings(task=TASK, stream={"source": {"kind": "endless"}}))
        self.assertIn("batch_id", raised.exception.message)

    def test_an_evaluation_samples_its_own_rows_once(self) -> None:
        with Floe([(0, records("slime", group=0)), (1, records("slime", group=1))]) as floe:
            settings = Settings(task=TASK, evaluation={"kind": "file", "path": "eval.jsonl"})
            self.assertEqual(len(evaluation(Client(floe.url), settings, "slime")), 2)
            self.assertEqual((floe.created[0]["purpose"], floe.created[0]["source"]), ("evaluate", settings.evaluation))


if __name__ == "__main__":
    unittest.main()
