"""
An agent server of NeMo Gym that runs each row as a floe session. Needs the package `nemo-gym`; docs/guides/nemo-gym.md shows the files that Gym
wants around it.
"""

from __future__ import annotations

import time
from typing import Any, Dict, List, Literal, Optional, Union

from fastapi import Body, HTTPException, Request
from nemo_gym.base_resources_server import BaseRunRequest, BaseVerifyResponse
from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, SimpleResponsesAPIAgent
from nemo_gym.openai_utils import (
    RESPONSES_TO_TRAIN,
    NeMoGymEasyInputMessage,
    NeMoGymFunctionCallOutput,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseFunctionToolCall,
    NeMoGymResponseInputTokensDetails,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseOutputText,
    NeMoGymResponseOutputTokensDetails,
    NeMoGymResponseReasoningItem,
    NeMoGymResponseUsage,
    NeMoGymSummary,
)
from nemo_gym.rollout_collection import NG_FAILURE_CLASS_KEY
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from ..aio import AsyncClient
from ..errors import FloeError
from ..api_types import Json
from .rollout import Rollout, Rollouts, read_template
from .turns import Turn, text_of

#: Outcomes that the next attempt at the same row may not have. A trainer retries them more often than others.
_INFRASTRUCTURE = frozenset({"infra_error", "engine_error", "cancelled"})


class FloeAgentConfig(BaseResponsesAPIAgentConfig):
    #: Address of floe's rollout server. Default: the environment's FLOE_URL. The token is that of FLOE_TOKEN.
    floe_url: Optional[str] = None
    #: Template of the task that a row becomes, or the path of a JSON file with it.
    task: Union[Dict[str, Any], str]
    #: What becomes of a session with several traces: the one with the most trained tokens is returned, or the session is refused.
    several_traces: Literal["longest", "refuse"] = "longest"
    #: What becomes of a session that must not be trained on: an HTTP error, or a result without tokens in Gym's file of failures.
    unusable: Literal["refuse", "report"] = "refuse"
    #: Sessions that run at the same time at most.
    concurrency: int = Field(default=1024, ge=1)


class FloeRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")


class FloeVerifyResponse(BaseVerifyResponse):
    """The row, the response and the reward, and floe's facts about the session, which Gym averages where they are numbers."""

    model_config = ConfigDict(extra="allow")

    floe_session_id: str
    floe_outcome: str
    #: Number of traces of the session. Gym takes one chain of tokens for each rollout.
    floe_traces: int
    #: Share of the session's trained tokens that the response has.
    delivered_fraction: float


class FloeAgent(SimpleResponsesAPIAgent):
    config: FloeAgentConfig
    _rollouts: Rollouts = PrivateAttr()

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        client = AsyncClient(self.config.floe_url, threads=self.config.concurrency)
        self._rollouts = Rollouts(client, read_template(self.config.task))

    async def run(self, request: Request, body: FloeRunRequest = Body()) -> FloeVerifyResponse:
        rollout = await self._run(body.responses_create_params, body.model_dump(mode="json"))
        turns = _chain(rollout, self.config.several_traces)
        problem = _problem(rollout, turns)
        if problem is not None and self.config.unusable == "refuse":
            raise HTTPException(_status(rollout), problem)
        reward = rollout.result["reward"]
        sampled = sum(len(turn.response_ids) for turn in turns)
        failure = {} if problem is None else {NG_FAILURE_CLASS_KEY: rollout.unusable or "no_tokens"}
        scores = {name: score for name, score in rollout.result["reward_components"].items() if score is not None}
        return FloeVerifyResponse(
            **{
                **body.model_dump(),
                "response": _response(rollout, turns if problem is None else [], body.responses_create_params),
                "reward": 0.0 if reward is None or problem is not None else reward,
                "floe_session_id": rollout.result["session_id"],
                "floe_outcome": rollout.result["outcome"],
                "floe_traces": len(rollout.traces),
                "delivered_fraction": sampled / max(1, rollout.result["trainable_tokens"]),
                **{f"reward_{name}": score for name, score in scores.items()},
                **failure,
            }
        )

    async def responses(
        self, request: Request, body: NeMoGymResponseCreateParamsNonStreaming = Body()
    ) -> NeMoGymResponse:
        """Runs a session without a row: a template that names other fields than `prompt` is refused."""
        rollout = await self._run(body, {"responses_create_params": body.model_dump(mode="json")})
        turns = _chain(rollout, self.config.several_traces)
        problem = _problem(rollout, turns)
        if problem is not None:
            raise HTTPException(_status(rollout), problem)
        return _response(rollout, turns, body)

    async def _run(self, params: NeMoGymResponseCreateParamsNonStreaming, row: Json) -> Rollout:
        sampling = {
            "temperature": params.temperature,
            "top_p": params.top_p,
            "max_tokens": params.max_output_tokens,
        }
        try:
            task = self._rollouts.task({**_texts(params), **row}, sampling=sampling)
            return await self._rollouts.run(task)
        except FloeError as error:
            # An error of the server, such as 503, keeps its status. One that a row or the template causes is a 422.
            raise HTTPException(error.status or (503 if error.retryable else 422), str(error)) from error


