"""The Hypothesis machine: the fuzzer in a pytest file.

::

    from kvsan.fuzz import machine_for
    from mypool import MyPool

    TestMyPool = machine_for(MyPool, num_units=16, block_size=4).TestCase

Hypothesis draws the operations; the session, the invariants and the shrinker are KVSan's own. What fails the test is one
report with the minimal trace, its file, and the command that replays it. An error of KVSan itself is an error, not a failure.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest import TestCase

from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, run_state_machine_as_test

from kvsan.fuzz import findings
from kvsan.fuzz.machine_rules import TargetMachine, TieredMachine
from kvsan.fuzz.profiles import DEFAULT, Profile, small_scope
from kvsan.fuzz.shrink import shrink
from kvsan.harness.configuration import Configuration
from kvsan.harness.registry import TargetFactory, resolve
from kvsan.harness.story import story
from kvsan.harness.trace import Trace
from kvsan.harness.verdict import Violation

SETTINGS = settings(
    max_examples=300,
    stateful_step_count=100,
    deadline=None,
    database=None,
    derandomize=True,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
    print_blob=False,
    verbosity=Verbosity.quiet,
)
"""What a machine's TestCase runs with; its ``settings`` attribute can be set to others."""

_OUT = "KVSAN_OUT"


def machine_for(
    target: str | TargetFactory,
    *,
    configuration: Configuration | None = None,
    profile: Profile = DEFAULT,
    numbers: bool = True,
    **fields: Any,
) -> type[TargetMachine]:
    """Make a Hypothesis state machine for a target; its ``TestCase`` is what a test module gives a name to.

    ``target`` is a name as ``kvsan targets`` lists them, or a class or function that takes a Configuration. ``fields`` are
    fields of the Configuration; pool and block size are drawn from ``profile`` where neither gives them. With the profile
    ``kvsan.fuzz.profiles.ASYNC`` pages also move between tiers.
    """
    factory = resolve(target) if isinstance(target, str) else target
    small = small_scope(profile)
    drawn = (
        {}
        if configuration is not None
        else {
            "num_units": (*small.num_units, *profile.num_units),
            "block_size": (*small.block_sizes, *profile.block_sizes),
        }
    )
    base = configuration if configuration is not None else Configuration(target=_name_of(target))
    sizes = {name: st.sampled_from(values) for name, values in drawn.items() if name not in fields}
    members: dict[str, Any] = {
        "factory": staticmethod(factory),
        "configuration": replace(base, **fields),
        "numbers": numbers,
        "__module__": __name__,
    }
    if sizes:
        members["draw_sizes"] = _drawing(sizes)
    rules = TieredMachine if profile.weights["Offload"] else TargetMachine
    machine: Any = type("TargetMachine", (rules,), members)
    machine.TestCase = _test_case(machine)
    return cast("type[TargetMachine]", machine)


def _name_of(target: str | TargetFactory) -> str:
    return target if isinstance(target, str) else f"{target.__module__}:{getattr(target, '__qualname__', 'target')}"


def _drawing(sizes: dict[str, st.SearchStrategy[int]]) -> Any:
    """Make a first rule that draws what the configuration leaves open; others may have run before it."""

    def draw_sizes(self: TargetMachine, **values: int) -> None:
        self.drawn = replace(self.configuration, **values)  # type: ignore[arg-type]
        self.session = self._open()
        operations, self.operations = self.operations, []
        for operation in operations:
            self.run(operation)

    make_rule: Any = initialize
    return make_rule(**sizes)(draw_sizes)


def _test_case(machine: type[TargetMachine]) -> type[TestCase]:
    """Make the class that pytest and unittest collect."""

    class MachineTestCase(TestCase):
        settings = SETTINGS

        def runTest(self) -> None:
            __tracebackhide__ = True
            report = _search(machine, self.settings)
            if report:
                raise AssertionError("\n".join(report)) from None

    MachineTestCase.__name__ = MachineTestCase.__qualname__ = "TestTarget"
    return MachineTestCase


def _search(machine: type[TargetMachine], chosen: settings) -> Sequence[str]:
    """Run the machine; shrink and tell what it finds."""
    try:
        run_state_machine_as_test(machine, settings=chosen)
    except Violation:
        assert machine.violated is not None
        return report_of(machine, *machine.violated)
    return ()


def report_of(machine: type[TargetMachine], trace: Trace, violation: Violation) -> list[str]:
    """Shrink a violation, write its trace into the folder for findings, and tell both."""
    finding = shrink(machine.factory, trace, violation, numbers=violation.invariant == "numbers")
    folder = Path(os.environ.get(_OUT) or "findings")
    folder.mkdir(parents=True, exist_ok=True)
    lines = story(finding, str(findings.write(folder, finding)))
    configuration, operations = finding.trace.configuration, finding.trace.operations
    sizes = f"{configuration.num_units} units of {configuration.block_size} tokens"
    return [*lines, "", f"  minimal trace, {sizes}:", *(f"    {operation!r}" for operation in operations)]
