"""The synchronous client against a scripted server."""

from __future__ import annotations

import json
import pickle
import os
import tempfile
import threading
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

from floe import Client, FloeError, TaskRequest
from tests.stub import HANG_UP, Call, Reply, Stub, error, held


class Pauses(list[float]):
    """Records the pauses between retries instead of waiting."""

    def __call__(self, seconds: float) -> None:
        self.append(seconds)


def client_of(stub: Stub, pauses: Pauses | None = None, **options: Any) -> Client:
    return Client(stub.url, "secret", pause=pauses if pauses is not None else Pauses(), **options)


TASK: TaskRequest = {"instruction": "x", "agent": {"harness": "pi"}}


def lines(*results: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(result).encode() + b"\n" for result in results)


class SubmissionTest(unittest.TestCase):
    def test_sends_the_token_and_gives_an_unnamed_task_a_key_that_its_retries_repeat(self) -> None:
        accepted = {"task_id": "t1", "status": "running", "session_ids": ["s1"], "duplicate": False}
        with Stub({"POST /rollout/task/submit": [HANG_UP, accepted]}) as stub:
            self.assertEqual(client_of(stub).submit(TASK), accepted)
            first, second = stub.calls
            self.assertEqual(first.headers["authorization"], "Bearer secret")
            self.assertTrue(first.body["idempotency_key"].startswith("client-"))
            self.assertEqual(first.body, second.body)

    def test_keeps_the_id_of_a_named_task(self) -> None:
        with Stub({"POST /rollout/task/submit": {"task_id": "t1"}}) as stub:
            client_of(stub).submit({**TASK, "task_id": "t1"})
            self.assertEqual(stub.calls[0].body, {**TASK, "task_id": "t1"})

    def test_refuses_a_body_that_json_cannot_carry_before_it_is_sent(self) -> None:
        with Stub() as stub:
            with self.assertRaises(FloeError) as raised:
                client_of(stub).submit({**TASK, "metadata": {"loss": float("nan")}})
            self.assertEqual(raised.exception.code, "bad_request")
            self.assertEqual(stub.calls, [])


class TokenTest(unittest.TestCase):
    """Which token a client sends that was made without one."""

    def sent(self, url: str, environment: dict[str, str]) -> str | None:
        with Stub({"GET /rollout/status": {}}) as stub, mock.patch.dict(os.environ, environment):
            if "FLOE_TOKEN" not in environment:
                os.environ.pop("FLOE_TOKEN", None)
            Client(url.replace("PORT", stub.url.rsplit(":", 1)[1]), retry_seconds=0).status()
            return stub.calls[0].headers.get("authorization")

    def test_sends_the_token_of_the_floe_home_to_a_server_of_this_machine(self) -> None:
        with tempfile.TemporaryDirectory() as home:
            Path(home, "control-token").write_text("of-the-home\n")
            self.assertEqual(self.sent("http://127.0.0.1:PORT", {"FLOE_HOME": home}), "Bearer of-the-home")
            named = {"FLOE_HOME": home, "FLOE_TOKEN": "named"}
            self.assertEqual(self.sent("http://127.0.0.1:PORT", named), "Bearer named")

    def test_sends_no_token_when_the_home_has_none(self) -> None:
        with tempfile.TemporaryDirectory() as home:
            self.assertIsNone(self.sent("http://127.0.0.1:PORT", {"FLOE_HOME": home}))

    def test_finds_a_token_that_is_written_after_the_client_was_made(self) -> None:
        with tempfile.TemporaryDirectory() as home, Stub({"GET /rollout/status": {}}) as stub:
            with mock.patch.dict(os.environ, {"FLOE_HOME": home}):
                os.environ.pop("FLOE_TOKEN", None)
                client = Client(stub.url)
                Path(home, "control-token").write_text("later")
                client.status()
            self.assertEqual(stub.calls[0].headers["authorization"], "Bearer later")

    def test_sends_the_token_of_the_home_to_no_other_machine(self) -> None:
        with tempfile.TemporaryDirectory() as home:
            Path(home, "control-token").write_text("of-the-home")
            replicas = "http://127.0.0.1:PORT,http://floe.invalid:PORT"
            self.assertIsNone(self.sent(replicas, {"FLOE_HOME": home}))

    def test_names_a_token_file_that_cannot_be_read(self) -> None:
        with tempfile.TemporaryDirectory() as home:
            Path(home, "control-token").mkdir()
            with self.assertRaises(FloeError) as raised:
                self.sent("http://127.0.0.1:PORT", {"FLOE_HOME": home})
            self.assertEqual(raised.exception.code, "setup_failed")
            self.assertIn("control-token", raised.exception.message)


