"""The parts of the registrations that need no other ecosystem's package, against a scripted server."""

from __future__ import annotations

import asyncio
import threading
import unittest
from typing import Any, cast

from floe import AsyncClient, FloeError, Trace
from floe.registrations.rollout import Rollouts, read_template
from floe.registrations.template import fill_template, read_json_lines
from floe.registrations.turns import read_calls, turns_of
from tests.stub import Call, Reply, Stub, held
from tests.temporary import temporary_file

ROW = {"problem": "1 + 1", "nothing": None, "extra": {"level": 4, "tags": ["sum", "easy"]}}


class TemplateTest(unittest.TestCase):
    def test_keeps_the_type_of_a_field_that_a_placeholder_alone_names_and_writes_others_as_json(self) -> None:
        template = {"level": "{{row.extra.level}}", "all": ["{{ row.problem }} at {{row.extra}}", 7]}
        self.assertEqual(
            fill_template(template, ROW), {"level": 4, "all": ['1 + 1 at {"level":4,"tags":["sum","easy"]}', 7]}
        )

    def test_fills_in_the_whole_row_an_element_of_a_list_and_none(self) -> None:
        self.assertEqual(fill_template(["{{row}}", "{{row.extra.tags.1}}", "{{row.nothing}}"], ROW), [ROW, "easy", None])

    def test_keeps_text_between_braces_that_does_not_name_the_row(self) -> None:
        text = "{{instance.problem}} {{rows}} {{row.}} {row.problem}"
        self.assertEqual(fill_template(text, ROW), text)

    def test_refuses_fields_that_the_row_does_not_have_with_their_place(self) -> None:
        for path in (".answer", ".problem.length", ".nothing.more", ".extra.tags.2", ".extra.tags.x"):
            with self.subTest(path=path), self.assertRaises(FloeError) as raised:
                fill_template({"env": [{"A": f"is {{{{ row{path} }}}} and {{{{row.y}}}}"}]}, ROW)
            message = f"is missing, and the template's field env.0.A needs it for {{{{row{path}}}}}"
            self.assertEqual(raised.exception.code, "schema_violation")
            self.assertEqual(raised.exception.details["issues"][0], {"path": f"row{path}", "message": message})
            self.assertIn("(and 1 more)", raised.exception.message)

    def test_names_the_line_of_a_file_of_rows_that_is_not_an_object(self) -> None:
        with temporary_file('{"a": 1}\n\n[2]\n') as path, self.assertRaises(FloeError) as raised:
            read_json_lines(path)
        self.assertEqual(raised.exception.message, f"{path}, line 3: this is not a JSON object")
        with temporary_file('{"a": 1}\n\n{"a": 2}\n') as path:
            self.assertEqual(read_json_lines(path), [{"a": 1}, {"a": 2}])


def record(name: str, prompt: list[int], response: list[int], *, base: str | None = None, keep: int = 0) -> dict[str, Any]:
    # The messages of a later call repeat that of the first one, which is why `keep` is 1.
    reply, tool = {"role": "assistant", "content": base}, {"role": "tool", "tool_call_id": "c", "content": "ok"}
    messages = [{"role": "user", "content": "go"}] if base is None else [reply, tool]
    return {
        "completion_id": name,
        "request": {"base": base, "keep": 0 if base is None else 1, "messages": messages, "tools": [] if base is None else None, "images": {}},
        "prompt": {"base": base, "keep": keep, "ids": prompt},
        "response_ids": response,
        "response_logprobs": [-0.5] * len(response),
        "message": {"role": "assistant", "content": name},
        "finish_reason": "stop",
    }


#: Two calls of one conversation: 1 2 | 3 4 | 5 | 6.
RECORDS = [record("a", [1, 2], [3, 4]), record("b", [5], [6], base="a", keep=4)]
TRACE: Any = {
    "trace_id": "t",
    "prompt_ids": [1, 2],
    "response_ids": [3, 4, 5, 6],
    "loss_mask": [1, 1, 0, 1],
    "response_logprobs": [-0.5, -0.5, 0, -0.5],
    "completion_ids": ["a", "b"],
}


