"""The exceptions that mean: the caller gave something that cannot work, and here is what to do."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake in what the user asked for. The command line prints it as one sentence and exits with its code."""

    exit_code = 2


class Untrusted(UserError):
    """A file names code that the caller has not named."""


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