class ErrorTest(unittest.TestCase):
    def test_raises_the_error_of_the_server_with_code_details_and_status(self) -> None:
        refused = error("schema_violation", 422, issues=["num_samples"])
        with Stub({"POST /rollout/task/submit": refused}) as stub:
            with self.assertRaises(FloeError) as raised:
                client_of(stub).submit({**TASK, "num_samples": 0})
        self.assertEqual(raised.exception.code, "schema_violation")
        self.assertEqual(raised.exception.details, {"issues": ["num_samples"]})
        self.assertEqual((raised.exception.status, raised.exception.retryable), (422, False))
        self.assertEqual(str(raised.exception), "schema_violation: the message of schema_violation")

    def test_names_the_reply_of_a_proxy_that_is_not_floes(self) -> None:
        with Stub({"GET /rollout/status": Reply(b"<h1>no</h1>", 404), "GET /tasks": Reply(b"<h1>page</h1>")}) as stub:
            with self.assertRaises(FloeError) as refused:
                client_of(stub).status()
            with self.assertRaises(FloeError) as page:
                client_of(stub).tasks()
        self.assertEqual((refused.exception.code, refused.exception.status), ("not_found", 404))
        self.assertIn("<h1>no</h1>", refused.exception.message)
        self.assertEqual(page.exception.code, "malformed_json")
        self.assertIn("<h1>page</h1>", page.exception.message)

    def test_survives_being_sent_to_another_process(self) -> None:
        sent = FloeError("overloaded", "full", {"limit": 3}, retryable=True, status=429, retry_after=2.0)
        received = pickle.loads(pickle.dumps(sent))
        self.assertEqual(received.__dict__, sent.__dict__)
        self.assertEqual(str(received), str(sent))

    def test_refuses_an_address_that_is_no_url(self) -> None:
        for url in ("localhost:8080", "http://", ",", "http://host:port"):
            with self.subTest(url), self.assertRaises(FloeError) as raised:
                Client(url)
            self.assertEqual(raised.exception.code, "bad_request")


class RetryTest(unittest.TestCase):
    def test_waits_as_long_as_retry_after_says_and_repeats_the_call(self) -> None:
        busy = error("overloaded", 429, retryable=True, headers={"retry-after": "7"})
        pauses = Pauses()
        with Stub({"GET /rollout/status": [busy, busy, {"sessions": 1}]}) as stub:
            self.assertEqual(client_of(stub, pauses).status(), {"sessions": 1})
        self.assertEqual(pauses, [7.0, 7.0])

    def test_backs_off_with_growing_pauses_while_the_server_is_down(self) -> None:
        pauses = Pauses()
        with Stub({"GET /rollout/status": [*[HANG_UP] * 8, {"sessions": 1}]}) as stub:
            client_of(stub, pauses).status()
        self.assertEqual(len(pauses), 8)
        for pause, longest in zip(pauses, (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5)):
            self.assertGreaterEqual(pause, longest / 2)
            self.assertLessEqual(pause, longest)

    def test_repeats_neither_a_refused_call_nor_one_that_hit_a_defect(self) -> None:
        for refusal in (error("conflict", 409), error("internal", 500, retryable=True)):
            with self.subTest(refusal.body["error"]["code"]), Stub({"GET /rollout/status": refusal}) as stub:
                with self.assertRaises(FloeError):
                    client_of(stub).status()
                self.assertEqual(len(stub.calls), 1)

    def test_raises_the_last_error_when_the_time_for_retries_is_used_up(self) -> None:
        with Stub({"GET /rollout/status": error("store_unavailable", 503, retryable=True)}) as stub:
            with self.assertRaises(FloeError) as raised:
                client_of(stub, retry_seconds=0).status()
            self.assertEqual(raised.exception.code, "store_unavailable")
            self.assertEqual(len(stub.calls), 1)

    def test_calls_the_next_replica_when_one_is_down(self) -> None:
        with Stub({"GET /rollout/status": error("not_ready", 503, retryable=True)}) as down:
            with Stub({"GET /rollout/status": {"sessions": 1}}) as up:
                client = Client(f"{down.url},{up.url}", pause=Pauses())
                self.assertEqual(client.status(), {"sessions": 1})
                self.assertEqual(client.status(), {"sessions": 1})
                self.assertEqual((len(down.calls), len(up.calls)), (1, 2))

    def test_closing_the_client_ends_a_call_that_the_server_holds(self) -> None:
        release = threading.Event()
        with Stub({"GET /rollout/status": held(release, {})}) as stub:
            client = Client(stub.url)
            errors: list[FloeError] = []

            def call() -> None:
                try:
                    client.status()
                except FloeError as thrown:
                    errors.append(thrown)

            thread = threading.Thread(target=call)
            thread.start()
            stub.wait_for("GET /rollout/status")
            client.close()
            thread.join(20)
            self.assertFalse(thread.is_alive())
            release.set()
            self.assertEqual(
                [(thrown.code, thrown.message) for thrown in errors], [("peer_unreachable", "the client was closed")]
            )
            with self.assertRaises(FloeError):
                client.status()


