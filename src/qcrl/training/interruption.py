"""Ctrl-C, SIGTERM and a terminal that is closed: the first one stops and saves, the second one aborts at once.

An iteration on a device is let finish. One that steps environments in Python is broken off: it may take minutes.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

STOPPING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""Signals that ask to stop; Windows has no SIGHUP."""


class Interrupted(KeyboardInterrupt):
    """Training was asked to stop; everything up to then is saved."""

    def __init__(self, continuing: str, signal_number: int) -> None:
        super().__init__(f"stopped and saved; continue with: {continuing}")
        self.exit_code = 128 + signal_number


class BrokenOff(KeyboardInterrupt):
    """The running iteration was broken off, before the state was touched."""


class Aborted(KeyboardInterrupt):
    """Training was asked to stop at once."""

    def __init__(self, signal_number: int) -> None:
        super().__init__("aborted; what the last checkpoint holds is kept")
        self.exit_code = 128 + signal_number


class Interruption:
    """While entered, `requested` becomes the number of the signal that asked to stop."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.requested = 0
        self.may_break = False
        self.previous: dict[int, Any] = {}

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no signal handlers
            for number in STOPPING:
                if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup leaves it
                    self.previous[number] = signal.signal(number, self.handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def handle(self, number: int, _frame: object) -> None:
        if self.requested:
            raise Aborted(number)
        self.requested = number
        self.say(f"stopping{'' if self.may_break else ' after this iteration'}; once more to abort at once")
        self.check()

    @contextmanager
    def breakable(self) -> Iterator[None]:
        """While entered, a request breaks off what is running."""
        self.may_break = True
        try:
            self.check()
            yield
        finally:
            self.may_break = False

    def check(self) -> None:
        if self.requested and self.may_break:
            self.may_break = False
            raise BrokenOff
