"""Stand-ins for what callers import and do not need here, such as torch: they make imports succeed, and nothing else.

Of a caller's own package, modules named as real are its files; all others of it are stand-ins as well.
"""

from __future__ import annotations

import abc
import importlib.machinery
import importlib.util
import os
import sys
import types


class Anything:
    """Takes every call, has every attribute, and is false."""

    def __call__(self, *args, **named):
        # A decorator leaves what it decorates as it is.
        if len(args) == 1 and not named and callable(args[0]):
            return args[0]
        return Anything()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __mro_entries__(self, bases):
        return ()

    def __getitem__(self, key):
        return Anything()

    def __iter__(self):
        return iter(())

    def __bool__(self):
        return False

    def __or__(self, other):
        return self

    __ror__ = __or__


class Class(abc.ABCMeta):
    """Of classes that stand in."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __getitem__(cls, key):
        return cls


def stand_in_class(name):
    def start(self, *args, **named):
        pass

    def get(self, attribute):
        # What inherits from it has only what it says.
        if attribute.startswith("__") or type(self) is not made:
            raise AttributeError(attribute)
        return Anything()

    made = Class(name, (), {"__init__": start, "__getattr__": get})
    return made


class Module(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        is_class = name[0].isupper() and not name.isupper()
        value = stand_in_class(name) if is_class else Anything()
        setattr(self, name, value)
        return value


class Package(types.ModuleType):
    """A package of the caller's, without what its `__init__` does."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return importlib.import_module(f"{self.__name__}.{name}") if name.islower() else stand_in_class(name)


class StandInLoader:
    def create_module(self, spec):
        return Module(spec.name)

    def exec_module(self, module):
        module.__version__ = "99.0"


class PackageLoader:
    def __init__(self, folder):
        self.folder = folder

    def create_module(self, spec):
        return Package(spec.name)

    def exec_module(self, module):
        module.__path__ = [self.folder]


class Finder:
    """Before all others for the caller's package, after them for everything else."""

    def __init__(self, package, root, real):
        self.package, self.root, self.real = package, root, real
        self.used = []

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] != self.package:
            return None
        place = os.path.join(self.root, *name.split("."))
        if name in self.real:
            self.used.append(name)
            return importlib.util.spec_from_file_location(name, place + ".py")
        if any(one.startswith(name + ".") for one in self.real):
            return importlib.machinery.ModuleSpec(name, PackageLoader(place), is_package=True)
        return importlib.machinery.ModuleSpec(name, StandInLoader(), is_package=True)


class LastFinder:
    def __init__(self, names):
        self.names = names

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in self.names:
            return None
        return importlib.machinery.ModuleSpec(name, StandInLoader(), is_package=True)


def install(package, *, real, instead):
    """`real`: modules of the package that are its files; `instead`: other packages that are stand-ins where they are not installed."""
    root = os.path.join(os.environ["CALLERS"], package)
    if not os.path.isdir(os.path.join(root, package)):
        raise SystemExit(f"{package} is not there: no folder {package} in {root}")
    finder = Finder(package, root, real)
    sys.meta_path.insert(0, finder)
    sys.meta_path.append(LastFinder(instead))
    return finder
