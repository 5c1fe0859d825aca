"""Environments in the form of Gymnasium, for tests."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time


class Countdown:
    """Counts down from `start`: each right number gives 1 / start."""

    def __init__(self, start=3):
        self.start = start

    def reset(self, seed):
        self.left = self.start
        return f"seed {seed}: say {self.left}", {"env_instruction": "Count down.", "start": self.start}

    def step(self, action):
        if action != str(self.left):
            return "wrong", 0.0, True, False, {"success": 0}
        self.left -= 1
        return f"say {self.left}", 1 / self.start, self.left == 0, False, {"success": int(self.left == 0)}


class Drawing:
    """Draws from the global generator of Python in every step, as many environments do."""

    def reset(self, seed):
        return f"drawn {random.random()}", {}

    def step(self, action):
        return f"drawn {random.random()}", 0.0, False, False, {}


class Calculator:
    """Answers tool calls, and returns the whole conversation after each step."""

    tool = {
        "type": "function",
        "function": {
            "name": "add",
            "description": "adds",
            "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
        },
    }

    def reset(self, seed=None):
        self.messages = [{"role": "user", "content": "Add 20 and 22 with the tool, then answer."}]
        return list(self.messages), {"tools": [self.tool], "state_hash": "start"}

    def step(self, action):
        if isinstance(action, str):
            return [*self.messages, {"role": "user", "content": "done"}], float(action == "42"), True, False, {}
        self.messages.append(action)
        for call in action["tool_calls"]:
            arguments = json.loads(call["function"]["arguments"])
            answer = {"role": "tool", "tool_call_id": call["id"], "content": str(arguments["a"] + arguments["b"])}
            self.messages.append(answer)
        return list(self.messages), 0.0, False, False, {"state_hash": "added"}


class Misbehaving:
    """Does in its first step what its option says."""

    def __init__(self, deed, secret=None):
        self.deed = deed
        if deed == "refuse":
            raise RuntimeError("it will not be made")

    def reset(self, seed):
        return "say 1", {}

    def step(self, action):
        deeds = {
            "throw": self.throw,
            "exit": lambda: sys.exit(3),
            "vanish": lambda: os._exit(3),
            "leave": self.leave,
            "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
            "block": lambda: time.sleep(600),
            "huge": lambda: "x" * 100_000_000,
            "object": lambda: object(),
            "cycle": self.cycle,
            "print": self.shout,
            "none": lambda: None,
        }
        if self.deed == "short":
            return "say 1", 1.0
        if self.deed == "infinite":
            return "say 1", float("inf"), True, False, {}
        return deeds[self.deed](), 1.0, True, False, {}

    def throw(self):
        raise ValueError("the step broke")

    def leave(self):
        """Ends, and leaves a process that keeps the streams open and is in no group with it."""
        subprocess.Popen(["sleep", "20"], start_new_session=True)
        os._exit(3)

    def cycle(self):
        cycle = {}
        cycle["self"] = cycle
        return cycle

    def shout(self):
        print('{"type": "result", "id": 1, "value": null}')
        os.write(1, b"not JSON\n")
        sys.stdin.read()
        return "printed"


NOT_CALLABLE = 7


MEETING = threading.Barrier(2, timeout=30)


class Meeting:
    """Starts only when two episodes start at the same time."""

    def reset(self, seed):
        MEETING.wait()
        return "met", {}

    def step(self, action):
        return "", 0.0, True, False, {}
