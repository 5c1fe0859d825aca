"""Adapters with the real classes of their trainers, one module each. A module whose trainer is not installed is skipped."""