class TurnsTest(unittest.TestCase):
    def test_resolves_the_differences_between_the_records_of_calls(self) -> None:
        calls = read_calls(RECORDS)
        self.assertEqual(calls["b"].prompt_ids, [1, 2, 3, 4, 5])
        self.assertEqual([message["role"] for message in calls["b"].messages], ["user", "assistant", "tool"])
        self.assertEqual(calls["b"].tools, [])

    def test_puts_the_url_of_an_image_into_the_messages_of_all_calls_that_repeat_it(self) -> None:
        image = {"type": "image_url", "image_url": {"url": "floe-image:1"}}
        first = record("a", [1], [2])
        first["request"].update(messages=[{"role": "user", "content": [image]}], images={"floe-image:1": "data:x"})
        second = record("b", [], [3], base="a", keep=2)
        second["request"].update(keep=0, messages=[{"role": "user", "content": [image, {"type": "text", "text": "t"}]}])
        urls = [call.messages[0]["content"][0]["image_url"]["url"] for call in read_calls([first, second]).values()]
        self.assertEqual(urls, ["data:x", "data:x"])

    def test_splits_a_trace_at_the_replies_of_the_policy(self) -> None:
        first, second = turns_of(TRACE, read_calls(RECORDS))
        self.assertEqual((first.context_ids, first.response_ids, first.start), ([1, 2], [3, 4], 2))
        self.assertEqual((second.context_ids, second.response_ids, second.start), ([5], [6], 5))
        self.assertEqual([message["role"] for message in second.messages], ["tool"])

    def test_makes_a_reply_that_the_trace_does_not_train_part_of_the_next_context(self) -> None:
        trace = cast(Trace, {**cast("dict[str, Any]", TRACE), "loss_mask": [0, 0, 0, 1]})
        first, second = turns_of(trace, read_calls(RECORDS))
        self.assertEqual((first.context_ids, first.response_ids), ([], []))
        self.assertEqual((second.context_ids, second.response_ids), ([1, 2, 3, 4, 5], [6]))

    def test_refuses_a_trace_whose_trained_tokens_are_not_those_of_its_completions(self) -> None:
        for change in (
            {"response_ids": [3, 9, 5, 6]},
            {"loss_mask": [1, 1, 1, 1]},
            {"loss_mask": [1, 1, 0]},
            {"completion_ids": ["a"]},
            {"completion_ids": ["a", "b", "c"]},
        ):
            with self.subTest(change=change), self.assertRaises(FloeError) as raised:
                turns_of(cast(Trace, {**cast("dict[str, Any]", TRACE), **change}), read_calls(RECORDS))
            self.assertEqual((raised.exception.code, raised.exception.details), ("corrupt_record", {"trace_id": "t"}))


def result_of(**fields: Any) -> dict[str, Any]:
    base = {
        "session_id": "s",
        "outcome": "completed",
        "policy": {"use": "train", "in_baseline": True},
        "reward": 1,
        "unusable": None,
        "error": None,
        "trajectory": {"traces": [TRACE]},
    }
    return {**base, **fields}


class Server:
    """Answers the calls of one rollout, whatever the id of its task is."""

    def __init__(self, stub: Stub, states: list[Any], result: dict[str, Any]) -> None:
        self._stub = stub
        self._states = states
        self._result = result
        stub.routes = {"POST /rollout/task/submit": self.submit, "GET /sessions/s/completions": Reply(RECORDS)}

    def submit(self, call: Call) -> dict[str, Any]:
        path = f"/rollout/task/{call.body['task_id']}"
        self._stub.routes[f"GET {path}"] = self.task
        self._stub.routes[f"DELETE {path}"] = {"status": "cancelled"}
        return {"task_id": call.body["task_id"]}

    def task(self, call: Call) -> Any:
        if call.query.get("results") == "full":
            return {"results": [self._result]}
        state = self._states.pop(0)
        return state(call) if callable(state) else {"status": state}


