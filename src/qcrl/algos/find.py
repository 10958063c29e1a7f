"""Which algorithms there are: those in this folder are known by name, others are named as module:Class."""

import pkgutil
from functools import cache
from importlib import import_module

import qcrl.algos
from qcrl.algos.algorithm import Algorithm
from qcrl.errors import UserError, check_name
from qcrl.named import load, path_of

DEFAULT_PRESET = "fast"
"""Where nothing else is asked for, and the algorithm has it."""
DEFAULT_STEPS = 1_000_000
"""Where a preset has no length of its own."""


@cache
def algorithms() -> dict[str, type[Algorithm]]:
    """The algorithms of qcrl, by name."""
    modules = [import_module(f"qcrl.algos.{module.name}") for module in pkgutil.iter_modules(qcrl.algos.__path__)]
    return {
        kind.name: kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Algorithm) and kind.__module__ == module.__name__
        if vars(kind).get("name")  # one that is only inherited names another
    }


def find(name: str) -> type[Algorithm]:
    """The algorithm that a name, or module:Class, means."""
    if ":" not in name:
        name = name.lower()
        check_name("algorithm", name, algorithms())
        return algorithms()[name]
    kind = load(name, "algo")
    if not (isinstance(kind, type) and issubclass(kind, Algorithm)):
        raise UserError(f"algo is {name!r}, which is no algorithm; derive it from qcrl.algos.algorithm.Algorithm")
    return kind


def default_preset(name: str, suited: str | None = None) -> str | None:
    """The preset that is used where none is asked for: the one that suits the environment, the usual one, or any."""
    presets = find(name).presets
    return next((preset for preset in (suited, DEFAULT_PRESET, *presets) if preset in presets), None)


def name_of(algorithm: Algorithm) -> str:
    """What `find` finds it by."""
    kind = type(algorithm)
    name = kind.name if algorithms().get(kind.name) is kind else path_of(kind)
    if not name:
        raise UserError(
            f"{kind.__name__} is in no module that can be imported, so that its run could not be read "
            "again; put it into a file of its own"
        )
    return name


def build(name: str, preset: str | None = None) -> Algorithm:
    """The algorithm with a preset's values. Without one: the usual preset, or where it has none, its own defaults."""
    kind = find(name)
    preset = default_preset(name) if preset is None else preset
    if preset is None:
        return kind()
    check_name("preset", preset, kind.presets)
    return kind.presets[preset]
