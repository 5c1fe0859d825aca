"""Weight updates against a scripted floe and scripted engines: the order of the calls."""

from __future__ import annotations

import threading
import unittest
from typing import Any

from floe import Client
from floe.weights import SglangPush, VllmLora, VllmReload, VllmTransfer, engine_urls, update_weights
from tests.scripted_engines import RELOAD, TRANSFER, World
from tests.stub import Call, Reply, Stub


class OrderTest(unittest.TestCase):
    def test_pauses_pushes_names_the_version_and_resumes(self) -> None:
        with World(RELOAD) as world:
            world.update(VllmReload(world.urls, "/ckpt"))
            self.assertEqual(world.changes, ["pause", "version", "resume"])
            self.assertEqual(world.floe.calls[-2].body, {"version": "v7"})
            for engine in world.engines:
                self.assertEqual(
                    [(call.line, call.body) for call in engine.calls],
                    [
                        ("POST /collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": "/ckpt"}}),
                        ("POST /reset_prefix_cache", {}),
                        ("POST /update_weight_version", {"new_version": "v7"}),
                    ],
                )

    def test_the_trainer_sends_each_part_while_the_engines_receive_it(self) -> None:
        received = threading.Barrier(3)

        def receive(_: Call) -> dict[str, Any]:
            received.wait(30)
            return {}

        with World({**TRANSFER, "POST /update_weights": receive}) as world:
            sent: list[int] = []

            def send(number: int) -> None:
                received.wait(30)
                sent.append(number)

            push = VllmTransfer(world.urls, [{"names": ["a"]}, {"names": ["b"]}], send, init_info={"port": 1})
            world.update(push)
            self.assertEqual(sent, [0, 1])
            self.assertEqual(
                [(call.line, call.body) for call in world.engines[0].calls],
                [
                    ("POST /init_weight_transfer_engine", {"init_info": {"port": 1}}),
                    ("POST /start_weight_update", {}),
                    ("POST /update_weights", {"update_info": {"names": ["a"]}}),
                    ("POST /update_weights", {"update_info": {"names": ["b"]}}),
                    ("POST /finish_weight_update", {"weight_version": "v7"}),
                    ("POST /reset_prefix_cache", {}),
                ],
            )

    def test_replaces_a_lora_adapter_under_its_name(self) -> None:
        routes = {"POST /v1/load_lora_adapter": Reply(b"Success: LoRA adapter 'policy' added successfully.")}
        with World({**RELOAD, **routes}) as world:
            world.update(VllmLora(world.urls, "policy", "/lora"))
            loaded = {"lora_name": "policy", "lora_path": "/lora", "load_inplace": True}
            self.assertEqual(world.engines[1].calls[0].body, loaded)
            self.assertEqual(world.changes, ["pause", "version", "resume"])

    def test_sglang_flushes_its_cache_only_when_no_paused_reply_holds_it(self) -> None:
        for mode, flushes in (("keep", False), ("abort", True)):
            with self.subTest(mode), World({"POST /update_weights_from_disk": {"success": True}}) as world:
                world.update(SglangPush.from_disk(world.urls, "/ckpt"), mode=mode)
                body = {"model_path": "/ckpt", "flush_cache": flushes, "weight_version": "v7"}
                self.assertEqual(world.engines[0].calls[0].body, body)
                self.assertEqual(world.floe.calls[2].body["mode"], mode)

    def test_sglang_names_the_version_with_the_last_part(self) -> None:
        routes = {
            "POST /init_weights_update_group": {"success": True},
            "POST /update_weights_from_distributed": {"success": True},
        }
        with World(routes) as world:
            parts = [{"names": ["a"]}, {"names": ["b"]}]
            world.update(SglangPush.from_distributed(world.urls, parts, lambda _: None, group={"world_size": 2}))
            bodies = [call.body for call in world.engines[0].calls]
            self.assertEqual([body.get("weight_version") for body in bodies], [None, None, "v7"])

    def test_finds_the_engines_of_a_pool(self) -> None:
        engines = [{"base_url": "http://a", "pool": "default"}, {"base_url": "http://b", "pool": "judge"}]
        with Stub({"GET /engines": {"engines": engines}}) as stub:
            self.assertEqual(engine_urls(Client(stub.url)), ["http://a"])

if __name__ == "__main__":
    unittest.main()
