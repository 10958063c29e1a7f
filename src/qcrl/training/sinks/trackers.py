"""Live curves elsewhere: TensorBoard event files in the run folder, and Weights & Biases where asked for."""

import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qcrl.errors import UserError
from qcrl.kinds import Json


class TensorBoard:
    """Event files. Written without a background thread, so that a full disk raises here and nowhere else."""

    def __init__(self, folder: Path, suffix: str) -> None:
        try:
            with _without("torch"):  # all of it would be imported for nothing, which takes seconds
                from tensorboardX.event_file_writer import EventsWriter
                from tensorboardX.proto.event_pb2 import Event
        except Exception as error:  # not installed, or something broken that it looks for
            what = "is not installed" if isinstance(error, ImportError) else f"cannot be imported ({error})"
            warnings.warn(f"tensorboardX {what}, so no TensorBoard events are written", stacklevel=2)
            self.writer = None
        else:
            self.writer = EventsWriter(str(folder / "events"), suffix)
            self.event = Event

    def log(self, step: int, scalars: dict[str, float]) -> None:
        if self.writer is not None:
            event = self.event(wall_time=time.time(), step=step)
            for tag, value in scalars.items():
                event.summary.value.add(tag=tag, simple_value=value)
            self.writer.write_event(event)

    def flush(self) -> None:
        if self.writer is not None:
            self.writer.flush()

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


@contextmanager
def _without(module: str) -> Iterator[None]:
    """While entered, a module is as if it were not installed, unless it is imported already."""
    hidden = module not in sys.modules
    if hidden:
        sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if hidden:
            del sys.modules[module]


def require_wandb() -> Any:
    """The wandb module."""
    try:
        import wandb
    except ImportError as error:
        raise UserError(
            "Weights & Biases was asked for, but wandb is not installed; pip install 'qcrl[wandb]'"
        ) from error
    return wandb


class WandB:
    """A Weights & Biases run."""

    def __init__(self, folder: Path, project: str, config: Json) -> None:
        self.run = require_wandb().init(project=project, name=folder.name, dir=str(folder), config=config)

    def log(self, step: int, scalars: dict[str, float]) -> None:
        self.run.log(scalars, step=step)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.run.finish()