def _texts(params: NeMoGymResponseCreateParamsNonStreaming) -> Json:
    """Returns `prompt`, the text of the last user message, and `system_prompt`, that of all system and developer messages."""
    system = [params.instructions] if params.instructions else []
    prompt = params.input if isinstance(params.input, str) else ""
    for item in [] if isinstance(params.input, str) else params.input:
        role = getattr(item, "role", None)
        if role in ("system", "developer"):
            system.append(_item_text(item))
        elif role == "user":
            prompt = _item_text(item)
    return {"prompt": prompt, "system_prompt": "\n\n".join(system)}


def _item_text(item: Any) -> str:
    if isinstance(item.content, str):
        return item.content
    return "".join(part["text"] for part in item.content if "text" in part)


def _chain(rollout: Rollout, several: str) -> List[Turn]:
    """Returns the turns of the trace that Gym gets. Gym takes one chain, in which every prompt extends all tokens before it."""
    if not rollout.traces:
        return []
    if len(rollout.traces) > 1 and several == "refuse":
        session = rollout.result["session_id"]
        raise HTTPException(422, f"session {session} has {len(rollout.traces)} traces, and several_traces is refuse")
    return max(rollout.traces, key=lambda turns: sum(len(turn.response_ids) for turn in turns))


def _problem(rollout: Rollout, turns: List[Turn]) -> Optional[str]:
    """Returns why the sample cannot be trained on; None when it can."""
    if rollout.unusable is not None:
        return rollout.problem
    if rollout.result["reward"] is None:
        return f"session {rollout.result['session_id']} has no reward: the task template needs an evaluator"
    if not any(turn.response_ids for turn in turns):
        return f"session {rollout.result['session_id']} has no trained tokens"
    return None


def _status(rollout: Rollout) -> int:
    return 503 if rollout.result["outcome"] in _INFRASTRUCTURE else 422


def _response(
    rollout: Rollout, turns: List[Turn], params: NeMoGymResponseCreateParamsNonStreaming
) -> NeMoGymResponse:
    session = rollout.result["session_id"]
    output: List[Any] = []
    ids: List[int] = []
    for index, turn in enumerate(turns):
        if index > 0:
            output += [_input_item(message) for message in turn.messages]
        items = _reply_items(turn.call.message, turn.call.completion_id)
        if turn.response_ids:
            prompt = ids + turn.context_ids
            ids = prompt + turn.response_ids
            items[-1] = _with_tokens(items[-1], prompt, turn)
        output += items
    sampled = sum(len(turn.response_ids) for turn in turns)
    return NeMoGymResponse(
        id=session,
        created_at=int(time.time()),
        model=turns[-1].call.record["model"] if turns else "none",
        object="response",
        output=output,
        parallel_tool_calls=params.parallel_tool_calls,
        tool_choice=params.tool_choice,
        tools=params.tools,
        usage=NeMoGymResponseUsage(
            input_tokens=len(ids) - sampled,
            input_tokens_details=NeMoGymResponseInputTokensDetails(cached_tokens=0),
            output_tokens=sampled,
            output_tokens_details=NeMoGymResponseOutputTokensDetails(reasoning_tokens=0),
            total_tokens=len(ids),
        ),
    )


def _with_tokens(item: BaseModel, prompt: List[int], turn: Turn) -> BaseModel:
    kind = RESPONSES_TO_TRAIN[type(item)]
    return kind(
        **item.model_dump(),
        prompt_token_ids=prompt,
        generation_token_ids=turn.response_ids,
        generation_log_probs=turn.logprobs,
    )


def _reply_items(message: Json, name: str) -> List[Any]:
    """Returns the items of a reply: thinking, text, tool calls. The token data of the reply belongs to the last one."""
    items: List[Any] = []
    thinking, text = message.get("reasoning_content"), text_of(message)
    calls = message.get("tool_calls") or []
    if thinking:
        summary = NeMoGymSummary(text=thinking, type="summary_text")
        items.append(NeMoGymResponseReasoningItem(id=f"rs_{name}", summary=[summary]))
    if text or not calls:
        content = [NeMoGymResponseOutputText(annotations=[], text=text)]
        items.append(NeMoGymResponseOutputMessage(id=f"msg_{name}", content=content))
    for call in calls:
        function = call["function"]
        items.append(
            NeMoGymResponseFunctionToolCall(
                id=call["id"], call_id=call["id"], name=function["name"], arguments=function["arguments"]
            )
        )
    return items


def _input_item(message: Json) -> Any:
    text = text_of(message)
    if message["role"] == "tool":
        return NeMoGymFunctionCallOutput(call_id=message["tool_call_id"], output=text)
    return NeMoGymEasyInputMessage(role=message["role"], content=text)
