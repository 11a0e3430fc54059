"""What a compiled kernel takes of a GPU, read from what its assembler says and from the binary itself.

Where the figures come from, and what was measured before they were believed (Triton 3.8, kernels made to spill):

- NVIDIA: the assembler's own report (``ptxas -v``) on the very run that made the binary. A kernel that keeps 256
  registers a thread and may have 128 reports stack frame, stores and loads on sm_80, sm_90 and sm_100, and its machine
  code holds local stores to match (596 instructions for 2420 bytes on sm_90). The field LOCAL of ``cuobjdump
  -res-usage`` is 0 even then: a guard on it can never fire; its field STACK is the stack frame above.
- AMD: the metadata in the assembly, ``.vgpr_spill_count`` and the private segment. Registers are ``.vgpr_count``, which
  has the accumulation registers in it. What ``.sgpr_spill_count`` counts is kept in lanes of vector registers: 62 such
  showed as 62 writes of lanes and no access to memory. So it is told apart: it costs instructions, not memory.
- Shared memory is what Triton asks for at launch; what a driver reserves for itself is not in it.
- Code size is the size of the executable sections of the ELF file, whatever the vendor.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass

_EXECUTABLE = 0x4  # SHF_EXECINSTR
_PTXAS_REGISTERS = re.compile(r"Used (\d+) registers")
_PTXAS_MEMORY = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


class UnreadableBinary(RuntimeError):
    """A compiler's report or binary does not have what is read from it: not the kernel's fault."""


@dataclass(frozen=True, slots=True)
class Resources:
    """Figures of one compiled kernel.

    - ``registers``: a thread (NVIDIA, 32 bits each) or a lane (AMD, vector registers)
    - ``spills``: what is in memory because it did not fit into registers, by name; all 0 in a kernel that does not
      spill. ``stack_bytes``, ``stored_bytes`` and ``loaded_bytes`` (NVIDIA), ``private_bytes`` and
      ``vector_registers`` (AMD), a thread
    - ``shared_bytes``: a program
    - ``code_bytes``: machine code of the kernel and the functions it calls
    - ``scalar_spills``: scalar registers that are kept in vector registers (AMD)
    """

    registers: int
    spills: Mapping[str, int]
    shared_bytes: int
    code_bytes: int
    scalar_spills: int = 0

    @property
    def spilled(self) -> dict[str, int]:
        """The spills that are not 0."""
        return {name: count for name, count in self.spills.items() if count}


def nvidia_resources(ptxas_report: str, cubin: bytes, shared_bytes: int) -> Resources:
    """Figures of a kernel for NVIDIA; ``ptxas_report`` is what ``ptxas -v`` wrote. UnreadableBinary if it is no such."""
    registers = [int(count) for count in _PTXAS_REGISTERS.findall(ptxas_report)]
    memory = [[int(count) for count in counts] for counts in _PTXAS_MEMORY.findall(ptxas_report)]
    if not registers or not memory:
        raise UnreadableBinary(f"ptxas -v reports neither registers nor spills: {ptxas_report[:200]!r}")
    stack, stored, loaded = zip(*memory, strict=True)  # one row a function: the kernel, and what is not inlined
    spills = {"stack_bytes": max(stack), "stored_bytes": sum(stored), "loaded_bytes": sum(loaded)}
    return Resources(max(registers), spills, shared_bytes, code_bytes(cubin))


def amd_resources(assembly: str, hsaco: bytes, shared_bytes: int) -> Resources:
    """Figures of a kernel for AMD from its assembly text; UnreadableBinary if the metadata is not in it."""

    def field(name: str) -> int:
        found = re.findall(rf"^\s*(?:- )?\.{name}:\s*(\d+)\s*$", assembly, re.MULTILINE)
        if len(found) != 1:
            raise UnreadableBinary(f"the assembly has .{name} {len(found)} times, expected once")
        return int(found[0])

    spills = {
        "private_bytes": field("private_segment_fixed_size"),
        "vector_registers": field("vgpr_spill_count"),
    }
    return Resources(field("vgpr_count"), spills, shared_bytes, code_bytes(hsaco), field("sgpr_spill_count"))


def code_bytes(binary: bytes) -> int:
    """Bytes in the executable sections of a 64-bit little-endian ELF file; UnreadableBinary if there are none."""
    try:
        (table,) = struct.unpack_from("<Q", binary, 0x28)
        entry_bytes, entries = struct.unpack_from("<HH", binary, 0x3A)
        headers = [struct.unpack_from("<IIQQQQ", binary, table + i * entry_bytes) for i in range(entries)]
    except struct.error as error:
        raise UnreadableBinary(f"no ELF file: {error}") from error
    total: int = sum(size for _, _, flags, _, _, size in headers if flags & _EXECUTABLE)
    if binary[:6] != b"\x7fELF\x02\x01" or not total:
        raise UnreadableBinary("no 64-bit ELF file with machine code in it")
    return total
