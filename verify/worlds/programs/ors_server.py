"""Serves an environment of the Open Reward Standard on a free port: a number must be found by its size, with one tool and a terminal tool."""

from __future__ import annotations

from openreward.environments import Environment, Server, TextBlock, ToolOutput, terminal, tool
from pydantic import BaseModel
from serving import serve


class Guess(BaseModel):
    number: int


class Answer(BaseModel):
    text: str


class FindNumber(Environment):
    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{"number": number} for number in (3, 5, 8)]

    def get_prompt(self):
        return [TextBlock(text="Find the number, and then say it.")]

    @tool
    def guess(self, args: Guess) -> ToolOutput:
        """Compares a number with the one to find."""
        number = self.task_spec["number"]
        if args.number < 0:
            raise ValueError("no negative numbers")
        text = "equal" if args.number == number else "lower" if args.number > number else "higher"
        return ToolOutput(blocks=[TextBlock(text=text)], reward=0.25 if text == "equal" else 0.0)

    @terminal
    @tool
    def answer(self, args: Answer) -> ToolOutput:
        """Ends the episode."""
        right = args.text == str(self.task_spec["number"])
        return ToolOutput(blocks=[TextBlock(text="right" if right else "wrong")], reward=0.75 * right, finished=True)


serve(Server([FindNumber]).app)
