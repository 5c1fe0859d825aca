"""The asynchronous client against a scripted server."""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
import unittest

from floe import AsyncClient, Client, FloeError
from tests.stub import Reply, Stub, error, held


class AsyncClientTest(unittest.IsolatedAsyncioTestCase):
    async def test_has_every_method_of_the_synchronous_client(self) -> None:
        public = {name for name, _ in inspect.getmembers(Client, inspect.isfunction) if not name.startswith("_")}
        self.assertEqual(public - set(dir(AsyncClient)), set())

    async def test_calls_run_beside_each_other(self) -> None:
        both = threading.Barrier(2)

        def meet(_: object) -> dict[str, str]:
            both.wait(30)
            return {"met": "yes"}

        with Stub({"GET /rollout/status": meet}) as stub:
            async with AsyncClient(stub.url) as client:
                self.assertEqual(await asyncio.gather(client.status(), client.status()), [{"met": "yes"}] * 2)

    async def test_raises_the_error_of_the_server(self) -> None:
        with Stub({"GET /rollout/task/t": error("not_found", 404)}) as stub:
            async with AsyncClient(stub.url) as client:
                with self.assertRaises(FloeError) as raised:
                    await client.task("t")
                self.assertEqual(raised.exception.code, "not_found")

    async def test_cancelling_a_coroutine_ends_its_call(self) -> None:
        release = threading.Event()
        with Stub({"GET /rollout/status": held(release, {}), "GET /tasks": {"tasks": []}}) as stub:
            async with AsyncClient(stub.url, threads=1) as client:
                call = asyncio.ensure_future(client.status())
                await asyncio.to_thread(stub.wait_for, "GET /rollout/status")
                call.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await call
                # The only thread is free, although the server still holds the call.
                self.assertEqual(await client.tasks(), [])
                release.set()

    async def test_iterates_results_and_ends_their_request_when_the_loop_is_cancelled(self) -> None:
        release = threading.Event()
        page = Reply(b"".join(json.dumps({"cursor": n}).encode() + b"\n" for n in (1, 2)))

        with Stub({"GET /rollout/results": [page, held(release, Reply(b""))]}) as stub:
            async with AsyncClient(stub.url, threads=1) as client:
                seen: list[int] = []

                async def read() -> None:
                    async for result in client.results():
                        seen.append(result["cursor"])

                reading = asyncio.ensure_future(read())
                await asyncio.to_thread(stub.wait_for, "GET /rollout/results", 2)
                reading.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await reading
                self.assertEqual(seen, [1, 2])
                stub.routes["GET /rollout/status"] = {"free": True}
                self.assertEqual(await client.status(), {"free": True})
                release.set()

    async def test_a_cancelled_rollout_deletes_its_stream(self) -> None:
        release = threading.Event()
        with Stub({"POST /rollout/batches": {"batch_id": "b"}, "DELETE /rollout/batches/b": {}}) as stub:
            stub.routes["GET /rollout/batches/b/next"] = held(release, {})
            async with AsyncClient(stub.url) as client:

                async def read() -> None:
                    async for _ in client.rollouts([{}], {"instruction": "x"}):
                        pass

                reading = asyncio.ensure_future(read())
                await asyncio.to_thread(stub.wait_for, "GET /rollout/batches/b/next")
                reading.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await reading
                release.set()
                self.assertEqual(stub.lines[-1], "DELETE /rollout/batches/b")


if __name__ == "__main__":
    unittest.main()
