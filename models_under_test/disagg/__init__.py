"""Two reference managers as a prefill and a decode pool, each with a layout of its own, and their exchange."""

from kvsan.models_under_test.disagg.options import OPTIONS, make_target, pair_arguments
from kvsan.models_under_test.disagg.target import DisaggregatedPair

__all__ = ["OPTIONS", "DisaggregatedPair", "make_target", "pair_arguments"]
