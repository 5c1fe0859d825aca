"""Runs rows through the environment of OpenEnv: a server with OpenEnv's own client and plain HTTP, and sessions in this process."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from openenv import GenericEnvClient
from openenv.core.harness import LoopOwningSession, TrainableSession, TrainingTrace
from openenv.core.harness.capture.validate import validate_training_turn

from floe.registrations.openenv import FloeSessionFactory


def sequences(trace: TrainingTrace) -> list[dict[str, Any]]:
    return [
        {
            "completion_id": turn.node_id,
            "ids": turn.prompt_token_ids + turn.completion_token_ids,
            "mask": turn.loss_mask,
            "logprobs": [0.0] * len(turn.prompt_token_ids) + turn.per_token_logps,
        }
        for turn in trace.turns
    ]


def received(face: str, row: str, observation: dict[str, Any], reward: Any) -> dict[str, Any]:
    trace = TrainingTrace.model_validate(observation["training_trace"])
    return {
        "face": face,
        "row": row,
        "session_id": observation["session_id"],
        "unusable": observation["unusable"],
        "reward": reward,
        "sequences": sequences(trace),
    }


def call(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)


def by_server(folder: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "floe.registrations.openenv", "--port", "0"]
    command += ["--task", str(folder / "task.json"), "--rows", str(folder / "rows.jsonl")]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        address = next(line.split()[-5] for line in server.stderr if "Uvicorn running on" in line)
        return by_client(address, rows) + by_plain_http(address, rows)
    finally:
        server.terminate()
        server.communicate()


def by_client(address: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    records = []
    with GenericEnvClient(base_url=address, message_timeout_s=300).sync() as env:
        for index, row in enumerate(rows):
            start = env.reset(index=index, seed=7, episode_id=f"episode-{index}")
            assert (start.done, start.observation["instruction"]) == (False, row["prompt"]), start
            end = env.step({})
            assert end.done, end
            assert env.state()["episode_id"] == f"episode-{index}", env.state()
            records.append(received("GenericEnvClient", row["name"], end.observation, end.reward))
        try:
            env.step({})
        except RuntimeError as error:
            records.append({"face": "a second step", "row": row["name"], "message": str(error)})
    return records


def by_plain_http(address: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    assert call(f"{address}/health")["status"] == "healthy"
    assert call(f"{address}/metadata")["name"] == "floe"
    assert "row" in call(f"{address}/schema")["action"]["properties"]
    assert call(f"{address}/floe/num_tasks", {"split": "train"})["num_tasks"] == len(rows)
    assert call(f"{address}/floe/task", {"split": "train", "index": 0})["task"]["row"] == rows[0]
    row = rows[0]
    end = call(f"{address}/step", {"action": {"row": row}})
    return [received("POST /step", row["name"], end["observation"], end["reward"])]


def by_sessions(folder: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    factory = FloeSessionFactory(str(folder / "task.json"))
    records = []
    for row in rows:
        session = factory.create(row, seed=7, episode_id="episode")
        assert isinstance(session, TrainableSession) and isinstance(session, LoopOwningSession)
        code = session.wait_for_completion(300)
        verdict = session.verify([])
        for entry in session.fetch_proxy_trace():
            validate_training_turn(
                entry["prompt_token_ids"], entry["completion_token_ids"], entry["per_token_logps"], entry["loss_mask"]
            )
        records.append({
            "face": "FloeSessionFactory",
            "row": row["name"],
            "session_id": verdict.artifacts["session_id"],
            "unusable": verdict.artifacts["unusable"],
            "code": code,
            "reward": verdict.env_reward,
            "sequences": sequences(session.fetch_training_trace()),
        })
        session.close()
    cancelled = factory.create(rows[-1])
    try:
        cancelled.wait_for_completion(0.2)
    except TimeoutError:
        records.append({"face": "a wait that has passed", "row": rows[-1]["name"], "message": "TimeoutError"})
    cancelled.close()
    return records


def main(folder: Path) -> None:
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    for records in (by_server(folder, rows), by_sessions(folder, rows)):
        with (folder / "received.jsonl").open("a") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)


main(Path(sys.argv[1]))
