"""Code that a text names as module:name: what may be run, and what is found."""

import sys
from importlib import import_module
from typing import Any

from qcrl.errors import Untrusted, UserError

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
        raise Untrusted(
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
