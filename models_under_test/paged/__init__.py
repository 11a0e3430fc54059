"""The reference manager: complete, fast, and simple enough to be read in an hour."""

from kvsan.harness.configuration import Configuration
from kvsan.harness.verdict import UsageError
from kvsan.models_under_test.paged.manager import PagedManager

OPTIONS = {"deferred_free": True, "watermark": 0, "max_in_flight": 2}


def manager_arguments(configuration: Configuration) -> dict[str, int | bool]:
    """Keyword arguments of a ``PagedManager``; UsageError for cache groups or options that it does not have."""
    if configuration.groups != ("full",):
        raise UsageError(f"target {configuration.target}: groups {configuration.groups}: it has one group, 'full'")
    for name, _ in configuration.options:
        if name not in OPTIONS:
            raise UsageError(f"target {configuration.target}: unknown option {name!r}; it has {', '.join(OPTIONS)}")
    arguments: dict[str, int | bool] = {"num_units": configuration.num_units, "block_size": configuration.block_size}
    for name, default in OPTIONS.items():
        value = configuration.option(name, default)
        assert isinstance(value, int)
        arguments[name] = value
    return arguments


def make_target(configuration: Configuration) -> PagedManager:
    """Reference manager: block pool, prefix cache, fork with copy on write, deferred free."""
    return PagedManager(**manager_arguments(configuration))  # type: ignore[arg-type]


__all__ = ["OPTIONS", "PagedManager", "make_target", "manager_arguments"]
