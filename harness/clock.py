"""Time enters KVSan here and nowhere else; it decides when to stop and what to print, never what a trace does."""

from __future__ import annotations

import time


def now_s() -> float:
    """Seconds on a monotonic clock."""
    return time.monotonic()
