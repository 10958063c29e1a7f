"""Output that cannot end a program: a pipe that nobody reads, a closed stream, a terminal without these letters."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


class Unbreakable:
    """One of Python's streams, looked up at each use. What cannot be written is left out, and `error` says why."""

    error: Exception | None = None

    def __init__(self, name: str, stream: Any = None) -> None:
        self._name, self._own = name, stream

    @property
    def _stream(self) -> Any:
        return getattr(sys, self._name) if self._own is None else self._own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except UnicodeEncodeError:
            encoding = self._stream.encoding or "ascii"
            return self.write(text.encode(encoding, "replace").decode(encoding))
        except (OSError, ValueError, AttributeError) as error:  # the last where there is no stream at all
            self._give_up(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError, AttributeError) as error:
            self._give_up(error)

    def isatty(self) -> bool:
        return bool(getattr(self._stream, "isatty", bool)())

    def _give_up(self, error: Exception) -> None:
        """What is still buffered goes nowhere, or Python would complain of it once more at its end."""
        self.error = self.error or error
        with contextlib.suppress(OSError, ValueError, AttributeError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


@contextlib.contextmanager
def unbreakable() -> Iterator[Unbreakable]:
    """While entered, nothing that is printed raises an error. Yields stdout."""
    while True:  # else a file of a run would be opened as the standard output that is missing
        taken = os.open(os.devnull, os.O_RDWR)
        if taken > 2:
            os.close(taken)
            break
    before = sys.stdout, sys.stderr
    streams = [Unbreakable(name, getattr(sys, name)) for name in ("stdout", "stderr")]
    for name, stream in zip(("stdout", "stderr"), streams):
        if getattr(sys, name) is None:
            stream._own = open(os.devnull, "w")  # noqa: SIM115 - for the rest of the program
        setattr(sys, name, stream)
    try:
        yield streams[0]
        for stream in streams:
            stream.flush()
    finally:
        sys.stdout, sys.stderr = before


def console(enabled: bool = True) -> "Console":
    """Where messages go: stderr."""
    from rich.console import Console  # not above: not every command shows something

    return Console(file=Unbreakable("stderr"), quiet=not enabled)  # type: ignore[arg-type]
