"""A runner of captured CUDA graphs over the reference manager, or over any other."""

from kvsan.models_under_test.graphs.options import make_target
from kvsan.models_under_test.graphs.runner import GraphRunner

__all__ = ["GraphRunner", "make_target"]
