"""Reads the steps that learn.py printed, and requires that the mean reward has risen."""

import re
import sys

with open(sys.argv[1]) as steps:
    rewards = [float(value) for value in re.findall(r"mean reward (\d\.\d+)", steps.read())]
first, last = sum(rewards[:2]) / 2, sum(rewards[-2:]) / 2
assert last > first + 0.1, rewards
print(f"mean reward {first:.2f} -> {last:.2f}")
