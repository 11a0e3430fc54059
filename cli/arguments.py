"""Arguments that several subcommands have, and how their values are read."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, TypeAlias

from kvsan.gpu_kernels.formats import FORMATS
from kvsan.harness.verdict import UsageError

if TYPE_CHECKING:
    from kvsan.harness.configuration import Configuration, OptionValue

_DURATION = re.compile(r"(?P<number>\d+(\.\d+)?)(?P<unit>s|m|h|)")
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""What ``add_parser`` of a subcommand's module gets."""


def duration(text: str) -> float:
    """Read ``90``, ``90s``, ``5m`` or ``2h`` as seconds."""
    match = _DURATION.fullmatch(text)
    if match is None or not float(match["number"]):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a time such as 90, 90s, 5m or 2h")
    return float(match["number"]) * _SECONDS[match["unit"]]


def positive(text: str) -> int:
    """Read an integer of at least 1."""
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 1 << 62:
        raise argparse.ArgumentTypeError(f"{text!r}: expected an integer of at least 1")
    return int(text)


def share(text: str) -> float:
    """Read ``always``, ``never`` or a share between 0 and 1."""
    words = {"always": 1.0, "never": 0.0}
    try:
        value = words[text] if text in words else float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected always, never or a share between 0 and 1")
    return value


def option(text: str) -> tuple[str, OptionValue]:
    """Read ``name=value``; true, false and integers are what they look like."""
    name, equals, value = text.partition("=")
    if not re.fullmatch(r"[A-Za-z0-9_.:-]{1,64}", name) or not equals:
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=VALUE")
    if value in ("true", "false"):
        return name, value == "true"
    return name, int(value) if re.fullmatch(r"-?\d{1,18}", value) else value


def add_kernels(parser: argparse.ArgumentParser) -> None:
    """Add the choice of kernels; both arguments end up in ``kernels``."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--kernels", choices=("host", "triton"), help="kernels that write and read the cache (default: host)"
    )
    group.add_argument(
        "--kernel",
        dest="kernels",
        type=own_kernel,
        metavar="package.module:function",
        help="a kernel of your own, by the function that launches it (docs/your-own-kernel.md)",
    )


def own_kernel(text: str) -> str:
    """Read the name of a user's kernel."""
    if not re.fullmatch(r"\w+(\.\w+)*:\w+(\.\w+)*", text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected package.module:function")
    return text


def add_isolation(parser: argparse.ArgumentParser) -> None:
    """Add what concerns the contract, and targets in processes of their own."""
    parser.add_argument(
        "--beyond-contract",
        action="store_true",
        help="also run what the target's contract forbids; what that finds decides no exit code",
    )
    parser.add_argument(
        "--hang-timeout",
        type=duration,
        default=30.0,
        metavar="TIME",
        help="kill a target that gives no sign of life for so long (default: 30s)",
    )


def add_configuration(parser: argparse.ArgumentParser) -> None:
    """Add what makes a Configuration."""
    group = parser.add_argument_group("configuration of the target")
    group.add_argument(
        "--num-units", type=positive, metavar="N", help="blocks in the pool (default: drawn by each run)"
    )
    group.add_argument("--block-size", type=positive, metavar="N", help="tokens a block (default: drawn by each run)")
    group.add_argument(
        "--groups", default="full", metavar="LIST", help="cache groups, such as full,sliding:16 (default: full)"
    )
    group.add_argument("--dtype", default="float32", help=f"of K and V: {', '.join(FORMATS)} (default: float32)")
    group.add_argument(
        "--option", type=option, action="append", default=[], metavar="NAME=VALUE", help="an option of the target's own"
    )


def configuration_of(args: argparse.Namespace) -> Configuration:
    """Make the Configuration that the arguments ask for; UsageError if a value is outside a trace's bounds."""
    import json

    from kvsan.harness import trace as traces

    sizes = {name: value for name in ("num_units", "block_size") if (value := getattr(args, name)) is not None}
    options = dict(args.option)
    if len(options) < len(args.option):
        raise UsageError("--option: one name is given twice")
    content = {
        "target": args.target,
        "groups": args.groups.split(","),
        "dtype": args.dtype,
        "kernels": args.kernels or "host",
        "options": options,
        **sizes,
    }
    whole = {"format": traces.FORMAT, "version": traces.VERSION, "configuration": content, "operations": []}
    configuration: Configuration = traces.loads(json.dumps(whole), "arguments").trace.configuration
    return configuration
