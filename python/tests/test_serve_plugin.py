"""Processes of plug-ins, each with a node that sends all its messages at once and then closes stdin."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any

PYTHON = Path(__file__).parent.parent


class World:
    """An environment whose first step fails as its option says."""

    def __init__(self, closed: str = "") -> None:
        self._closed = closed

    def reset(self, seed: int) -> Any:
        return "start", {}

    def step(self, action: str) -> Any:
        try:
            raise ValueError(action)
        except ValueError as error:
            raise error from error

    def close(self) -> None:
        if self._closed:
            time.sleep(0.5)
            Path(self._closed).write_text("closed")


class Handler:
    data_sources = ["rows"]

    def init(self, job: Any) -> None:
        """Sends more to its node than a message may have, then what is not JSON."""
        problems = []
        for params in ({"path": "a", "text": "x" * 5_000}, {"path": "a", "text": object()}):
            try:
                job.episode.write_file(**params)
            except (TypeError, ValueError) as error:
                problems.append(str(error))
        raise RuntimeError("; ".join(problems))

    def run(self, job: Any, state: Any) -> None:
        pass

    def eval(self, job: Any, state: Any, artifacts: Any) -> float:
        return 1.0


class Sourceless(Handler):
    data_sources = [""]


ORDER: dict[str, Any] = {
    **{"seed": 7, "instruction": "", "system_prompt": None, "metadata": {}, "services": {}, "max_turns": None},
    **{"workdir": None, "has_environment": False, "base_url": "", "api_key": ""},
}


def call(number: int, method: str, **params: Any) -> dict[str, Any]:
    return {"type": "call", "id": number, "episode": 1, "method": method, "params": params}


def served(kind: str, name: str, *messages: Any, **setup: Any) -> tuple[int, list[dict[str, Any]]]:
    """Returns the exit status of a process and its messages after these of its node."""
    ended = subprocess.run(
        [sys.executable, "-m", "floe.serve_plugin", kind, f"{__name__}:{name}"],
        cwd=PYTHON,
        env={**os.environ, "PYTHONPATH": str(PYTHON / "src")},
        input="".join(f"{json.dumps(message)}\n" for message in ({"type": "setup", **setup}, *messages)),
        capture_output=True,
        text=True,
        timeout=60,
    )
    return ended.returncode, [json.loads(line) for line in ended.stdout.splitlines()]


class Processes(unittest.TestCase):
    def test_an_error_that_is_its_own_cause_is_returned(self) -> None:
        reset = call(1, "reset", seed=7, options={})
        step = call(2, "step", message={"role": "assistant", "content": "up"})
        _, replies = served("environment", "World", reset, step)
        self.assertEqual(replies[-1], {"type": "error", "id": 2, "message": "ValueError: up", "cause": None})

    def test_a_message_to_the_node_that_is_too_large_or_no_json_raises_in_the_code_that_sends_it(self) -> None:
        init = call(1, "init", data_source="rows", instance={}, order=ORDER)
        # With a thread for each episode, the process would end before the call has ended.
        _, replies = served("handler", "Handler", init, max_message=4_000, threads=1)
        self.assertRegex(
            replies[-1]["message"],
            r"^RuntimeError: what write_file was called with has 5\d\d\d bytes as JSON; the maximum is 4000; "
            r"what write_file was called with is not JSON: Object of type object",
        )

    def test_a_handler_with_an_empty_data_source_is_refused(self) -> None:
        status, replies = served("handler", "Sourceless")
        self.assertEqual((status, replies[-1]["type"]), (1, "broken"))
        self.assertRegex(replies[-1]["message"], "has no data_sources, a list of names")

    def test_a_process_that_cannot_take_a_message_ends(self) -> None:
        status, replies = served("environment", "World", {"type": "unknown"}, call(1, "end"))
        self.assertEqual((status, [reply["type"] for reply in replies]), (1, ["ready"]))

    def test_an_environment_with_a_thread_of_its_own_is_closed_before_the_process_ends(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "closed")
            reset = call(1, "reset", seed=7, options={"closed": str(path)})
            status, _ = served("environment", "World", reset, call(2, "end"), threads=2)
            self.assertEqual(path.read_text(), "closed")
            self.assertEqual(status, 0)


if __name__ == "__main__":
    unittest.main()
