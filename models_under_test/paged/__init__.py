"""The reference manager: complete, fast, and simple enough to be read in an hour."""

from kvsan.models_under_test.paged.manager import PagedManager
from kvsan.models_under_test.paged.options import OPTIONS, make_target, manager_arguments

__all__ = ["OPTIONS", "PagedManager", "make_target", "manager_arguments"]
