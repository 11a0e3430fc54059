"""Tiers below the device's memory as real, independent parts: indices and their policies, files, a key-value service."""
