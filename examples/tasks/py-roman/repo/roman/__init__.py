"""Roman numerals from 1 to 3999."""

from roman.convert import from_roman, to_roman

__all__ = ["from_roman", "to_roman"]
