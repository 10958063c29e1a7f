"""The exceptions that mean: the caller gave something that cannot work, and here is what to do."""

import difflib
import sys
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


_TRUSTED: set[str] = set()
"""Modules that the caller has named in this process."""


def trust(*modules: str) -> None:
    """From now on, files may name what is in these modules."""
    _TRUSTED.update(modules)


def require_trust(text: str, what: str, calls: bool = False) -> None:
    """Raise where a file names code that the caller has not.

    A class may also be looked up in a module that is imported already. What is called must have been named.
    """
    module, colon, _ = text.rpartition(":")
    if colon and module not in _TRUSTED and (calls or module not in sys.modules):
        python = "pass it" if calls else f"import {module} first"
        raise UserError(
            f"{what} is {text!r}, says a file, and to use it runs code of the module {module}; if you trust that, add "
            f"--trust {module}, or from Python {python}"
        )


def load(text: str, what: str) -> Any:
    """The object that `module:name` means, named by the caller."""
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
    """The module that a text names, which is then trusted. Whatever goes wrong inside it is told in one sentence."""
    trust(module)
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
