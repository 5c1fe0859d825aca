"""Runs every test function and prints one line for each."""

import pathlib
import sys
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))
sys.dont_write_bytecode = True

from tests import test_roman  # noqa: E402

for name, test in sorted(vars(test_roman).items()):
    if not name.startswith("test_"):
        continue
    try:
        test()
        print(f"PASSED test_roman::{name}")
    except Exception:
        print(f"FAILED test_roman::{name}")
        print("  " + traceback.format_exc().strip().splitlines()[-1])
