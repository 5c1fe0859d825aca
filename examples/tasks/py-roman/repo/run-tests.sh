exec python3 tests/run.py
