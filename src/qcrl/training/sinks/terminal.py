"""What the user sees while a run trains: a bar in a terminal, a line now and then elsewhere."""

import time
from collections.abc import Iterable, Sequence

import numpy as np
from rich.console import RenderableType
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from qcrl.output import console
from qcrl.runs.lane import Lane, by_setting

SECONDS_BETWEEN_LINES = 10.0
FIRST_SIGN = 3.0
"""Seconds after which something is said of an iteration that takes long; a bar moves every second."""


class Bar(Progress):
    """A progress bar with a line of text above it, which a narrow terminal does not cut short."""

    status = "starting"

    def get_renderables(self) -> Iterable[RenderableType]:
        yield Text(self.status)
        yield from super().get_renderables()


class Display:
    """Progress of one run, on stderr. Anything that goes wrong in showing it never disturbs the training."""

    def __init__(self, lanes: Sequence[Lane], enabled: bool = True) -> None:
        self.console = console(enabled)
        self.lanes = lanes
        self.first = self.done = self.iterations = 0
        self.started = self.last_line = self.begun = self.ticked = time.monotonic()
        self.bar: Bar | None = None
        if enabled and self.console.is_terminal:
            columns = (
                SpinnerColumn(),
                BarColumn(None),
                TaskProgressColumn(),
                TimeRemainingColumn(),
                TextColumn("left"),
            )
            self.bar = Bar(*columns, console=self.console)
            self.task = self.bar.add_task("", total=None)

    def __enter__(self) -> "Display":
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def say(self, text: str) -> None:
        """A message of its own, above the bar."""
        self.console.print(text, highlight=False, soft_wrap=True, markup=False)

    def stage(self, text: str) -> None:
        """What is going on while there is no progress to show."""
        if self.bar is not None:
            self.bar.status = text
        else:
            self.say(text)

    def start(self, first: int, iterations: int) -> None:
        """Training begins, `first` of its iterations are done."""
        self.first, self.iterations = first, iterations
        self.done = first
        self.started = self.begun = self.ticked = time.monotonic()
        if self.bar is not None:
            self.bar.reset(self.task, completed=first, total=iterations)

    def within(self, share: float, steps: int) -> None:
        """The running iteration, of so many steps, is done to this share."""
        now = time.monotonic()
        if now - self.ticked < 1.0:
            return
        self.ticked = now
        text = f"iteration {self.done + 1:,}: {share * steps:,.0f} of {steps:,} steps"
        if now > self.begun:
            text += f", {share * steps / (now - self.begun):,.0f} steps/s"
        if self.bar is not None:
            if self.done == self.first:
                self.bar.status = text
            self.bar.update(self.task, completed=self.done + share)
        elif now - max(self.begun, self.last_line) >= (
            FIRST_SIGN if self.last_line <= self.started else SECONDS_BETWEEN_LINES
        ):
            self.last_line = now
            self.say(f"{(self.done + share) / self.iterations:4.0%}  {text}")

    def update(self, iteration: int, scalars: dict[str, np.ndarray], steps_per_second: float) -> None:
        self.done, self.begun = iteration, time.monotonic()
        text = summary(self.lanes, scalars, steps_per_second)
        if self.bar is not None:
            self.bar.status = text
            self.bar.update(self.task, completed=iteration)
            return
        now = time.monotonic()
        if now - self.last_line >= SECONDS_BETWEEN_LINES or iteration == self.iterations:
            self.last_line = now
            left = (now - self.started) / (iteration - self.first) * (self.iterations - iteration)
            share = f"{iteration / self.iterations:4.0%}"
            self.say(f"{share}  {text}  {time.strftime('%H:%M:%S', time.gmtime(left))} left")


def summary(lanes: Sequence[Lane], scalars: dict[str, np.ndarray], steps_per_second: float) -> str:
    """Outage against its target, return and multiplier as means over seeds, per setting; speed over all lanes."""
    groups = by_setting(lanes)

    def means(name: str, form: str) -> str:
        value = {lane: scalars[name][i] for i, lane in enumerate(lanes)}
        return "|".join(format(np.mean([value[lane] for lane in group]), form) for group in groups)

    asked = [group[0].setting for group in groups]
    shown = []
    for name, column in {"asked": "probability", "limit": "limit", "learning rate": "learning_rate"}.items():
        values = [f"{setting[column]:g}" for setting in asked if column in setting]
        if values and (name == "asked" or len(set(values)) > 1):
            shown.append(f"{name} {'|'.join(values if len(set(values)) > 1 else values[:1])}")
    kept = f"outage {means('outage', '.3f')} ({', '.join(shown)})"
    weight = means("multiplier", ".2f")
    if len(lanes[0].constraints) > 1:
        bounds = ("|".join(f"{group[0].constraints[i].bound:g}" for group in groups) for i in range(len(lanes[0].keys)))
        kept = "  ".join(f"{key} {means(key, '.3g')} (asked {bound})" for key, bound in zip(lanes[0].keys, bounds))
        weight = ", ".join(means(f"multiplier_{key}", ".2f") for key in lanes[0].keys)
    return f"{kept}  return {means('episode_return', '.2f')}  multiplier {weight}  {steps_per_second:,.0f} steps/s"
