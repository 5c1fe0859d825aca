"""SkyRL's Tinker server, on JAX, takes an optimizer step of LoRA with the datums of the format `tinker`, which Tinker's client sends.

Tinker's loss functions refuse the entry `mask`, so it is removed before. The server returns the logprobs that its model gives to all tokens.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from exported import REAL_STEP, Cases, Row, batches, float32, print_report, records, trained_rows

os.environ["TINKER_API_KEY"] = "tml-local"

import tinker
from tinker import types

# Number of datums of one request.
REQUEST_DATUMS = 256
# Loading JAX can take minutes beside other programs.
START_SECONDS = 900


@contextmanager
def tinker_server(folder: Path):
    """Starts the server, waits until it is ready, and yields its URL. Ends it with the engine that it starts."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    uv = Path(os.environ["FLOE_UV"])
    # The server reads the command of its parent, which must be `uv run`, to start its engine in the same way.
    command = [str(uv), "run", "--no-project", "--python", sys.executable, "-m", "skyrl.tinker.api"]
    options = {
        "base-model": folder / "model",
        "backend": "jax",
        "backend-config": '{"max_lora_adapters": 2, "max_lora_rank": 8}',
        "checkpoints-base": folder / "checkpoints",
        "database-url": f"sqlite:///{folder}/tinker.db",
        "host": "127.0.0.1",
        "port": port,
    }
    arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    path = f"{uv.parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "UV_OFFLINE": "1", "JAX_PLATFORMS": "cpu"}
    with open(folder / "tinker_server.log", "w", encoding="utf8") as log:
        server = subprocess.Popen(
            [*command, *arguments], env=environment, stdout=log, stderr=log, cwd=folder, start_new_session=True
        )
        try:
            wait_until_ready(server, f"http://127.0.0.1:{port}/api/v1/healthz")
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait()


def wait_until_ready(server: subprocess.Popen, url: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"the Tinker server ended with status {server.returncode}")
        try:
            with urlopen(url, timeout=10):
                return
        except (URLError, OSError):
            time.sleep(1)
    raise RuntimeError(f"the Tinker server was not ready within {START_SECONDS} seconds")


def check_fields(cases: Cases, row: Row, record: dict[str, Any]) -> None:
    """Compares a datum with its row. The entries of the loss belong to the ids from the second on."""
    inputs = {name: tensor["data"] for name, tensor in record["loss_fn_inputs"].items()}
    ids = [id for chunk in record["model_input"]["chunks"] for id in chunk["tokens"]]
    cases.check_equal(f"{row.trace_id}: input", ids, row.ids[:-1])
    cases.check_equal(f"{row.trace_id}: targets", inputs["target_tokens"], row.ids[1:])
    cases.check_equal(f"{row.trace_id}: mask", inputs["mask"], row.mask[1:])
    advantages = [float32(row.advantage) if mask else 0.0 for mask in row.mask[1:]]
    cases.check_equal(f"{row.trace_id}: advantages", [float32(value) for value in inputs["advantages"]], advantages)


def datum_of(record: dict[str, Any]) -> types.Datum:
    inputs = {name: types.TensorData(**tensor) for name, tensor in record["loss_fn_inputs"].items() if name != "mask"}
    return types.Datum(model_input=types.ModelInput.model_validate(record["model_input"]), loss_fn_inputs=inputs)


def logprobs_of(output: Any) -> list[list[float]]:
    return [[float(value) for value in one["logprobs"].data] for one in output.loss_fn_outputs]


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    cases = Cases()
    rows, exported = trained_rows(folder), records(folder, "tinker")
    cases.check_equal("number of datums", len(exported), len(rows))
    for row, record in zip(rows, exported):
        check_fields(cases, row, record)
    datums = [datum_of(record) for record in exported]

    # A signal must end the server too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    with tinker_server(folder) as url:
        service = tinker.ServiceClient(base_url=url)
        client = service.create_lora_training_client(base_model=str(folder / "model"), rank=8)
        # The gradients of all requests are added up until the step, so all logprobs are those of the initial weights.
        computed: list[list[float]] = []
        for part in batches(len(datums), REQUEST_DATUMS):
            request = client.forward_backward([datums[at] for at in part], loss_fn="importance_sampling")
            computed += logprobs_of(request.result())
        client.optim_step(types.AdamParams(learning_rate=1e-2)).result()
        after = logprobs_of(client.forward(datums[:1], loss_fn="importance_sampling").result())

    for row, record, values in zip(rows, exported, computed, strict=True):
        inputs = record["loss_fn_inputs"]
        trained = [at for at, mask in enumerate(inputs["mask"]["data"]) if mask]
        recorded = [float32(inputs["logprobs"]["data"][at]) for at in trained]
        cases.check_logprobs(row, [values[at] for at in trained], recorded)
    moved = max(abs(a - b) for a, b in zip(computed[0], after[0], strict=True))
    cases.check(moved > 0, "the step did not change the logprobs of the model")
    print_report(
        cases,
        trainer="SkyRL tx (Tinker server)",
        version=f"{version('skyrl')}, tinker {version('tinker')}",
        how=REAL_STEP,
        rows=len(rows),
        real_step=moved > 0,
    )


main()
