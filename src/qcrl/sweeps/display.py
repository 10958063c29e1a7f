"""What the user sees of a sweep: how much of the whole grid is done, the time left, and what became of each group."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path

from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn

from qcrl.output import console
from qcrl.sweeps.groups import Group, finished, progress

SECONDS_BETWEEN_LOOKS = 1.0
SECONDS_BETWEEN_LINES = 30.0


class Watch:
    """Looks at the run folders of all groups now and then: a bar in a terminal, lines elsewhere, on stderr."""

    def __init__(self, groups: Sequence[Group], out: Path, enabled: bool = True) -> None:
        self.groups = groups
        self.out = out
        self.console = console(enabled)
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(None), TaskProgressColumn())
        self.bar = Progress(*columns, console=self.console, disable=not (enabled and self.console.is_terminal))
        self.task = self.bar.add_task("", total=1.0)
        self.started = self.last_line = time.monotonic()
        self.before = self.share()
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)

    def share(self) -> float:
        """Of the whole grid's steps, how many are done."""
        done = sum(
            group.work * (1.0 if finished(group, self.out / group.path) else progress(group, self.out / group.path))
            for group in self.groups
        )
        return done / max(1, sum(group.work for group in self.groups))

    def __enter__(self) -> "Watch":
        self.bar.start()
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.thread.join()
        self.bar.stop()

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True, markup=False)

    def _look(self) -> None:
        while not self.stopped.wait(SECONDS_BETWEEN_LOOKS):
            share, now = self.share(), time.monotonic()
            text = f"{self._count()} of {len(self.groups)} groups done, {self.left(share, now)}"
            self.bar.update(self.task, completed=share, description=text)
            if not self.console.is_terminal and now - self.last_line >= SECONDS_BETWEEN_LINES:
                self.last_line = now
                self.say(f"{share:4.0%}  {text}")

    def _count(self) -> int:
        return sum(finished(group, self.out / group.path) is not None for group in self.groups)

    def left(self, share: float, now: float) -> str:
        """Time left, at the speed so far."""
        if share <= self.before:
            return "time left not known yet"
        seconds = round((now - self.started) * (1 - share) / (share - self.before))
        return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d} left"
