"""Runs rows through the environment of verifiers: with the environment server that prime-rl uses, and with `vf-eval`."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.serve import EnvClient, EnvServer
from verifiers.v1.utils.trace_store import read_episodes


def received(face: str, episode: Any, *, decimals: int | None) -> dict[str, Any]:
    """Returns what a trainer reads of an episode: one sequence for each branch of its trace."""
    (trace,) = episode.traces
    data = trace.task.data.model_dump()
    return {
        "face": face,
        "row": data["row"]["name"],
        "session_id": trace.info["floe"]["session_id"],
        "reward": trace.reward,
        "ok": episode.ok,
        "stop_condition": trace.stop_condition,
        "errors": [error.type for error in trace.errors],
        "decimals": decimals,
        "turns": trace.num_turns,
        "output_tokens": trace.num_output_tokens,
        "sequences": [
            {"ids": branch.token_ids, "mask": [int(bit) for bit in branch.sampled_mask], "logprobs": branch.logprobs}
            for branch in trace.branches
        ],
    }


async def by_server(folder: Path) -> list[dict[str, Any]]:
    config = vf.resolve_env_config({"task": str(folder / "task.json"), "taskset": {"id": "floe_verifiers", "rows": str(folder / "rows.jsonl")}})
    server = EnvServer(config, address="tcp://127.0.0.1:0")
    serving = asyncio.create_task(server.run())
    client = EnvClient(server.address)
    await client.wait_for_server_startup()
    try:
        episodes = await asyncio.gather(
            *(
                client.run(vf.EvalClientConfig(), "policy", vf.SamplingConfig(temperature=0.9), task.data.model_dump())
                for task in server.env.taskset
            )
        )
        records = [received("the environment server", episode, decimals=None) for episode in episodes]
        strange = await client.run(
            vf.EvalClientConfig(),
            "policy",
            vf.SamplingConfig(top_a=0.5),
            next(iter(server.env.taskset)).data.model_dump(),
        )
        error = strange.traces[0].errors[0]
        records.append({"face": "a sampling parameter that floe does not have", "row": "repair", "message": error.message})
        return records
    finally:
        await client.close()
        serving.cancel()
        await serving


def by_cli(folder: Path) -> list[dict[str, Any]]:
    """Runs `vf-eval` as a user does. It writes log-probabilities with four decimals."""
    command = [str(Path(sys.prefix) / "bin" / "vf-eval"), "floe_verifiers", "-m", "policy", "--no-rich", "--no-push", "-o", str(folder / "out")]
    command += ["--env.task", str(folder / "task.json"), "--env.taskset.rows", str(folder / "rows.jsonl")]
    command += ["--env.taskset.prompt", "{{row.prompt}}", "-n", "2"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (run,) = (folder / "out").iterdir()
    return [received("vf-eval", episode, decimals=4) for episode in read_episodes(run, vf.WireTrace)]


def main(folder: Path) -> None:
    for records in (asyncio.run(by_server(folder)), by_cli(folder)):
        with (folder / "received.jsonl").open("a") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)


main(Path(sys.argv[1]))