class RolloutsTest(unittest.IsolatedAsyncioTestCase):
    def test_fills_the_template_and_replaces_sampling_field_by_field(self) -> None:
        template = {"instruction": "{{row.problem}}", "sampling": {"temperature": 0.5, "top_k": 3}, "metadata": {"a": 1}}
        rollouts = Rollouts(AsyncClient("http://127.0.0.1:1"), template)
        task = rollouts.task(ROW, sampling={"temperature": 1.0, "max_tokens": None}, metadata={"b": 2})
        self.assertEqual(
            task,
            {"instruction": "1 + 1", "sampling": {"temperature": 1.0, "top_k": 3}, "metadata": {"a": 1, "b": 2}},
        )
        with self.assertRaises(FloeError) as raised:
            rollouts.task(ROW, sampling={"top_a": 1})
        self.assertEqual(raised.exception.code, "unsupported")
        self.assertIn("sampling.top_a", raised.exception.message)

    def test_refuses_a_template_of_more_than_one_sample_and_one_that_is_no_object(self) -> None:
        for field in ("task_id", "idempotency_key", "num_samples", "callback_url"):
            with self.assertRaises(FloeError) as raised:
                Rollouts(AsyncClient("http://127.0.0.1:1"), {field: 1})
            self.assertIn(f"task.{field}", raised.exception.message)
        with temporary_file("[1]") as path, self.assertRaises(FloeError):
            read_template(path)
        with temporary_file("{") as path, self.assertRaises(FloeError) as malformed:
            read_template(path)
        self.assertIn(path, malformed.exception.message)

    async def test_holds_requests_until_the_task_has_ended_and_returns_its_turns(self) -> None:
        with Stub() as stub:
            Server(stub, ["running", "running", "completed"], result_of())
            async with AsyncClient(stub.url) as client:
                rollout = await Rollouts(client, {}).run({"instruction": "x"})
            waits = [call.query.get("wait") for call in stub.calls if call.line.startswith("GET /rollout/task/")]
            self.assertEqual(waits, ["50.0", "50.0", "50.0", None])
            self.assertEqual([turn.response_ids for turn in rollout.traces[0]], [[3, 4], [6]])
            self.assertEqual((rollout.unusable, rollout.masked), (None, False))

    async def test_names_why_a_sample_must_not_be_trained_on(self) -> None:
        masked = result_of(outcome="agent_timeout", policy={"use": "mask"})
        failed = result_of(outcome="env_error", unusable="env_error", trajectory=None, error={"message": "no disk"}, policy={"use": "drop"})
        for result, unusable, is_masked, problem in (
            (masked, "agent_timeout", True, "session s ended as agent_timeout"),
            (failed, "env_error", False, "session s ended as env_error: no disk"),
        ):
            with Stub() as stub:
                Server(stub, ["completed"], result)
                async with AsyncClient(stub.url) as client:
                    rollout = await Rollouts(client, {}).run({})
            self.assertEqual((rollout.unusable, rollout.masked, rollout.problem), (unusable, is_masked, problem))

    async def test_cancels_the_task_of_a_coroutine_that_is_cancelled(self) -> None:
        release = threading.Event()
        with Stub() as stub:
            Server(stub, [held(release, {"status": "running"})], result_of())
            async with AsyncClient(stub.url) as client:
                running = asyncio.ensure_future(Rollouts(client, {}).run({}))
                await asyncio.to_thread(stub.wait_for, "POST /rollout/task/submit")
                task_id = stub.calls[0].body["task_id"]
                await asyncio.to_thread(stub.wait_for, f"GET /rollout/task/{task_id}")
                running.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await running
            self.assertEqual(stub.lines[-1], f"DELETE /rollout/task/{task_id}")
            self.assertEqual(stub.calls[-1].query, {"register_if_missing": "true"})
            release.set()
