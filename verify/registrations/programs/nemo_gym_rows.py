"""Runs rows through the agent server of NeMo Gym: by its HTTP routes, and with `gym env start` and `gym eval run`."""

from __future__ import annotations

import json
import math
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Iterator, TextIO

from fastapi.testclient import TestClient
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.openai_utils import NeMoGymResponse, TokenIDLogProbMixin
from nemo_gym.server_utils import ServerClient
from omegaconf import OmegaConf

from floe.registrations.nemo_gym import FloeAgent, FloeAgentConfig, FloeVerifyResponse

BIN = Path(sys.prefix) / "bin"
RAY_ATTEMPTS = 3
RAY_AGENT_PORTS = ("dashboard-agent-grpc-port", "dashboard-agent-listen-port", "metrics-export-port", "runtime-env-agent-port")
APP = """from floe.registrations.nemo_gym import FloeAgent

if __name__ == "__main__":
    FloeAgent.run_webserver()
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def gym_row(row: dict[str, Any]) -> dict[str, Any]:
    message = {"role": "user", "content": row["prompt"]}
    fields = {name: value for name, value in row.items() if name != "prompt"}
    return {"responses_create_params": {"input": [message], "temperature": 0.9}, **fields}


def trained_sequence(output: list[dict[str, Any]]) -> dict[str, Any]:
    """
    Joins the items of a response as NeMo-RL does. Raises where NeMo-RL's `_postprocess_nemo_gym_to_nemo_rl_result` raises: a prompt that does
    not continue all tokens before it, no sampled token at all, a log-probability that is not a number.
    """
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    for item in output:
        if not item.get("generation_token_ids"):
            continue
        tokens = TokenIDLogProbMixin.model_validate(item)
        if tokens.prompt_token_ids[: len(ids)] != ids:
            raise ValueError("the prompt of an item does not continue the tokens before it")
        if len(tokens.generation_token_ids) != len(tokens.generation_log_probs):
            raise ValueError("an item has not one log-probability for each sampled token")
        if any(math.isnan(value) for value in tokens.generation_log_probs):
            raise ValueError("a log-probability is NaN")
        context = tokens.prompt_token_ids[len(ids) :]
        ids += context + tokens.generation_token_ids
        mask += [0] * len(context) + [1] * len(tokens.generation_token_ids)
        logprobs += [0.0] * len(context) + tokens.generation_log_probs
    if not ids:
        raise ValueError("no item has sampled tokens")
    return {"ids": ids, "mask": mask, "logprobs": logprobs}


def received(face: str, result: dict[str, Any]) -> dict[str, Any]:
    """Reads a result of `/run` with Gym's models, and returns what a trainer gets of it."""
    FloeVerifyResponse.model_validate(result)
    NeMoGymResponse.model_validate(result["response"])
    return {
        "face": face,
        "row": result["name"],
        "session_id": result["floe_session_id"],
        "reward": result["reward"],
        "delivered_fraction": result["delivered_fraction"],
        "sequences": [trained_sequence(result["response"]["output"])],
    }


def client_of(task: Path, **settings: Any) -> TestClient:
    config = FloeAgentConfig(host="", port=0, name="floe_agent", entrypoint="app.py", task=str(task), **settings)
    head = BaseServerConfig(host="", port=0)
    gym = ServerClient(head_server_config=head, global_config_dict=OmegaConf.create({}))
    return TestClient(FloeAgent(config=config, server_client=gym).setup_webserver())


