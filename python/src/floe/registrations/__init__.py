"""
floe under the interfaces of other ecosystems: a NeMo Gym agent server, a verifiers environment, an OpenEnv environment. Each module imports
its ecosystem's package, so import the one that is needed.
"""
