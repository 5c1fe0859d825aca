"""Environments as a process serves them, without a node."""

from __future__ import annotations

import json
import random
import sys
import types
import unittest
import unittest.mock
from typing import Any

from floe.plugin_process import Setup
from floe.serve_env import Environments, create_function

ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


class World:
    """Returns from its methods what it was made with."""

    def __init__(self, **returned: Any) -> None:
        self.returned = returned
        self.actions: list[Any] = []
        self.closed = False

    def reset(self, seed: int) -> Any:
        return self.returned.get("reset", ("start", {}))

    def step(self, action: Any) -> Any:
        self.actions.append(action)
        return self.returned.get("step", ("next", 1, False, False, {}))

    def close(self) -> None:
        self.closed = True


def said(content: str, **fields: Any) -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": content, **fields}}


class Serving(unittest.TestCase):
    def setUp(self) -> None:
        self.worlds: list[World] = []

    def served(self, options: dict[str, Any] | None = None, **returned: Any) -> Environments:
        def create(**keywords: Any) -> World:
            self.worlds.append(World(**returned, **keywords))
            return self.worlds[-1]

        return Environments(create, Setup({"options": options or {}}))

    def reset(self, environments: Environments, options: dict[str, Any] | None = None) -> Any:
        return environments.call("reset", 1, {"seed": 7, "options": options or {}})

    def test_the_options_of_the_operator_and_of_the_task_are_keyword_arguments(self) -> None:
        self.reset(self.served({"a": 1}), {"b": 2})
        self.assertEqual(self.worlds[0].returned, {"a": 1, "b": 2})

    def test_texts_have_the_suffix_and_numbers_of_info_are_metrics(self) -> None:
        info = {"suffix": "Guess.", "turn": 2, "won": True, "name": "x", "huge": float("inf"), "env_instruction": "Rules."}
        observed = self.reset(self.served(reset=("start", info)))
        self.assertEqual(
            observed, {"content": "start\nGuess.", "introduction": "Rules.", "metrics": {"turn": 2.0, "won": 1.0}}
        )

    def test_there_is_no_episode_when_the_observation_is_none(self) -> None:
        self.assertIsNone(self.reset(self.served(reset=(None, {}))))

    def test_an_observation_may_be_content_parts_or_other_json(self) -> None:
        parts = [{"type": "text", "text": "see"}]
        self.assertEqual(self.reset(self.served(reset=(parts, {})))["content"], parts)
        self.assertEqual(self.reset(self.served(reset=({"x": [1, 2]}, {})))["content"], '{"x": [1, 2]}')

    def test_tool_calls_reach_the_environment_only_when_it_has_declared_tools(self) -> None:
        call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
        for tools, expected in ((None, "text"), ([ADD], {"role": "assistant", "content": "text", "tool_calls": [call]})):
            environments = self.served(reset=("start", {"tools": tools}))
            self.reset(environments)
            environments.call("step", 1, said("text", tool_calls=[call]))
            self.assertEqual(self.worlds[-1].actions, [expected])

    def test_messages_that_are_known_are_left_out(self) -> None:
        first = {"role": "user", "content": "start"}
        answer = {"role": "user", "content": "next"}
        reply = said("go")["message"]
        for returned in ([answer], [first, reply, answer]):
            environments = self.served(reset=([first], {}), step=(returned, 0, False, False, None))
            self.reset(environments)
            self.assertEqual(environments.call("step", 1, said("go"))["messages"], [answer])

    def test_what_has_not_the_form_of_gymnasium_is_described(self) -> None:
        for returned, message in (
            (("next", 1, False, {}), "step must return"),
            (("next", float("nan"), False, False, {}), "the reward that step returned is nan"),
            (("next", "much", False, False, {}), "could not convert"),
            (("next", 1, False, False, []), "the info that step returned is no dict"),
            ((object(), 1, False, False, {}), "of type object, is no text, no message and not JSON"),
        ):
            environments = self.served(step=returned)
            self.reset(environments)
            with self.assertRaisesRegex(Exception, message):
                environments.call("step", 1, said("go"))

    def test_an_environment_is_closed_at_its_end_and_before_the_next_reset(self) -> None:
        environments = self.served()
        self.reset(environments)
        self.reset(environments)
        environments.end(1)
        environments.end(1)
        self.assertEqual([world.closed for world in self.worlds], [True, True])

    def test_each_episode_has_its_own_state_of_the_global_generator(self) -> None:
        class Drawing(World):
            def step(self, action: Any) -> Any:
                return str(random.random()), 0, False, False, {}

        environments = Environments(Drawing, Setup({}))
        drawn: dict[int, list[str]] = {1: [], 2: []}
        for episode in drawn:
            environments.call("reset", episode, {"seed": 7, "options": {}})
        for _ in range(3):
            for episode in drawn:
                drawn[episode].append(environments.call("step", episode, said(""))["content"])
        self.assertEqual(drawn[1], drawn[2])
        self.assertEqual(len(set(drawn[1])), 3)

    def test_an_id_of_gem_is_made_by_gem_and_an_unknown_one_is_refused(self) -> None:
        registration = types.ModuleType("gem.envs.registration")
        setattr(registration, "ENV_REGISTRY", {"game:One": None})
        gem = types.ModuleType("gem")
        setattr(gem, "make", lambda name, **options: (name, options))
        modules = {"gem": gem, "gem.envs.registration": registration}
        with unittest.mock.patch.dict(sys.modules, modules):
            self.assertEqual(create_function("gem:game:One")(size=3), ("game:One", {"size": 3}))
            with self.assertRaisesRegex(ImportError, "gem has no environment game:Two"):
                create_function("gem:game:Two")


class Gem(unittest.TestCase):
    def test_a_game_of_gem_is_won(self) -> None:
        try:
            create = create_function("gem:game:GuessTheNumber-v0-hard")
        except ModuleNotFoundError:
            self.skipTest("gem-llm is not installed: pip install gem-llm==0.1.0")
        worlds: list[Any] = []

        def kept(**options: Any) -> Any:
            worlds.append(create(**options))
            return worlds[-1]

        environments = Environments(kept, Setup({}))
        first = environments.call("reset", 1, {"seed": 3, "options": {}})
        self.assertIn("Guess The Number", first["content"])
        won = environments.call("step", 1, said(f"\\boxed{{{worlds[0].game_number}}}"))
        self.assertEqual((won["reward"], won["terminated"]), (1.0, True))
        json.dumps([first, won], allow_nan=False)


if __name__ == "__main__":
    unittest.main()