def by_http(task: Path, rows: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    records = []
    default, strict, reporting = client_of(task), client_of(task, several_traces="refuse"), client_of(task, unusable="report")
    for name in ("repair", "two_conversations"):
        reply = default.post("/run", json=gym_row(rows[name]))
        assert reply.status_code == 200, reply.text
        records.append(received("/run", reply.json()))
    for face, client, name in [
        ("/run with several_traces: refuse", strict, "two_conversations"),
        ("/run of a session that must not be trained on", default, "timeout"),
    ]:
        reply = client.post("/run", json=gym_row(rows[name]))
        records.append({"face": face, "row": name, "status": reply.status_code, "message": reply.json()["detail"]})
    lacking = {name: value for name, value in gym_row(rows["repair"]).items() if name != "start"}
    reply = default.post("/run", json=lacking)
    records.append({"face": "/run of a row without a field", "row": "repair", "status": reply.status_code, "message": reply.json()["detail"]})
    reported = reporting.post("/run", json=gym_row(rows["timeout"])).json()
    records.append({
        "face": "/run with unusable: report",
        "row": "timeout",
        "failure": reported["_ng_failure_class"],
        "items": len(reported["response"]["output"]),
        "reward": reported["reward"],
    })
    return records


class NotStarted(Exception):
    """A server ended before it was ready."""


@contextmanager
def running(command: list[str], ready: str, folder: Path, log: TextIO) -> Iterator[None]:
    """Runs a server while the block runs, which begins when the server has printed `ready`."""
    server = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    assert server.stdout is not None
    printed: list[str] = []
    try:
        for line in server.stdout:
            printed.append(line)
            if ready in line:
                break
        else:
            raise NotStarted(f"{' '.join(command[:3])} ended: {''.join(printed)[-2000:]}")
        # The rest of the output is read, so that the server never waits for a full pipe.
        threading.Thread(target=lambda: log.writelines(server.stdout or []), daemon=True).start()
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        server.wait()


@contextmanager
def running_ray(folder: Path, log: TextIO) -> Iterator[str]:
    """
    Runs Ray, which Gym needs, and yields its address. Gym would start Ray itself, with a dashboard that needs most of a small machine. The agents
    get their ports here: a node of Ray whose agents choose their ports ends when they have not done so after 15 s, which loading their code
    on a busy machine exceeds. Ray then permits 30 s, so the start is retried.
    """
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
    with ExitStack() as stack:
        for attempt in range(1, RAY_ATTEMPTS + 1):
            port = free_port()
            ray = [str(BIN / "ray"), "start", "--head", "--block", "--include-dashboard=false", "--disable-usage-stats"]
            agents = [f"--{name}={free_port()}" for name in RAY_AGENT_PORTS]
            command = [*ray, f"--port={port}", "--num-cpus=1", *agents]
            try:
                stack.enter_context(running(command, "Ray runtime started", folder, log))
                break
            except NotStarted:
                if attempt == RAY_ATTEMPTS:
                    raise
        yield f"127.0.0.1:{port}"


def by_cli(task: Path, rows: dict[str, dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Starts the servers with `gym env start`, as a user does, and collects rollouts with `gym eval run`."""
    agent = folder / "responses_api_agents" / "floe_agent"
    agent.mkdir(parents=True)
    (agent / "app.py").write_text(APP)
    (agent / "requirements.txt").write_text("floe-rl\n")
    # Gym makes an environment for each server; this one has what the server needs.
    (agent / ".venv").symlink_to(sys.prefix)
    config = {"entrypoint": "app.py", "task": str(task)}
    text = OmegaConf.to_yaml({"floe_agent": {"responses_api_agents": {"floe_agent": config}}})
    (folder / "floe.yaml").write_text(text)
    (folder / "rows.jsonl").write_text(json.dumps(gym_row(rows["repair"])) + "\n")
    (folder / "out").mkdir()
    with (folder / "servers.log").open("w") as log, running_ray(folder, log) as address:
        at = ["++head_server.host=127.0.0.1", f"++head_server.port={free_port()}", f"++ray_head_node_address={address}"]
        start = [str(BIN / "gym"), "env", "start", "+config_paths=[floe.yaml]", "+skip_venv_if_present=true", *at]
        collect = [str(BIN / "gym"), "eval", "run", "--no-serve", *at, "+agent_name=floe_agent", "+num_repeats=2"]
        collect += ["+input_jsonl_fpath=rows.jsonl", "+output_jsonl_fpath=out/rollouts.jsonl"]
        with running(start, "All 1 / 1 servers ready", folder, log):
            subprocess.run(collect, cwd=folder, check=True, stdout=log, stderr=log)
    metrics = json.loads((folder / "out" / "rollouts_aggregate_metrics.json").read_text())
    assert metrics[0]["key_metrics"]["mean/delivered_fraction"] == 1, metrics
    lines = (folder / "out" / "rollouts.jsonl").read_text().splitlines()
    return [received("gym eval run", json.loads(line)) for line in lines]


def sabotaged(records: list[dict[str, Any]]) -> bool:
    """Whether the reading of a response notices a prompt that does not continue the tokens before it."""
    ids = records[0]["sequences"][0]["ids"]
    first = {"prompt_token_ids": ids[:4], "generation_token_ids": ids[4:6], "generation_log_probs": [0.0, 0.0]}
    broken = ids[:5] + [ids[5] + 1] + ids[6:8]
    try:
        trained_sequence([first, {"prompt_token_ids": broken, "generation_token_ids": [1], "generation_log_probs": [0.0]}])
    except ValueError:
        return True
    return False


def main(folder: Path) -> None:
    task = folder / "task.json"
    rows = {row["name"]: row for row in map(json.loads, (folder / "rows.jsonl").read_text().splitlines())}
    records = by_http(task, rows)
    records.append({"face": "a broken continuation", "row": "repair", "noticed": sabotaged(records)})
    write(folder, records)
    try:
        write(folder, by_cli(task, rows, folder / "gym"))
    except NotStarted as error:
        if "ray start" not in str(error):
            raise
        write(folder, [{"face": "gym eval run", "row": "repair", "skipped": "Ray did not start within its 30 s: the machine is too busy"}])


def write(folder: Path, records: list[dict[str, Any]]) -> None:
    with (folder / "received.jsonl").open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


main(Path(sys.argv[1]))
