"""The shrinker against judges that are not a session: what it may rely on, and what not."""

from __future__ import annotations

from kvsan.fuzz.replay import Replayed
from kvsan.fuzz.shrink import Shrinker
from kvsan.harness.configuration import Configuration
from kvsan.harness.operations import Abort, Cancel, Finish, Lookup, Operation, ResetPrefixCache, Submit
from kvsan.harness.trace import Trace
from kvsan.harness.verdict import Violation

STUMBLED = Violation("tier_reset", "serving", "the reset left something")
NEEDLE = Violation("numbers", "needle", "wrong at this step")


def wrong_at_an_odd_step(
    _configuration: Configuration, operations: tuple[Operation, ...], _sweep_every: int, _close: bool
) -> Replayed:
    """A judge that skips look-ups, and whose oracle asks the telling question at odd steps alone, behind two others."""
    ran = []
    for step, operation in enumerate(operations):
        if isinstance(operation, Lookup):
            continue
        ran.append(step)
        if isinstance(operation, Finish) and step % 2 and len(ran) >= 3:
            return Replayed(NEEDLE, step, len(ran), ran=ran)
    return Replayed(None, len(operations), len(ran), ran=ran)


def test_what_follows_from_the_step_is_judged_again_where_steps_are_left_out() -> None:
    operations = (Submit("r1", ((0, 4),)), Lookup("r1"), Cancel(), Finish("r1"))

    finding = Shrinker(wrong_at_an_odd_step, Trace(Configuration(), operations), NEEDLE).shrink()

    assert finding.replays == (3, 3)
    assert finding.step % 2 == 1


def left_behind_by_an_abort(
    _configuration: Configuration, operations: tuple[Operation, ...], _sweep_every: int, close: bool
) -> Replayed:
    """A judge whose aborts leave something that every later reset stumbles over, and that shows at the session's end."""
    ran = list(range(len(operations)))
    aborted = next((step for step, one in enumerate(operations) if isinstance(one, Abort)), len(operations))
    for step in range(aborted, len(operations)):
        if isinstance(operations[step], ResetPrefixCache):
            return Replayed(STUMBLED, step, step + 1, ran=ran[: step + 1])
    left = Violation("transfer_leaks", "unfinished", "a chunk waits") if close and aborted < len(operations) else None
    return Replayed(left, len(operations), len(operations), ran=ran)


def test_what_a_reset_stumbles_over_is_shrunk_as_what_was_left_behind() -> None:
    operations = (Submit("r1", ((0, 4),)), Abort("r1"), Submit("r2", ((0, 4),)), ResetPrefixCache())

    finding = Shrinker(left_behind_by_an_abort, Trace(Configuration(), operations), STUMBLED).shrink()

    assert (finding.invariant, finding.trace.operations) == ("transfer_leaks", (Abort("r1"),))
