"""Weights into SGLang."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, Sequence

from .push import PauseMode, Step, check_parts


@dataclass(frozen=True)
class SglangPush:
    """
    Sends weights by calls of one of SGLang's update routes. Make one with `from_disk`, `from_distributed` or `from_tensor`. The last call
    names the version. With the pause mode `keep`, paused replies hold the cache, which SGLang then cannot flush: floe separates the
    versions in it by a salt.
    """

    urls: Sequence[str]
    path: str
    parts: Sequence[Mapping[str, Any]]
    #: The trainer's side of one part, given its number. It runs while the engines receive the part.
    send: Callable[[int], None] | None = None
    #: Body of `/init_weights_update_group`, for the first update over a process group.
    group: Mapping[str, Any] | None = None
    join: Callable[[], None] | None = None
    api_key: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_parts(self.parts)

    @classmethod
    def from_disk(cls, urls: Sequence[str], folder: str, *, api_key: str | None = None) -> SglangPush:
        """All weights from a folder in the format of Hugging Face, which the engines read too."""
        return cls(urls, "/update_weights_from_disk", [{"model_path": folder}], api_key=api_key)

    @classmethod
    def from_distributed(
        cls,
        urls: Sequence[str],
        parts: Sequence[Mapping[str, Any]],
        send: Callable[[int], None],
        *,
        group: Mapping[str, Any] | None = None,
        join: Callable[[], None] | None = None,
        api_key: str | None = None,
    ) -> SglangPush:
        """Parts of `names`, `dtypes`, `shapes` and `group_name`, each of which `send` broadcasts; `group` and `join` create the group."""
        return cls(urls, "/update_weights_from_distributed", parts, send, group, join, api_key=api_key)

    @classmethod
    def from_tensor(
        cls, urls: Sequence[str], serialized: Sequence[Sequence[str]], *, api_key: str | None = None
    ) -> SglangPush:
        """Parts of tensors that the trainer has serialized, one text for each rank of the engine."""
        parts = [{"serialized_named_tensors": list(part)} for part in serialized]
        return cls(urls, "/update_weights_from_tensor", parts, api_key=api_key)

    def prepare(self) -> Sequence[Step]:
        return [] if self.group is None else [Step("/init_weights_update_group", dict(self.group), during=self.join)]

    def steps(self, version: str, mode: PauseMode) -> Sequence[Step]:
        last = len(self.parts) - 1
        return [
            Step(
                self.path,
                {
                    **part,
                    "flush_cache": number == last and mode == "abort",
                    **({"weight_version": version} if number == last else {}),
                },
                changes=True,
                during=self._sender(number),
            )
            for number, part in enumerate(self.parts)
        ]

    def _sender(self, number: int) -> Callable[[], None] | None:
        send = self.send
        return None if send is None else lambda: send(number)
