"""The sweep on this machine: one group after the other, each on all local devices."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from qcrl.sweeps.groups import Group, Outcome, run_group


def run(groups: Sequence[Group], out: Path, checkpoint_interval: float) -> Iterator[Outcome]:
    """Train the groups in order; one that fails does not stop the others."""
    for group in groups:
        try:
            run_group(group, out / group.path, checkpoint_interval)
        except Exception as error:
            yield group, error
        else:
            yield group, None
