"""The exceptions that mean: the caller gave something that cannot work, and here is what to do."""

import difflib
from collections.abc import Iterable
from importlib import import_module
from typing import Any


class UserError(ValueError):
    """A mistake in what the user asked for. The command line prints it as one sentence and exits with its code."""

    exit_code = 2


class WorkerFailure(UserError):
    """A process that steps environments died or hangs. What was trained until then is kept."""

    exit_code = 1


class BrokenEnvironment(UserError):
    """An environment raised an error, or returned what no environment may return."""


def check_name(kind: str, name: str, known: Iterable[str]) -> None:
    """A name must be one of the known ones; if not, the nearest is suggested."""
    known = list(known)
    if name not in known:
        near = difflib.get_close_matches(str(name), known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UserError(f"there is no {kind} {name!r}; {hint}the known ones are {', '.join(known)}")


def load(text: str, what: str) -> Any:
    """The object that `module:name` means."""
    module, _, name = text.partition(":")
    found = import_named(module, what, text)
    try:
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise UserError(f"{what} is {text!r}, which cannot be imported ({error}); give module:name") from error
    if not callable(found):
        raise UserError(f"{what} is {text!r}, which cannot be called; give module:name of a function or class")
    return found


def import_named(module: str, what: str, text: str) -> Any:
    """The module that a text names. Whatever goes wrong inside it is told in one sentence."""
    try:
        return import_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"{what} is {text!r}, which cannot be imported ({reason}); give module:name") from error


def path_of(thing: Any) -> str:
    """module:name where that leads back to the function or class; else nothing."""
    module, name = getattr(thing, "__module__", "__main__"), getattr(thing, "__qualname__", "")
    if module == "__main__" or not name.isidentifier():
        return ""
    return f"{module}:{name}" if getattr(import_module(module), name, None) is thing else ""
