"""Lets `import mooncake.engine` find `polyrail.mooncake`. Alone, so that it costs an interpreter that is not asked to do so nothing.

All else of `mooncake` stays Mooncake's. Where its wheel is not installed, `mooncake` is an empty package.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType


class _Engine:
    """Makes `mooncake.engine`."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        ours = importlib.import_module("polyrail.mooncake")
        module.__doc__ = ours.__doc__
        vars(module).update({name: getattr(ours, name) for name in ours.__all__}, __polyrail__=True)


class _Package:
    """Makes an empty `mooncake`."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        pass


class Finder:
    """Finds `mooncake.engine` before anybody else."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "mooncake.engine":
            return None
        return importlib.machinery.ModuleSpec(name, _Engine(), origin="polyrail.mooncake")  # type: ignore[arg-type]


class LastFinder:
    """Finds `mooncake` after everybody else."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "mooncake":
            return None
        return importlib.machinery.ModuleSpec(name, _Package(), is_package=True)  # type: ignore[arg-type]


def install() -> None:
    """From now on, in this process."""
    if Finder not in sys.meta_path:
        sys.meta_path.insert(0, Finder)
        sys.meta_path.append(LastFinder)
