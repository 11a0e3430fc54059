"""Targets as users write them, each wrong in its own way; tests copy this file to an empty folder."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
import time
from pathlib import Path

from kvsan.harness.configuration import Configuration
from kvsan.harness.target import Effects
from kvsan.models_under_test.mutants import MUTANTS
from kvsan.models_under_test.paged import PagedManager, manager_arguments


class Good(PagedManager):
    """Does everything right."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__(**manager_arguments(configuration))  # type: ignore[arg-type]


class Prints(Good):
    def finish(self, name: str) -> None:
        print('{"event": "done"}', flush=True)
        os.write(1, b"not for the parent\n")
        super().finish(name)


class Exits(Good):
    def fork(self, name: str, child: str) -> Effects:
        os._exit(7)


class CallsSysExit(Good):
    def fork(self, name: str, child: str) -> Effects:
        sys.exit("no forks")


class DereferencesNull(Good):
    def fork(self, name: str, child: str) -> Effects:
        ctypes.string_at(0)
        return ()


class CrashesInSmallPools(Good):
    def launch(self, b: str) -> None:
        if self.traits.num_units <= 12:
            os._exit(5)
        super().launch(b)


class KillsItself(Good):
    def fork(self, name: str, child: str) -> Effects:
        os.kill(os.getpid(), signal.SIGKILL)
        return ()


class Raises(Good):
    def fork(self, name: str, child: str) -> Effects:
        raise RuntimeError("no forks")


class HangsInC(Good):
    def fork(self, name: str, child: str) -> Effects:
        re.match(r"(a+)+$", "a" * 64 + "b")
        return ()


class HangsAtTheEnd(Good):
    def finish(self, name: str) -> None:
        time.sleep(3600)


class SleepsAtOnce(Good):
    def submit(self, request: object) -> None:
        Path("pid").write_text(str(os.getpid()))
        time.sleep(3600)


class ConstructorRaises(Good):
    def __init__(self, configuration: Configuration) -> None:
        raise ValueError("blocks of 4 only")


class ConstructorExits(Good):
    def __init__(self, configuration: Configuration) -> None:
        os._exit(3)


class LacksMethods:
    """Has traits and a view, and takes no requests."""

    def __init__(self, configuration: Configuration) -> None:
        self._inner = Good(configuration)
        self.traits = self._inner.traits
        self.view, self.delta = self._inner.view, self._inner.delta


def nothing(configuration: Configuration) -> None:
    """Forgets to return what it made."""


class WrongAndCrashes(MUTANTS["salt_missing"]):  # type: ignore[misc]
    """Shares blocks between tenants; later on it crashes too."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__(**manager_arguments(configuration))

    def reset_prefix_cache(self) -> bool:
        os._exit(9)
