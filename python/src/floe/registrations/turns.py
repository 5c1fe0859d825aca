"""A trace as turns: what the policy read, what it sampled, and the messages that these tokens are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ..errors import FloeError
from ..api_types import Json, Trace


@dataclass(frozen=True)
class Call:
    """One model call of a session, with the differences to earlier calls resolved. Images have their URLs."""

    completion_id: str
    #: The ids that the engine was given.
    prompt_ids: List[int]
    response_ids: List[int]
    #: Natural logarithms, one for each id of the response.
    logprobs: List[float]
    messages: List[Json]
    tools: List[Json]
    #: The reply of the policy.
    message: Json
    finish_reason: Optional[str]
    record: Json


@dataclass(frozen=True)
class Turn:
    """One reply of the policy in a trace. All replies that a trace trains are turns of it, in order."""

    call: Call
    #: The messages since the reply before; for the first turn of a trace all messages of its request.
    messages: List[Json]
    #: The ids since the reply before that has ids here; for the first such turn they begin with the trace's prompt.
    context_ids: List[int]
    #: The sampled ids; empty for a reply that this trace does not train, whose ids are part of a later context.
    response_ids: List[int]
    #: One for each sampled id.
    logprobs: List[float]
    #: Number of ids of the trace before the sampled ones.
    start: int


def read_calls(records: Sequence[Json]) -> Dict[str, Call]:
    """Returns the model calls of a session by completion id. `records`: what GET /sessions/{id}/completions returns."""
    calls: Dict[str, Call] = {}
    images: Dict[str, str] = {}
    for record in records:
        request, prompt = record["request"], record["prompt"]
        images.update(request["images"])
        earlier = calls.get(request["base"])
        repeated = [] if earlier is None else earlier.messages[: request["keep"]]
        tools = request["tools"]
        if tools is None:
            tools = [] if earlier is None else earlier.tools
        start = calls.get(prompt["base"])
        ids = [] if start is None else (start.prompt_ids + start.response_ids)[: prompt["keep"]]
        calls[record["completion_id"]] = Call(
            completion_id=record["completion_id"],
            prompt_ids=ids + prompt["ids"],
            response_ids=record["response_ids"],
            logprobs=record["response_logprobs"],
            messages=repeated + [_with_images(message, images) for message in request["messages"]],
            tools=tools,
            message=record["message"],
            finish_reason=record["finish_reason"],
            record=record,
        )
    return calls


def turns_of(trace: Trace, calls: Mapping[str, Call]) -> List[Turn]:
    """
    Splits a trace at the replies of the policy. Raises `corrupt_record` when the trained tokens of the trace are not exactly the sampled
    tokens of its completions.
    """
    ids, mask, logprobs = trace["response_ids"], trace["loss_mask"], trace["response_logprobs"]
    prompt = trace["prompt_ids"]
    if not len(ids) == len(mask) == len(logprobs):
        raise _corrupt(trace, "its arrays differ in length")
    turns: List[Turn] = []
    end = 0
    for completion_id in trace["completion_ids"]:
        call = calls.get(completion_id)
        if call is None:
            raise _corrupt(trace, f"its completion {completion_id} is not recorded")
        messages = call.messages if not turns else _new_messages(call.messages)
        start = _next_trained(mask, end)
        stop = start + len(call.response_ids)
        # A reply that the trace does not train is context: the next trained ids are those of a later completion.
        trained = start < stop <= len(ids) and ids[start:stop] == call.response_ids and all(mask[start:stop])
        if trained:
            context = (prompt if end == 0 and not any(turn.response_ids for turn in turns) else []) + ids[end:start]
            turns.append(Turn(call, messages, context, ids[start:stop], logprobs[start:stop], len(prompt) + start))
            end = stop
        else:
            turns.append(Turn(call, messages, [], [], [], len(prompt) + end))
    if _next_trained(mask, end) < len(mask):
        raise _corrupt(trace, f"no completion sampled the trained token at position {_next_trained(mask, end)}")
    return turns


def text_of(message: Json) -> str:
    """Returns the text of a message; its images are left out."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part["text"] for part in content if part["type"] == "text")


def _next_trained(mask: Sequence[int], start: int) -> int:
    for position in range(start, len(mask)):
        if mask[position] == 1:
            return position
    return len(mask)


def _new_messages(messages: List[Json]) -> List[Json]:
    """Returns the messages after the last assistant message."""
    for index in range(len(messages) - 1, -1, -1):
        if messages[index]["role"] == "assistant":
            return messages[index + 1 :]
    return messages


def _with_images(message: Json, images: Mapping[str, str]) -> Json:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": [_resolved(part, images) for part in content]}


def _resolved(part: Any, images: Mapping[str, str]) -> Any:
    if part["type"] != "image_url":
        return part
    url = part["image_url"]["url"]
    return {**part, "image_url": {"url": images.get(url, url)}}


def _corrupt(trace: Trace, problem: str) -> FloeError:
    return FloeError("corrupt_record", f"trace {trace['trace_id']}: {problem}", {"trace_id": trace["trace_id"]})
