"""The environment `floe_verifiers` of verifiers, which loads an environment by the name of a module at the top level."""

from floe.registrations.verifiers import FloeEnv, FloeTaskset

__all__ = ["FloeEnv", "FloeTaskset"]
