"""Weight updates against a scripted floe and scripted engines that fail at each step."""

from __future__ import annotations

import pickle
import threading
import unittest
from typing import Any

from floe import Client, FloeError
from floe.weights import Push, SglangPush, VllmReload, VllmTransfer, WeightUpdateError, update_weights, updating
from tests.scripted_engines import BROKEN, CHANGE, RELOAD, TRANSFER, UNKNOWN, World
from tests.stub import HANG_UP, Call, Reply, Stub, error


class FailureTest(unittest.TestCase):
    def test_each_failed_step_leaves_a_known_state(self) -> None:
        parts = [{"names": ["a"]}]
        transfer = lambda urls: VllmTransfer(urls, parts, init_info={})  # noqa: E731
        reload = lambda urls: VllmReload(urls, "/ckpt")  # noqa: E731
        disk = lambda urls: SglangPush.from_disk(urls, "/ckpt")  # noqa: E731
        failed = Reply({"success": False, "message": "rolled back"}, 400)
        # Push, routes, failing route, its reply at both engines, and then: state, whether paused, calls of floe.
        cases: list[tuple[Any, dict[str, Any], str, Reply, str, bool, list[str]]] = [
            (transfer, TRANSFER, "init_weight_transfer_engine", BROKEN, "old", False, []),
            (transfer, TRANSFER, "start_weight_update", UNKNOWN, "old", False, ["pause", "resume"]),
            (transfer, TRANSFER, "start_weight_update", BROKEN, "mixed", True, ["pause"]),
            (transfer, TRANSFER, "update_weights", BROKEN, "mixed", True, ["pause"]),
            # The route is unknown after the update was started, so the engines are in the middle of it.
            (transfer, TRANSFER, "update_weights", UNKNOWN, "mixed", True, ["pause"]),
            (transfer, TRANSFER, "finish_weight_update", HANG_UP, "mixed", True, ["pause"]),
            (transfer, TRANSFER, "reset_prefix_cache", BROKEN, "new", True, ["pause"]),
            (reload, RELOAD, "collective_rpc", UNKNOWN, "old", False, ["pause", "resume"]),
            (reload, RELOAD, "collective_rpc", BROKEN, "mixed", True, ["pause"]),
            (reload, RELOAD, "update_weight_version", BROKEN, "new", True, ["pause"]),
            (disk, {}, "update_weights_from_disk", failed, "mixed", True, ["pause"]),
            (disk, {}, "update_weights_from_disk", UNKNOWN, "old", False, ["pause", "resume"]),
        ]
        for push, routes, path, reply, state, paused, changes in cases:
            with self.subTest(path=path, status=reply.status), World({**routes, f"POST /{path}": reply}) as world:
                failure = world.failure(push(world.urls))
                self.assertEqual((failure.state, failure.paused, world.changes), (state, paused, changes))
                self.assertEqual(failure.engines, {url: state for url in world.urls})
                self.assertIn(f"/{path}", failure.message)
                self.assertIn("v6" if state == "old" else "v7", failure.message.split(": ", 1)[1])

    def test_one_engine_that_fails_leaves_a_mixture_although_the_other_has_new_weights(self) -> None:
        with World(RELOAD) as world:
            world.engines[1].routes["POST /collective_rpc"] = UNKNOWN
            failure = world.failure(VllmReload(world.urls, "/ckpt"))
            self.assertEqual((failure.state, failure.paused), ("mixed", True))
            self.assertEqual(failure.engines[world.urls[1]], "old")
            self.assertEqual(world.changes, ["pause"])
            # The repeated update overwrites everything and resumes.
            world.engines[1].routes["POST /collective_rpc"] = {}
            world.update(VllmReload(world.urls, "/ckpt"))
            self.assertEqual(world.changes, ["pause", "pause", "version", "resume"])

    def test_an_engine_that_is_down_has_the_old_weights(self) -> None:
        with Stub() as gone:
            address = gone.url
        with World(RELOAD) as world:
            failure = world.failure(VllmReload([address], "/ckpt"))
            self.assertEqual((failure.state, failure.paused, world.changes), ("old", False, ["pause", "resume"]))

    def test_a_trainer_that_fails_to_send_ends_the_calls_that_wait_for_it(self) -> None:
        with World(TRANSFER) as world:
            release = threading.Event()

            def wait(_: Call) -> dict[str, Any]:
                release.wait(60)
                return {}

            for engine in world.engines:
                engine.routes["POST /update_weights"] = wait

            def send(_: int) -> None:
                for engine in world.engines:
                    engine.wait_for("POST /update_weights")
                raise RuntimeError("NCCL: unhandled system error")

            failure = world.failure(VllmTransfer(world.urls, [{}], send))
            release.set()
            self.assertEqual((failure.state, failure.paused), ("mixed", True))
            self.assertIn("the trainer's side of /update_weights: NCCL: unhandled system error", failure.message)

    def test_replies_that_a_pause_does_not_stop_prevent_the_push(self) -> None:
        problem = {"node_id": "n", "engine_id": "e", "message": "2 replies are running"}
        with World(RELOAD) as world:
            running = {**CHANGE, "problems": [problem]}
            world.floe.routes["POST /engines/pause"] = [running, running, CHANGE]
            world.update(VllmReload(world.urls, "/ckpt"))
            self.assertEqual(world.changes, ["pause", "pause", "pause", "version", "resume"])
            world.floe.routes["POST /engines/pause"] = running
            pushed = len(world.engines[0].calls)
            failure = world.failure(VllmReload(world.urls, "/ckpt"), drain_seconds=0)
            self.assertEqual((failure.state, failure.paused), ("old", False))
            self.assertIn("e: 2 replies are running", failure.message)
            self.assertEqual(len(world.engines[0].calls), pushed)

    def test_floe_that_fails_after_the_push_leaves_the_engines_paused_with_new_weights(self) -> None:
        down = error("store_unavailable", 503, retryable=True)
        late = Reply({**CHANGE, "pending": ["n2"]})
        for call, reply, paused in (
            ("version", down, True),
            ("version", late, True),
            ("resume", down, True),
            ("resume", late, False),
        ):
            with self.subTest(call, status=reply.status), World(RELOAD) as world:
                world.floe.routes[f"POST /engines/{call}"] = reply
                failure = world.failure(VllmReload(world.urls, "/ckpt"))
                self.assertEqual((failure.state, failure.paused), ("new", paused))

    def test_a_resume_that_fails_too_is_part_of_the_error(self) -> None:
        with World({**RELOAD, "POST /collective_rpc": UNKNOWN}) as world:
            world.floe.routes["POST /engines/resume"] = error("store_unavailable", 503, retryable=True)
            failure = world.failure(VllmReload(world.urls, "/ckpt"))
            self.assertEqual((failure.state, failure.paused), ("old", True))
            self.assertIn("resuming failed too", failure.message)

    def test_a_push_of_the_trainers_own_that_fails_is_treated_as_a_mixture(self) -> None:
        with World({}) as world, Client(world.floe.url) as client:
            with self.assertRaises(WeightUpdateError) as raised, updating(client, "v7"):
                raise RuntimeError("out of memory")
            self.assertEqual((raised.exception.state, raised.exception.paused), ("mixed", True))
            self.assertIn("RuntimeError: out of memory", raised.exception.message)
            self.assertEqual(world.changes, ["pause"])

    def test_a_repeated_update_that_fails_early_does_not_resume_a_mixture(self) -> None:
        with World(TRANSFER) as world:
            # The first update left the engines paused with a mixture.
            world.floe.routes["GET /engines"] = {"policy_version": "v6", "engines": [], "paused": "keep"}
            for path in ("init_weight_transfer_engine", "start_weight_update"):
                for engine in world.engines:
                    engine.routes[f"POST /{path}"] = UNKNOWN
                failure = world.failure(VllmTransfer(world.urls, [{}], init_info={}))
                self.assertEqual((failure.state, failure.paused), ("mixed", True))
                self.assertEqual(failure.engines, {url: "mixed" for url in world.urls})
                for engine in world.engines:
                    engine.routes[f"POST /{path}"] = {}
            world.floe.routes["POST /engines/pause"] = error("store_unavailable", 503, retryable=True)
            failure = world.failure(VllmTransfer(world.urls, [{}]))
            self.assertEqual((failure.state, failure.paused), ("mixed", True))
            self.assertNotIn("resume", world.changes)
            world.floe.routes["POST /engines/pause"] = CHANGE
            world.update(VllmTransfer(world.urls, [{}]))
            self.assertEqual(world.changes[-2:], ["version", "resume"])

    def test_an_interrupted_pause_is_undone(self) -> None:
        with World(RELOAD) as world, Client(world.floe.url, retry_seconds=0) as client:
            problem = {"node_id": "n", "engine_id": "e", "message": "2 replies are running"}
            world.floe.routes["POST /engines/pause"] = {**CHANGE, "problems": [problem]}

            def interrupt(_: float) -> None:
                raise KeyboardInterrupt

            with self.assertRaises(KeyboardInterrupt):
                update_weights(client, VllmReload(world.urls, "/ckpt"), "v7", pause=interrupt)
            self.assertEqual(world.changes, ["pause", "resume"])

    def test_an_interrupted_send_stays_an_interruption_and_leaves_a_mixture_paused(self) -> None:
        with World(TRANSFER) as world:

            def interrupt(_: int) -> None:
                raise KeyboardInterrupt

            with self.assertRaises(KeyboardInterrupt):
                world.update(VllmTransfer(world.urls, [{}], interrupt))
            self.assertEqual(world.changes, ["pause"])

    def test_a_node_that_does_not_resume_the_old_weights_counts_as_paused(self) -> None:
        with World({**RELOAD, "POST /collective_rpc": UNKNOWN}) as world:
            world.floe.routes["POST /engines/resume"] = Reply({**CHANGE, "pending": ["n2"]})
            failure = world.failure(VllmReload(world.urls, "/ckpt"))
            self.assertEqual((failure.state, failure.paused), ("old", True))
            self.assertIn("n2", failure.message)

    def test_the_error_says_whether_the_version_was_named(self) -> None:
        down = error("store_unavailable", 503, retryable=True)
        for call, consequence in (("version", "under the version v6"), ("resume", "under that version")):
            with self.subTest(call), World(RELOAD) as world:
                world.floe.routes[f"POST /engines/{call}"] = down
                self.assertIn(consequence, world.failure(VllmReload(world.urls, "/ckpt")).message)

    def test_a_push_without_parts_is_refused_because_it_would_only_rename_the_weights(self) -> None:
        for make in (
            lambda: VllmTransfer(["http://e"], []),
            lambda: SglangPush.from_tensor(["http://e"], []),
            lambda: SglangPush.from_distributed(["http://e"], [], lambda _: None),
        ):
            with self.assertRaises(FloeError) as raised:
                make()
            self.assertEqual(raised.exception.code, "bad_request")
            self.assertIn("parts", raised.exception.message)

    def test_a_push_without_engines_is_refused(self) -> None:
        with World({}) as world, self.assertRaises(FloeError) as raised:
            world.update(VllmReload([], "/ckpt"))
        self.assertEqual(raised.exception.code, "bad_request")

    def test_the_error_survives_being_sent_to_another_process(self) -> None:
        with World({**RELOAD, "POST /collective_rpc": BROKEN}) as world:
            failure = world.failure(VllmReload(world.urls, "/ckpt"))
        received = pickle.loads(pickle.dumps(failure))
        self.assertEqual((received.state, received.paused, received.engines), ("mixed", True, failure.engines))

if __name__ == "__main__":
    unittest.main()
