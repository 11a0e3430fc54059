"""Targets: the reference manager, seeded bugs, and real engines at real releases."""
