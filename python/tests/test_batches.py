"""Batch streams against a server that follows their rules in memory."""

from __future__ import annotations

import json
import unittest
from typing import Any

from floe import Client, FloeError
from tests.stub import HANG_UP, Call, Reply, Stub, error


def batch(number: int | None, *groups: dict[str, Any], done: bool = False, **fields: Any) -> dict[str, Any]:
    return {"batch": number, "policy_step": 0, "done": done, "groups": list(groups), "progress": {}, **fields}


NEXT = "GET /rollout/batches/b/next"
VIEW = "GET /rollout/batches/b"


class BatchesTest(unittest.TestCase):
    def test_reads_batches_until_the_data_is_used_up_and_acknowledges_each(self) -> None:
        replies = [batch(1, {"row_index": 0}), batch(None), batch(2, {"row_index": 1}), batch(None, done=True)]
        versions = iter(["v3", "v4", "v5", "v6"])
        with Stub({NEXT: replies, VIEW: {"batch": 0}}) as stub:
            stream = Client(stub.url).batches(
                "b",
                policy_version=lambda: next(versions),
                size=1,
                format="tinker",
                options={"tag": "x"},
                per_session=True,
                per_turn=True,
                constrained="mask",
            )
            self.assertEqual([item["batch"] for item in stream], [1, 2])
            asked = [call for call in stub.calls if call.line == NEXT]
            self.assertEqual([call.query.get("after") for call in asked], ["0", "1", "1", "2"])
            self.assertEqual([call.query["policy_version"] for call in asked], ["v3", "v4", "v5", "v6"])
            sent = asked[0].query
            self.assertEqual((sent["size"], sent["format"], sent["per_session"]), ("1", "tinker", "true"))
            self.assertEqual((sent["per_turn"], sent["constrained"]), ("true", "mask"))
            self.assertEqual(json.loads(sent["options"]), {"tag": "x"})

    def test_a_lost_reply_is_requested_with_the_same_number_so_that_no_batch_is_skipped(self) -> None:
        with Stub({NEXT: [batch(4), HANG_UP, batch(5), batch(None, done=True)]}) as stub:
            stream = Client(stub.url, pause=lambda _: None).batches("b", after=3)
            self.assertEqual([item["batch"] for item in stream], [4, 5])
            self.assertEqual([call.query["after"] for call in stub.calls], ["3", "4", "4", "5"])

    def test_an_older_policy_version_is_a_conflict(self) -> None:
        with Stub({NEXT: error("conflict", 409, policy_version="6")}) as stub:
            with self.assertRaises(FloeError) as raised:
                Client(stub.url).next_batch("b", policy_version=6)
        self.assertEqual(raised.exception.code, "conflict")

    def test_retries_of_pushed_rows_name_the_rows_before_them(self) -> None:
        replies = [HANG_UP, {"row_count": 5, "invalid": []}]
        with Stub({"POST /rollout/batches/b/rows": replies, VIEW: {"row_count": 4}}) as stub:
            reply = Client(stub.url, pause=lambda _: None).push_rows("b", [{"q": 1}], last=True)
            self.assertEqual(reply, {"row_count": 5, "invalid": []})
            self.assertEqual(
                [call.body for call in stub.calls[1:]], [{"rows": [{"q": 1}], "last": True, "after": 4}] * 2
            )

    def test_rewinds_to_the_batch_and_version_of_a_checkpoint(self) -> None:
        with Stub({"POST /rollout/batches/b/rewind": {"state": "running"}}) as stub:
            Client(stub.url).rewind_batches("b", after=4, policy_version=7)
            self.assertEqual(stub.calls[0].body, {"after": 4, "policy_version": "7"})

    def test_reads_a_batch_as_arrow_with_its_facts_in_the_header(self) -> None:
        facts = json.dumps(batch(1, {"row_index": 0}))
        replies = [Reply(b"ARROW", headers={"x-floe-batch": facts}), Reply(batch(None))]
        with Stub({NEXT: replies}) as stub:
            client = Client(stub.url)
            self.assertEqual(client.next_batch_arrow("b", format="verl", after=0), (json.loads(facts), b"ARROW"))
            self.assertEqual(client.next_batch_arrow("b", format="verl", after=1), (batch(None), b""))
            self.assertEqual(stub.calls[0].query["encoding"], "arrow")


