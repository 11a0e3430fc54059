"""How elements of a cache are stored: plain floats, or codes with scales that live in the same page.

| format | elements | scale |
| --- | --- | --- |
| float32, float16, bfloat16 | themselves | none |
| fp8_e4m3, fp8_e5m2 | FP8 codes | one a tensor, float32, given with each call |
| int8_per_token_head, fp8_per_token_head | INT8 or E4M3 codes | one a token and head, float32, in the page |
| nvfp4 | two E2M1 codes a byte | one for 16 elements, E4M3, in the page, and one a tensor, given with each call |

Scales of a token and head are powers of two (as in the MX formats): dequantising is then exact, and a scale that is
wrong by a factor of two is a wrong value and not a rounding error.
"""

from __future__ import annotations

from dataclasses import dataclass

PLAIN = 0
"""Format: elements are floats."""
PER_TENSOR = 1
"""Format: codes with one scale a tensor."""
PER_TOKEN_HEAD = 2
"""Format: codes with a float32 scale for each token and head."""
NVFP4 = 3
"""Format: E2M1 codes with an E4M3 scale for each 16 elements and one scale a tensor."""

INT8 = 1
"""Elements: two's complement."""
E4M3 = 2
"""Elements: 4 bits of exponent, 3 of mantissa, no infinity (float8_e4m3fn)."""
E5M2 = 3
"""Elements: 5 bits of exponent, 2 of mantissa."""
E2M1 = 4
"""Elements: 2 bits of exponent, 1 of mantissa."""


@dataclass(frozen=True, slots=True)
class Format:
    """One way to store elements; ``format`` and ``elements`` are the numbers of this module that kernels know.

    ``width`` is what a vector of ``head_dim`` elements takes of the cache's tensor, in its elements; ``scale_width`` the
    same for scales; ``scale_bytes`` the size of one scale in the page, 0 where there is none.
    """

    name: str
    format: int
    elements: int
    element_bytes: int
    elements_per_byte: int = 1
    scale_block: int = 0
    scale_bytes: int = 0

    @property
    def quantised(self) -> bool:
        """Whether elements are codes."""
        return self.format != PLAIN

    def width(self, head_dim: int) -> int:
        """Elements of the cache's tensor that one vector takes."""
        return head_dim // self.elements_per_byte

    def scale_width(self, head_dim: int) -> int:
        """Scales in the page that one vector has."""
        if not self.scale_bytes:
            return 0
        return head_dim // self.scale_block if self.scale_block else 1


FORMATS: dict[str, Format] = {
    one.name: one
    for one in (
        Format("float32", PLAIN, 0, 4),
        Format("float16", PLAIN, 0, 2),
        Format("bfloat16", PLAIN, 0, 2),
        Format("fp8_e4m3", PER_TENSOR, E4M3, 1),
        Format("fp8_e5m2", PER_TENSOR, E5M2, 1),
        Format("int8_per_token_head", PER_TOKEN_HEAD, INT8, 1, scale_bytes=4),
        Format("fp8_per_token_head", PER_TOKEN_HEAD, E4M3, 1, scale_bytes=4),
        Format("nvfp4", NVFP4, E2M1, 1, elements_per_byte=2, scale_block=16, scale_bytes=1),
    )
}


def format_named(name: str) -> Format:
    """Return a format; ValueError if there is none of that name."""
    if name not in FORMATS:
        raise ValueError(f"cache dtype {name!r}: expected one of {', '.join(FORMATS)}")
    return FORMATS[name]
