"""Effects: what a target wants moved, checked and given to the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsan.harness.device import COMPUTE, COPY, LoadWork, Work
from kvsan.harness.expectation import Expected, Row
from kvsan.harness.target import Copy, Effect, Effects, Fill, Traits, Zero
from kvsan.harness.transfer import Transfer, units_of
from kvsan.harness.verdict import UsageError, Violation

if TYPE_CHECKING:
    from kvsan.harness.session import Session


def enqueue_effects(session: Session, effects: Effects, transfer: Transfer | None = None) -> list[Work]:
    """Give the device the bytes that a target wants moved, as pieces of a transfer if there is one."""
    check_effects(session.traits, effects)
    streams, device = session.traits.streams, session.device
    works = []
    for effect in effects:
        if isinstance(effect, Copy) and transfer is None:
            session.shadow.awaited[effect.destination] += 1
        elif isinstance(effect, Fill) and transfer is not None:
            raise UsageError(f"transfer {transfer.t} fills buffer {effect.buffer!r}; expected what moves pages")
        after = [device.event(streams.index(name)) for name in effect.after]
        works.append(device.enqueue(streams.index(effect.stream), effect, session.position, after, transfer))
    return works


def check_effects(traits: Traits, effects: Effects) -> None:
    """Raise a Violation if an effect leaves its unit, the pool or the host's buffers, or writes the null unit."""
    for effect in effects:
        reads, writes = units_of(effect)
        if not all(0 <= unit < traits.num_units + traits.host_units for unit in (*reads, *writes)):
            raise Violation("foreign_write", "outside the pool", f"{effect}; {_extent(traits)}")
        if isinstance(effect, Copy | Zero):
            if not 0 <= effect.start <= effect.stop <= traits.block_size:
                raise Violation("foreign_write", "outside the unit", f"{effect}; a unit has {traits.block_size} slots")
        elif not isinstance(effect, Fill):
            _check_store(traits, effect, (*reads, *writes))
        if traits.null_unit in writes:
            raise Violation("provenance", "null write", f"{effect} writes into the null unit")
        for name in (effect.stream, *effect.after):
            if name not in traits.streams:
                raise UsageError(
                    f"{effect} names stream {name!r}; the target's traits name {', '.join(traits.streams)}"
                )


def _check_store(traits: Traits, effect: Effect, units: tuple[int, ...]) -> None:
    if getattr(effect, "store", None) not in traits.tiers[1:]:
        raise UsageError(f"{effect} names no store; the target's traits name {', '.join(traits.tiers[1:]) or 'none'}")
    if any(unit < traits.num_units for unit in units):
        raise Violation(
            "foreign_write", "outside the pool", f"{effect}: only host units reach a store; {_extent(traits)}"
        )


def _extent(traits: Traits) -> str:
    host = f", the host those up to {traits.num_units + traits.host_units - 1}" if traits.host_units else ""
    return f"the pool has units 0 to {traits.num_units - 1}{host}"


def enqueue_load(session: Session, load: LoadWork) -> Work:
    """Put an external load on the copy stream; it waits for compute where only compute's order protects freed units."""
    after = () if session.traits.deferred_free else (session.device.event(COMPUTE),)
    return session.device.enqueue(COPY, load, session.position, after)


def copy_sources(effects: Effects) -> list[int]:
    """Units that copies read from."""
    return [effect.source for effect in effects if isinstance(effect, Copy)]


def drop_row(session: Session, request: Expected, row: Row) -> None:
    """A row leaves the batch unlaunched: its copies are not made, and the table names their sources again."""
    books = session.books
    for effect in row.effects:
        if not isinstance(effect, Copy):
            continue
        for group, table in enumerate(request.tables):
            if effect.destination in table:
                table[table.index(effect.destination)] = effect.source
                request.arrays[group] = None
                books.remove([effect.destination])  # and the copy's hold on the source is the table's again
