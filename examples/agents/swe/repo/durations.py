"""Durations such as 1h30m."""

import re

SECONDS = {"s": 1, "m": 60, "h": 3600}


def parse(text: str) -> int:
    """Returns the number of seconds of a duration such as `1h30m`."""
    parts = re.findall(r"(\d+)([smh])", text)
    return sum(int(number) * SECONDS[unit] for number, unit in parts)
