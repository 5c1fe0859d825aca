"""Weight updates of engines while sessions run: pause, push, name the version, resume."""

from .push import EngineState, Push, Step
from .sglang import SglangPush
from .update import WeightUpdateError, engine_urls, update_weights, updating
from .vllm import VllmLora, VllmReload, VllmTransfer

__all__ = [
    "EngineState",
    "Push",
    "SglangPush",
    "Step",
    "VllmLora",
    "VllmReload",
    "VllmTransfer",
    "WeightUpdateError",
    "engine_urls",
    "update_weights",
    "updating",
]
