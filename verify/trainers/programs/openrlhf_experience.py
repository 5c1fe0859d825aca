"""OpenRLHF's own code makes an `Experience` of each record of the format `openrlhf`.

OpenRLHF needs vLLM and DeepSpeed with CUDA to train. Here the modules that need neither are imported without their packages. The logprobs of the
tiny model are computed with OpenRLHF's function, at the positions where its actor computes them.
"""

import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from exported import OWN_CLASSES, Cases, floe_rows, print_report, records
from transformers import AutoModelForCausalLM


def without_packages() -> None:
    """Makes the modules of OpenRLHF importable without the `__init__` of their packages, which import what is not installed."""
    [root] = find_spec("openrlhf").submodule_search_locations
    for name in ("models", "trainer", "trainer.ppo_utils", "trainer.ray", "utils"):
        package = ModuleType(f"openrlhf.{name}")
        package.__path__ = [str(Path(root, *name.split(".")))]
        sys.modules[package.__name__] = package
    # Names that the imported modules import in turn. They are not used here.
    unused = {
        "deepspeed": (),
        "vllm": ("SamplingParams",),
        "openrlhf.trainer.ray.vllm_engine": ("batch_vllm_engine_call",),
    }
    for module_name, names in unused.items():
        module = ModuleType(module_name)
        for name in names:
            setattr(module, name, None)
        sys.modules[module_name] = module


without_packages()

from openrlhf.models.utils import log_probs_from_logits
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

MAX_LENGTH = 1024


def experience_of(generator: SamplesGenerator, record: dict[str, Any]) -> Experience:
    response = {**record, "action_ranges": [tuple(ends) for ends in record["action_ranges"]]}
    return generator._process_response_into_experience(response, max_len=MAX_LENGTH)


def main() -> None:
    folder = Path(sys.argv[1])
    cases = Cases()
    rows = floe_rows(folder / "one-trace")
    exported = records(folder / "one-trace", "openrlhf")
    cases.check_equal("number of records", len(exported), len(rows))
    generator = object.__new__(SamplesGenerator)
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32).eval()
    for row, record in zip(rows, exported):
        experience = experience_of(generator, record)
        # As in OpenRLHF, entry i of mask and logprobs belongs to token i + 1.
        mask = experience.action_mask[0].bool()
        cases.check_equal(f"{row.trace_id}: ids", experience.sequences[0].tolist(), row.ids)
        cases.check_equal(f"{row.trace_id}: mask", mask.int().tolist(), row.mask[1:])
        cases.check_equal(f"{row.trace_id}: reward", experience.rewards.tolist(), [row.reward])
        with torch.no_grad():
            logits = model(experience.sequences, attention_mask=experience.attention_mask).logits
        computed = log_probs_from_logits(logits[:, :-1], experience.sequences[:, 1:])[0]
        cases.check_logprobs(row, computed[mask].tolist(), experience.rollout_log_probs[0][mask].tolist())
    print_report(cases, trainer="OpenRLHF", version=version("openrlhf"), how=OWN_CLASSES, rows=len(rows))


main()
