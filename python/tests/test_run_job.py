"""Runners as a process serves them, with a node that is played by the test."""

from __future__ import annotations

import sys
import tempfile
import textwrap
import unittest
import unittest.mock
from pathlib import Path
from typing import Any, Dict, Mapping

from floe.plugin_process import Setup
from floe.run_job import AgentRunner, EnvConfig, EpisodeResult, GEMRunner, ToolCallRunner
from floe.serve_runner import Runners, runner_class

ORDER: Dict[str, Any] = {
    **{"seed": 7, "instruction": "", "system_prompt": None, "metadata": {}, "services": {}, "max_turns": None},
    **{"workdir": None, "has_environment": True, "base_url": "http://127.0.0.1:1", "api_key": "key"},
}


class Node:
    """Answers model calls with the given texts, and plays an environment of two steps."""

    def __init__(self, *replies: Any) -> None:
        self.replies = list(replies)
        self.asked: list[Any] = []
        self.played: list[Any] = []

    def call(self, episode: int, method: str, params: Mapping[str, Any]) -> Any:
        if method == "llm_request":
            self.asked.append(params)
            reply = self.replies.pop(0)
            message = reply if isinstance(reply, dict) else {"role": "assistant", "content": reply}
            return {"choices": [{"message": message}]}
        if method == "reset":
            return {"messages": [{"role": "user", "content": "one"}], "introduction": "Rules."}
        self.played.append(params["message"]["content"])
        return {
            "messages": [{"role": "user", "content": "two"}],
            **{"reward": 0.5, "terminated": len(self.played) == 2, "truncated": False},
        }


class Games:
    """An environment whose observations are texts."""

    def reset(self, seed: int) -> Any:
        self.steps = 0
        return f"seed {seed}", {"env_instruction": "Rules."}

    def step(self, action: str) -> Any:
        self.steps += 1
        return f"after {action}", 1.0, self.steps == 2, False, {}


def jobs(cls: Any, node: Node, **config: Any) -> Any:
    runners = Runners(cls, Setup({"options": config.pop("options", {})}), node)  # type: ignore[arg-type]
    return runners.call("run_job", 1, {"order": ORDER, "config": config})


class GemRunners(unittest.TestCase):
    def test_a_gem_runner_plays_a_class_with_its_templates(self) -> None:
        node = Node("a", "b")
        result = jobs(
            GEMRunner,
            node,
            env_type=f"{__name__}:Games",
            agent_system_template="Play.",
            agent_template="{observation} ({actions_left} left)",
            max_steps=3,
        )
        self.assertEqual(result, {**_finished(2.0, [1.0, 1.0]), "metrics": {}})
        texts = [message["content"] for message in node.asked[1]["messages"]]
        self.assertEqual(texts, ["Play.\n\nRules.", "seed 7 (3 left)", "a", "after a (2 left)"])

    def test_a_gem_runner_without_a_type_plays_the_environment_of_the_task(self) -> None:
        node = Node("a", "b")
        self.assertEqual(jobs(GEMRunner, node)["score"], 1.0)
        self.assertEqual(node.played, ["a", "b"])

    def test_a_gem_runner_whose_steps_are_used_up_is_truncated(self) -> None:
        self.assertEqual(jobs(GEMRunner, Node("a"), max_steps=1)["status"], "Truncated")

    def test_a_tool_call_runner_gives_calls_as_messages_and_texts_as_texts(self) -> None:
        actions: list[Any] = []

        class Tools:
            def reset(self, seed: int) -> Any:
                return [{"role": "user", "content": "go"}], {"tools": ["the tool"]}

            def step(self, action: Any) -> Any:
                actions.append(action)
                return [{"role": "tool", "content": "3"}], 1.0, isinstance(action, str), False, {}

        class Runner(ToolCallRunner):
            def setup(self) -> None:
                self.env = Tools()

        call = {"role": "assistant", "content": None, "tool_calls": ["a call"]}
        node = Node(call, "3")
        self.assertEqual(jobs(Runner, node)["status"], "Finished")
        self.assertEqual(actions, [call, "3"])
        self.assertEqual(node.asked[0]["tools"], ["the tool"])
        self.assertEqual([message["role"] for message in node.asked[1]["messages"]], ["user", "assistant", "tool"])

    def test_tools_of_roll_are_refused(self) -> None:
        with self.assertRaisesRegex(NotImplementedError, "tool_wrapper"):
            jobs(GEMRunner, Node(), tool_wrapper={})


class AnyRunners(unittest.TestCase):
    def test_the_configuration_has_attributes_at_every_level(self) -> None:
        config = EnvConfig({"a": {"b": [{"c": 1}]}})
        self.assertEqual(config.a.b[0].c, 1)
        self.assertEqual(config["a"]["b"][0].get("c"), 1)
        with self.assertRaisesRegex(AttributeError, "the configuration has no d"):
            config.d

    def test_the_configuration_is_that_of_the_operator_and_of_the_task(self) -> None:
        class Runner(AgentRunner):
            def run_job(self, seed: int) -> EpisodeResult:
                return EpisodeResult("Finished", None, metrics={"sum": self.env_config.a + self.env_config.b})

        result = jobs(Runner, Node(), options={"a": 1}, b=2)
        self.assertEqual(result["metrics"], {"sum": 3})

    def test_a_runner_is_torn_down_also_when_its_job_raises(self) -> None:
        torn: list[bool] = []

        class Runner(AgentRunner):
            def run_job(self, seed: int) -> EpisodeResult:
                raise KeyError("row")

            def teardown(self) -> None:
                torn.append(True)

        with self.assertRaises(KeyError):
            jobs(Runner, Node())
        self.assertEqual(torn, [True])

    def test_a_runner_of_an_installed_roll_keeps_its_own_classes_and_asks_through_the_node(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            package = Path(folder, "roll")
            package.mkdir()
            Path(package, "__init__.py").write_text("")
            Path(package, "runners.py").write_text(
                textwrap.dedent(
                    """
                    class Runner:
                        def __init__(self, base_url, env_id, env_config):
                            self.base_url = base_url

                        def _llm_request(self, client, messages, tools=None, tool_choice="auto"):
                            raise OSError("this would need a server")

                        def run_job(self, seed):
                            reply = self._llm_request(None, [{"role": "user", "content": "hi"}])
                            return {"status": "Finished", "score": float(reply["choices"][0]["message"]["content"])}
                    """
                )
            )
            sys.path.insert(0, folder)
            kept = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "roll"}
            try:
                cls = runner_class("roll.runners.Runner")
                self.assertEqual(jobs(cls, Node("0.5"))["score"], 0.5)
                self.assertNotIn("roll.pipeline", sys.modules)
            finally:
                sys.path.remove(folder)
                for name in [name for name in sys.modules if name.partition(".")[0] == "roll"]:
                    del sys.modules[name]
                sys.modules.update(kept)


def _finished(score: float, steps: list[float]) -> dict[str, Any]:
    return {"status": "Finished", "score": score, "step_scores": steps, "agent_exit_reason": ""}


if __name__ == "__main__":
    unittest.main()