class RolloutsTest(unittest.TestCase):
    def stub(self, replies: list[Any]) -> Stub:
        def create(call: Call) -> dict[str, Any]:
            name = call.body["batch_id"]
            stub.routes[f"GET /rollout/batches/{name}/next"] = replies
            stub.routes[f"DELETE /rollout/batches/{name}"] = {}
            return {"batch_id": name}

        stub = Stub({"POST /rollout/batches": create})
        return stub

    def test_samples_the_given_rows_once_and_ends_the_stream(self) -> None:
        replies = [batch(1, {"row_index": 1}), batch(2, {"row_index": 0}), batch(None, done=True)]
        with self.stub(replies) as stub:
            found = Client(stub.url).rollouts([{"q": 1}, {"q": 2}], {"instruction": "x"}, format="verl")
            self.assertEqual([item["groups"][0]["row_index"] for item in found], [1, 0])
            created = stub.calls[0].body
            self.assertEqual(created["source"], {"kind": "rows", "rows": [{"q": 1}, {"q": 2}], "open": False})
            self.assertEqual((created["batch_size"], created["order"]["epochs"]), (2, 1))
            self.assertEqual({call.query["size"] for call in stub.calls if call.line.endswith("/next")}, {"1"})
            self.assertEqual(stub.lines[-1], f"DELETE /rollout/batches/{created['batch_id']}")

    def test_more_rows_than_a_request_may_have_are_sent_in_parts(self) -> None:
        with self.stub([batch(1, {"row_index": 0}), batch(None, done=True)]) as stub:
            stub.routes["POST /rollout/batches"] = {"batch_id": "b"}
            stub.routes["POST /rollout/batches/b/rows"] = {"row_count": 0, "invalid": []}
            stub.routes[NEXT] = [batch(1, {"row_index": 0}), batch(None, done=True)]
            list(Client(stub.url).rollouts([{"q": number} for number in range(20_001)], {"instruction": "x"}))
            source = stub.calls[0].body["source"]
            self.assertEqual((len(source["rows"]), source["open"]), (10_000, True))
            parts = [call.body for call in stub.calls if call.line.endswith("/rows")]
            self.assertEqual(
                [(part["after"], len(part["rows"]), part["last"]) for part in parts],
                [(10_000, 10_000, False), (20_000, 1, True)],
            )
            self.assertEqual(parts[1]["rows"], [{"q": 20_000}])

    def test_a_part_that_is_refused_ends_the_stream(self) -> None:
        with self.stub([]) as stub:
            stub.routes["POST /rollout/batches"] = {"batch_id": "b"}
            stub.routes["POST /rollout/batches/b/rows"] = error("schema_violation", 422)
            with self.assertRaises(FloeError):
                list(Client(stub.url).rollouts([{}] * 10_001, {"instruction": "x"}))
            self.assertEqual(stub.lines[-1], "DELETE /rollout/batches/b")

    def test_a_caller_that_stops_early_ends_the_stream_and_its_groups(self) -> None:
        with self.stub([batch(1, {"row_index": 0})]) as stub:
            found = Client(stub.url).rollouts([{"q": 1}], {"instruction": "x"})
            next(found)
            found.close()  # type: ignore[attr-defined]
            self.assertTrue(stub.lines[-1].startswith("DELETE /rollout/batches/client-"))

    def test_an_error_of_the_stream_is_raised_although_ending_it_fails_too(self) -> None:
        with self.stub([error("schema_violation", 422, issues=["format"])]) as stub:
            found = Client(stub.url, retry_seconds=0).rollouts([{}], {"instruction": "x"})
            stub.routes["POST /rollout/batches"] = {"batch_id": "gone"}
            stub.routes["GET /rollout/batches/gone/next"] = error("schema_violation", 422)
            with self.assertRaises(FloeError) as raised:
                next(found)
            self.assertEqual(raised.exception.code, "schema_violation")


if __name__ == "__main__":
    unittest.main()
