"""verl 0.9: an agent loop manager for the trainer with TransferQueue, and an agent loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any, Mapping

import transfer_queue as tq
from tensordict import NonTensorData, NonTensorStack
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ

from ..aio import AsyncClient
from ..errors import FloeError
from ..api_types import Json
from .experts import expert_array
from .settings import Settings, grouped, plain, prompt_row

logger = logging.getLogger(__name__)

#: The class whose methods write to the TransferQueue. verl wraps it as a Ray actor; here it is used in the trainer's process.
_Worker = AgentLoopWorkerTQ.__ray_metadata__.modified_class


class FloeAgentLoopManager:
    """
    `actor_rollout_ref.rollout.agent.agent_loop_manager_class: floe.trainers.verl.FloeAgentLoopManager`. The samples of a prompt are one
    task, whose template gets the fields of the prompt's row, and `prompt` and `instruction`. A prompt of which a sample failed is reported
    as failed, as by verl's own manager: give the task a `refill`.
    """

    def __init__(self, config: Any, worker: Any, settings: Settings, client: AsyncClient | None = None) -> None:
        self._config = config
        self._worker = worker
        self._settings = settings
        self._client = client or settings.async_client()
        self._loop = asyncio.new_event_loop()
        self._running: set[Any] = set()
        threading.Thread(target=self._loop.run_forever, name="floe rollouts", daemon=True).start()

    @classmethod
    def create(
        cls,
        config: Any,
        llm_client: Any = None,
        teacher_client: Any = None,
        reward_loop_worker_handles: Any = None,
    ) -> FloeAgentLoopManager:
        worker = _Worker(config, llm_client, teacher_client, reward_loop_worker_handles)
        return cls(config, worker, Settings.load())

    def generate_sequences(self, prompts: Any) -> None:
        """Starts the samples of all prompts and returns. Each prompt is put into the queue when all of its samples are done."""
        rows = prompts_of(prompts)
        task = asyncio.run_coroutine_threadsafe(self._run(rows), self._loop)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run(self, prompts: list[dict[str, Any]]) -> None:
        pending = dict(enumerate(prompts))
        validates = bool(prompts[0].get("validate", False)) if prompts else False
        partition = "val" if validates else "train"
        rollout = self._config.actor_rollout_ref.rollout
        default = rollout.val_kwargs.n if validates else rollout.n
        try:
            for prompt in prompts:
                await tq.async_kv_put(key=prompt["uid"], partition_id=partition, tag={"status": "running"})
            if self._settings.names_versions and prompts and not validates:
                await self._client.set_policy_version(str(prompts[0]["global_steps"]))
            stream = dict(self._settings.stream)
            rows = [
                {**prompt_fields(prompt), "samples": int(prompt.get("__rollout_n__", default))} for prompt in prompts
            ]
            async for batch in self._client.rollouts(
                rows,
                grouped(self._settings.task),
                format="verl",
                policy_version=prompts[0]["global_steps"],
                options=self._settings.options,
                stream={"purpose": "evaluate", **stream} if validates else stream,
            ):
                index = batch["groups"][0]["row_index"]
                prompt = pending[index]
                await self._put(prompt, rows[index]["samples"], batch["records"], partition)
                del pending[index]
        except Exception:
            logger.exception("the rollouts of floe failed for %d prompts", len(pending))
        for prompt in pending.values():
            await tq.async_kv_put(key=prompt["uid"], partition_id=partition, tag={"status": "failure"})

    async def _put(self, prompt: dict[str, Any], samples: int, records: list[Json], partition: str) -> None:
        sessions: dict[int, list[AgentLoopOutput]] = {}
        for record in records:
            sessions.setdefault(record["session_id"], []).append(agent_loop_output(record))
        status = "finished" if len(sessions) == samples else "failure"
        if status == "failure":
            logger.error("prompt %s: %d of %d samples can be trained on", prompt["uid"], len(sessions), samples)
            sessions = {}
        fields = {
            name: value
            for name, value in prompt.items()
            if name not in ("validate", "agent_name") and not name.startswith("__")
        }
        for session_id, outputs in enumerate(sessions.values()):
            await self._worker._agent_loop_postprocess(outputs, partition == "val", session_id=session_id, **fields)
        await tq.async_kv_put(key=prompt["uid"], partition_id=partition, tag={"status": status})


class FloeAgentLoop(AgentLoopBase):  # type: ignore[misc]
    """
    An agent loop whose runs are sessions of floe, for `agent_loop_config_path` with
    `- {name: floe, _target_: floe.trainers.verl.FloeAgentLoop}`. verl runs it once for each sample.
    """

    def __init__(self, *args: Any, settings: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._settings = Settings.load(settings)
        self._client = _client(self._settings)

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput | list[AgentLoopOutput]:
        """Returns the traces of one session. Raises when it has none."""
        outputs: list[AgentLoopOutput] = []
        async for batch in self._client.rollouts(
            [{**prompt_fields(kwargs), "samples": 1}],
            grouped(self._settings.task),
            format="verl",
            policy_version=kwargs.get("global_steps"),
            options=self._settings.options,
            stream=self._settings.stream,
        ):
            outputs += [agent_loop_output(record) for record in batch["records"]]
        if not outputs:
            raise FloeError("no_completions", f"the sample of prompt {kwargs.get('uid')} cannot be trained on")
        return outputs[0] if len(outputs) == 1 else outputs


def agent_loop_output(record: Json) -> AgentLoopOutput:
    """Returns a record of the format `verl` as an AgentLoopOutput."""
    return AgentLoopOutput(
        prompt_ids=record["prompt_ids"],
        response_ids=record["response_ids"],
        response_mask=record["response_mask"],
        response_logprobs=record["response_logprobs"],
        routed_experts=expert_array(record["routed_experts"]),
        multi_modal_data=record["multi_modal_data"],
        reward_score=record["reward_score"],
        num_turns=record["num_turns"],
        metrics=AgentLoopMetrics(**record["metrics"]),
        extra_fields=record["extra_fields"],
    )


def prompts_of(prompts: Any) -> list[dict[str, Any]]:
    """Returns the rows of verl's TensorDict as dictionaries."""
    rows: list[dict[str, Any]] = [{} for _ in range(len(prompts))]
    for name, column in prompts.items():
        for index, row in enumerate(rows):
            if isinstance(column, NonTensorData):
                row[name] = column.data
            elif isinstance(column, NonTensorStack):
                row[name] = column[index].data
            else:
                row[name] = column[index]
    return rows


def prompt_fields(prompt: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the row of a prompt for the task template."""
    left_out = ("raw_prompt", "multi_modal_data", "tools_kwargs")
    given = {name: plain(value) for name, value in prompt.items() if name not in left_out}
    return {**given, **prompt_row(prompt.get("raw_prompt"))}


_clients: dict[str | None, AsyncClient] = {}


def _client(settings: Settings) -> AsyncClient:
    """Returns one client for all agent loops of a process, of which verl makes one for each sample."""
    return _clients.setdefault(settings.url, settings.async_client())
