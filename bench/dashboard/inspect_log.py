"""Writes two logs of Inspect: bench.eval with the messages of a session, and other.eval without samples.

    python inspect_log.py messages.json FOLDER

messages.json has messages in OpenAI's chat format.
"""

import json
import sys
from datetime import datetime, timezone
from pathlib import Path

from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalSample, EvalSpec, write_eval_log
from inspect_ai.model import ChatMessage, ChatMessageAssistant, ChatMessageTool, ChatMessageUser
from inspect_ai.tool import ToolCall


def converted(message: dict) -> ChatMessage:
    """Returns a message in Inspect's form."""
    if message["role"] == "tool":
        return ChatMessageTool(content=message["content"], tool_call_id=message["tool_call_id"], function="shell")
    if message["role"] == "user":
        return ChatMessageUser(content=message["content"])
    calls = [
        ToolCall(id=call["id"], function=call["function"]["name"], arguments=json.loads(call["function"]["arguments"]))
        for call in message.get("tool_calls", [])
    ]
    return ChatMessageAssistant(content=message["content"] or "", tool_calls=calls)


def main() -> None:
    messages = [converted(message) for message in json.loads(Path(sys.argv[1]).read_text())]
    # The list of samples shows the input, which must not be the text that the bench waits for.
    sample = EvalSample(id="session", epoch=1, input="a session", target="", messages=messages)
    spec = EvalSpec(
        created=datetime.now(timezone.utc).isoformat(),
        task="bench",
        dataset=EvalDataset(name="bench", samples=1, sample_ids=["session"]),
        model="policy",
        config=EvalConfig(),
    )
    # The viewer opens a log at once when it is the only one, so there is a second one.
    for name, samples in (("bench", [sample]), ("other", [])):
        log = EvalLog(status="success", eval=spec, samples=samples)
        write_eval_log(log, str(Path(sys.argv[2]) / f"{name}.eval"))


main()
