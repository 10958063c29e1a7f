"""Ctrl-C and SIGTERM: the first one lets the running iteration finish, the second one aborts at once."""

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Interrupted(KeyboardInterrupt):
    """Training was asked to stop; everything up to then is saved."""

    def __init__(self, folder: Path, signal_number: int) -> None:
        super().__init__(f"stopped and saved; continue with: qcrl train --resume --out {folder}")
        self.exit_code = 128 + signal_number


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
        self.previous: dict[int, Any] = {}

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no signal handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                self.previous[number] = signal.signal(number, self.handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def handle(self, number: int, _frame: object) -> None:
        if self.requested:
            raise Aborted(number)
        self.requested = number
        self.say("stopping after this iteration; once more to abort at once")
