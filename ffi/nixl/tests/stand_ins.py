"""Stand-ins for what callers of NIXL import and do not need for moving bytes: torch, and the rest of their own packages."""

import importlib
import importlib.abc
import importlib.machinery
import sys
import types


class Anything(type):
    """The type of stand-ins: whatever is asked of it is another one."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return stand_in(name)

    def __call__(cls, *arguments, **named):
        # A decorator gives back what it was put on.
        if len(arguments) == 1 and not named and isinstance(arguments[0], (types.FunctionType, type)):
            return arguments[0]
        return super().__call__() if cls.__module__ == __name__ else super().__call__(*arguments, **named)

    def __getitem__(cls, _):
        return cls

    def __or__(cls, _):
        return cls

    __ror__ = __or__

    def __iter__(cls):
        return iter(())


class Thing(metaclass=Anything):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return stand_in(name)

    def __call__(self, *arguments, **_):
        is_decorator = len(arguments) == 1 and isinstance(arguments[0], (types.FunctionType, type))
        return arguments[0] if is_decorator else Thing()

    def __bool__(self):
        return False

    def __iter__(self):
        return iter(())

    def __getitem__(self, _):
        return Thing()


def stand_in(name):
    return Anything(name, (Thing,), {"__module__": __name__})


class Module(types.ModuleType):
    __path__: list[str] = []
    real: dict[str, str] = {}

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if f"{self.__name__}.{name}" in self.real:
            return importlib.import_module(f"{self.__name__}.{name}")
        made = stand_in(name)
        setattr(self, name, made)
        return made


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules that are named where they are, packages on the way to them without what they would import, and
    stand-ins for all others of these packages."""

    def __init__(self, packages, real):
        self.packages, self.real = packages, real

    def find_spec(self, name, path=None, target=None):
        if name in self.real:
            *folders, last = name.split(".")
            folder = "/".join([self.real[name], *folders])
            return importlib.machinery.PathFinder.find_spec(name, [folder])
        if name.split(".")[0] in self.packages:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Module(spec.name)

    def exec_module(self, module):
        pass


def install(packages, folder, *real):
    Module.real.update(dict.fromkeys(real, folder))
    sys.meta_path.insert(0, Finder(set(packages), {name: folder for name in real}))
