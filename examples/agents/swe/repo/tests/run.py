"""Runs every test function, and prints one line for each as pytest does."""

import pathlib
import sys

sys.dont_write_bytecode = True
sys.path[:0] = [str(pathlib.Path(__file__).parent.parent), str(pathlib.Path(__file__).parent)]

import test_durations  # noqa: E402

for name, test in vars(test_durations).items():
    if name.startswith("test_"):
        try:
            test()
            print(f"PASSED tests/test_durations.py::{name}")
        except Exception as error:
            print(f"FAILED tests/test_durations.py::{name} - {error!r}")
