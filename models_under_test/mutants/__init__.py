"""Seeded bugs."""
