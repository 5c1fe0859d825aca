"""Weights into vLLM, which needs VLLM_SERVER_DEV_MODE=1 for all but LoRA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Mapping, Sequence

from .push import PauseMode, Step, check_parts

_RESET = Step("/reset_prefix_cache")


def _version(version: str) -> Step:
    return Step("/update_weight_version", {"new_version": version})


@dataclass(frozen=True)
class VllmReload:
    """Reloads all weights from a folder in the format of Hugging Face, which the engines read too."""

    urls: Sequence[str]
    folder: str
    api_key: str | None = None

    def prepare(self) -> Sequence[Step]:
        return []

    def steps(self, version: str, mode: PauseMode) -> Sequence[Step]:
        reload = {"method": "reload_weights", "kwargs": {"weights_path": self.folder}}
        return [Step("/collective_rpc", reload, changes=True), _RESET, _version(version)]


@dataclass(frozen=True)
class VllmTransfer:
    """
    Sends weights through vLLM's weight transfer (`--weight-transfer-config`). Each part is an `update_info` for the engines' backend;
    `send` is the trainer's side of one part, given its number, such as the broadcast over NCCL, and runs while the engines receive it.
    Without `init_info` the transfer was initialized before, as for every update but the first.
    """

    urls: Sequence[str]
    parts: Sequence[Mapping[str, Any]]
    send: Callable[[int], None] | None = None
    init_info: Mapping[str, Any] | None = None
    #: The trainer's side of the initialization.
    join: Callable[[], None] | None = None
    api_key: str | None = None

    def __post_init__(self) -> None:
        check_parts(self.parts)

    def prepare(self) -> Sequence[Step]:
        if self.init_info is None:
            return []
        return [Step("/init_weight_transfer_engine", {"init_info": dict(self.init_info)}, during=self.join)]

    def steps(self, version: str, mode: PauseMode) -> Sequence[Step]:
        parts = [
            Step("/update_weights", {"update_info": dict(part)}, changes=True, during=self._sender(number))
            for number, part in enumerate(self.parts)
        ]
        return [
            Step("/start_weight_update", changes=True),
            *parts,
            Step("/finish_weight_update", {"weight_version": version}, changes=True),
            _RESET,
        ]

    def _sender(self, number: int) -> Callable[[], None] | None:
        send = self.send
        return None if send is None else lambda: send(number)


@dataclass(frozen=True)
class VllmLora:
    """
    Replaces the LoRA adapter `name` by the one in `folder` (`--enable-lora`, VLLM_ALLOW_RUNTIME_LORA_UPDATING=1). Register the engine in
    floe with `model` set to `name`. vLLM's weight version stays that of the base model, so floe's name of the version counts.
    """

    urls: Sequence[str]
    name: str
    folder: str
    api_key: str | None = None
    #: Whether to name the version at the engine too, which needs VLLM_SERVER_DEV_MODE=1 as a pause does.
    names_version: bool = True

    def prepare(self) -> Sequence[Step]:
        return []

    def steps(self, version: str, mode: PauseMode) -> Sequence[Step]:
        adapter = {"lora_name": self.name, "lora_path": self.folder, "load_inplace": True}
        load = Step("/v1/load_lora_adapter", adapter, changes=True)
        return [load, _RESET, _version(version)] if self.names_version else [load]
