"""A small agent that runs in the sandbox: offers the model one tool, runs its calls, and ends with the first reply without a call.

floe gives it the address, the key and the name of the model in its environment, and the instruction on its standard input. It needs
nothing but Python's standard library.
"""

import json
import os
import sys
import urllib.request
from pathlib import Path

TOOL = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Returns the content of a file.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    },
}
MAX_CALLS = 4


def reply_to(messages: list[dict]) -> dict:
    body = {"model": os.environ["FLOE_MODEL"], "messages": messages, "tools": [TOOL]}
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        data=json.dumps(body).encode(),
        headers={"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]


def result_of(call: dict) -> str:
    """Runs a call of the model. A call that cannot be run has an error text as its result, which the model reads."""
    try:
        if call["function"]["name"] != "read_file":
            return "error: no such tool"
        return Path(json.loads(call["function"]["arguments"])["path"]).read_text()
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"error: {type(error).__name__}"


def main() -> None:
    messages = [{"role": "user", "content": sys.stdin.read()}]
    for _ in range(MAX_CALLS):
        message = reply_to(messages)
        messages.append(message)
        calls = message.get("tool_calls") or []
        if not calls:
            return
        for call in calls:
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result_of(call)})


if __name__ == "__main__":
    main()
