"""Tasks of verifiers as an environment."""

from __future__ import annotations

import asyncio
import sys
import types
import unittest
from typing import Any

try:
    import verifiers.v1 as vf
except ImportError:
    vf = None


@unittest.skipIf(vf is None, "verifiers is not installed: pip install verifiers==0.4.0")
class Tasksets(unittest.TestCase):
    def create(self, task_body: dict[str, Any], **data: Any) -> Any:
        """Makes environments of a taskset with two tasks."""
        from floe.registrations.taskset import taskset_function

        task_class = types.new_class("OwnTask", (vf.Task[vf.TaskData],), {}, lambda body: body.update(task_body))

        class Own(vf.Taskset[task_class, vf.TasksetConfig]):  # type: ignore[misc]
            def load(self) -> Any:
                for name in ("one", "two"):
                    yield task_class(vf.TaskData(**{"prompt": f"Say {name}.", "name": name, **data}), self.config.task)

        module = types.ModuleType("own_taskset")
        setattr(module, "Own", Own)
        setattr(module, "__all__", ["Own"])
        sys.modules["own_taskset"] = module
        self.addCleanup(sys.modules.pop, "own_taskset", None)
        return taskset_function("own_taskset")

    def test_the_weighted_rewards_score_the_reply_to_the_task_of_the_seed(self) -> None:
        async def right(self: Any, trace: Any) -> float:
            return float(trace.last_reply == self.data.name)

        async def doubled(self: Any, trace: Any) -> float:
            return 2.0

        create = self.create({"right": vf.reward(weight=3.0)(right), "doubled": vf.metric(doubled)})
        environment = create()
        messages, _ = environment.reset(3)
        self.assertEqual([message["content"] for message in messages], ["Say two."])
        _, reward, terminated, _, info = asyncio.run(environment.step("two"))
        self.assertEqual((reward, terminated, info), (3.0, True, {"right": 1.0, "doubled": 2.0}))
        environment.reset(2)
        self.assertEqual(asyncio.run(environment.step("two"))[1], 0.0)

    def test_tasks_that_need_more_than_a_prompt_are_refused(self) -> None:
        async def of_runtime(self: Any, trace: Any, runtime: Any) -> float:
            return 1.0

        async def setup(self: Any, trace: Any, runtime: Any) -> None:
            pass

        for body, data, message in (
            ({"in_box": vf.reward(of_runtime)}, {}, "a runtime for"),
            ({"setup": setup}, {}, r"setup\(\)"),
            ({}, {"image": "debian"}, "a container"),
            ({}, {"prompt": None}, "a simulated user"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                self.create(body, **data)().reset(0)


if __name__ == "__main__":
    unittest.main()