class ResultsTest(unittest.TestCase):
    def pages(self, stub: Stub, *results: dict[str, Any], **extra: Any) -> None:
        """Serves `results` in pages of `limit`, and nothing after them."""

        def page(call: Call) -> Reply:
            after = int(call.query.get("after", "0"))
            found = [result for result in results if result["cursor"] > after]
            return Reply(lines(*found[: int(call.query["limit"])]))

        stub.routes["GET /rollout/results"] = extra.get("route", page)

    def test_reads_page_after_page_and_acknowledges_what_was_handled(self) -> None:
        with Stub() as stub:
            self.pages(stub, *({"cursor": n} for n in range(1, 6)))
            read = [result["cursor"] for result in client_of(stub).results(consumer="c", follow=False, page_size=2)]
            self.assertEqual(read, [1, 2, 3, 4, 5])
            self.assertEqual([call.query.get("after") for call in stub.calls], [None, "2", "4", "5"])
            self.assertEqual({call.query["consumer"] for call in stub.calls}, {"c"})

    def test_continues_after_the_last_result_when_a_page_is_cut(self) -> None:
        whole = lines({"cursor": 1}, {"cursor": 2}, {"cursor": 3})
        replies = [Reply(whole, cut=len(whole) - 4), Reply(lines({"cursor": 3})), Reply(b"")]
        with Stub({"GET /rollout/results": replies}) as stub:
            read = [result["cursor"] for result in client_of(stub).results(follow=False)]
            self.assertEqual(read, [1, 2, 3])
            self.assertEqual([call.query.get("after") for call in stub.calls], [None, "2", "3"])

    def test_asks_the_server_to_hold_the_request_until_the_caller_stops(self) -> None:
        with Stub({"GET /rollout/results": [Reply(b""), Reply(b""), Reply(lines({"cursor": 9}))]}) as stub:
            results = client_of(stub).results(after=8)
            self.assertEqual(next(results)["cursor"], 9)
            results.close()  # type: ignore[attr-defined]
            self.assertEqual([call.query["wait"] for call in stub.calls], ["30.0"] * 3)
            self.assertEqual([call.query["after"] for call in stub.calls], ["8"] * 3)


class CallTest(unittest.TestCase):
    def test_each_method_calls_its_route(self) -> None:
        change = {"revision": 1, "engine_ids": [], "done": [], "pending": [], "problems": []}
        with Stub() as stub:
            reply = {"tasks": [], "sessions": [], "attempts": [], "results": [], "streams": [], **change}
            stub.fallback = Reply(reply)
            client = client_of(stub)
            client.task("a/b")
            client.task_results("t")
            client.tasks(status="running", limit=2)
            client.cancel("t", register_if_missing=True)
            client.sessions("t")
            client.session("s")
            client.cancel_session("s")
            client.attempts("s")
            client.trajectory("s", attempt=2)
            client.completions("s")
            client.artifacts("s")
            client.engines()
            client.add_engine({"base_url": "http://e"}, replace=True)
            client.remove_engine("e")
            client.clear_engines()
            client.pause_engines("abort", while_paused="reject")
            client.resume_engines()
            client.set_policy_version("v7")
            client.batch_streams()
            client.batch_stream("b")
            client.delete_batches("b")
            called = [(call.line, call.query, call.body) for call in stub.calls]
        wait = {"wait": "15.0"}
        self.assertEqual(
            called,
            [
                ("GET /rollout/task/a%2Fb", {}, None),
                ("GET /rollout/task/t", {"results": "full"}, None),
                ("GET /tasks", {"status": "running", "limit": "2"}, None),
                ("DELETE /rollout/task/t", {"register_if_missing": "true"}, None),
                ("GET /tasks/t/sessions", {}, None),
                ("GET /sessions/s", {}, None),
                ("DELETE /sessions/s", {}, None),
                ("GET /sessions/s/attempts", {}, None),
                ("GET /sessions/s/trajectory", {"attempt": "2"}, None),
                ("GET /sessions/s/completions", {}, None),
                ("GET /sessions/s/artifacts", {}, None),
                ("GET /engines", {}, None),
                ("POST /engines", {"replace": "true", **wait}, {"base_url": "http://e"}),
                ("DELETE /engines/e", wait, None),
                ("DELETE /engines", wait, None),
                ("POST /engines/pause", wait, {"mode": "abort", "while_paused": "reject"}),
                ("POST /engines/resume", wait, None),
                ("POST /engines/version", wait, {"version": "v7"}),
                ("GET /rollout/batches", {}, None),
                ("GET /rollout/batches/b", {}, None),
                ("DELETE /rollout/batches/b", {}, None),
            ],
        )


if __name__ == "__main__":
    unittest.main()
