"""A taskset of verifiers, from which floe makes episodes."""

from collections.abc import Iterable

import verifiers.v1 as vf

_ROWS = [("France", "Paris"), ("Japan", "Tokyo"), ("Kenya", "Nairobi"), ("Peru", "Lima")]


class CapitalData(vf.TaskData):
    answer: str


class CapitalTask(vf.Task[CapitalData]):
    @vf.reward(weight=0.75)
    async def right(self, trace: vf.Trace) -> float:
        return float(self.data.answer in trace.last_reply)

    @vf.reward(weight=0.25)
    async def short(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply) < 20)


class CapitalsConfig(vf.TasksetConfig):
    count: int = len(_ROWS)


class Capitals(vf.Taskset[CapitalTask, CapitalsConfig]):
    def load(self) -> Iterable[CapitalTask]:
        for country, capital in _ROWS[: self.config.count]:
            prompt = f"What is the capital of {country}?"
            yield CapitalTask(CapitalData(prompt=prompt, answer=capital), self.config.task)


__all__ = ["Capitals"]
