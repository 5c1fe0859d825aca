"""A CPU platform for verl, which has platforms for CUDA, ROCm and NPU, and an extension point for others."""

from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry, set_platform


def _device_module() -> ModuleType:
    """Returns a module with the functions of `torch.cuda` that verl calls."""
    module = ModuleType("cpu_device")
    nothing = ("synchronize", "empty_cache", "set_device", "reset_peak_memory_stats", "ipc_collect")
    seeds = ("manual_seed", "manual_seed_all")
    amounts = ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved")
    for name in nothing + seeds:
        setattr(module, name, lambda *_: None)
    for name in amounts:
        setattr(module, name, lambda *_: 0)
    module.get_device_name = lambda *_: "CPU"
    module.is_available = lambda: True
    module.current_device = lambda: "cpu"
    module.device_count = lambda: 1
    module.mem_get_info = lambda *_: (2**30, 2**30)
    module.get_rng_state = lambda *_: torch.get_rng_state()
    module.set_rng_state = lambda state, *_: torch.set_rng_state(state)
    return module


_DEVICE = _device_module()


class PlatformCpu(PlatformBase):
    """The processor of this machine as one device."""

    device_name = property(lambda self: "cpu")
    vendor_name = property(lambda self: "cpu")
    device_module = property(lambda self: _DEVICE)

    def is_available(self) -> bool:
        return True

    def current_device(self) -> Any:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CPU_VISIBLE"

    @contextmanager
    def nvtx_range(self, msg: str):
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        return "CPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> Any:
        return None


def use_cpu() -> None:
    """Makes verl use the platform. Must be called before other modules of verl are imported."""
    PlatformRegistry.register(platform="cpu")(PlatformCpu)
    set_platform(PlatformCpu())
