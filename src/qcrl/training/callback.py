"""A function of the user's that looks on while a run trains, and may stop it."""

from collections.abc import Callable, Sequence

import numpy as np

from qcrl.runs.lane import Lane

Callback = Callable[[dict[str, float]], object]
"""Is given a row of metrics; what it returns says whether to stop."""


class Onlooker:
    """Calls it with every row, and remembers what it wants."""

    def __init__(self, lanes: Sequence[Lane], callback: Callback | None = None) -> None:
        self.lanes = lanes
        self.callback = callback
        self.stops = False
        self.raised: Exception | None = None
        """Kept until everything is saved."""

    def see(self, scalars: dict[str, np.ndarray], steps_per_second: float) -> None:
        """One iteration of all lanes; frozen ones have no rows."""
        if self.callback is None:
            return
        for index in np.flatnonzero(scalars["alive"]).tolist():
            values = {name: float(column[index]) for name, column in scalars.items() if name != "alive"}
            try:
                row = {**self.lanes[index].columns, **values, "steps_per_second": steps_per_second}
                self.stops = bool(self.callback(row)) or self.stops
            except Exception as error:
                self.raised, self.stops = error, True
