"""Tables of numbers: mean and standard deviation over seeds, and fresh-episode outages with intervals."""

from collections.abc import Sequence

import numpy as np

from qcrl.kinds import Json
from qcrl.reproduce.results import Found

Row = Json
SETTING = ("environment", "run", "probability", "seeds")
TRAINING = ("training: outage", "mean cost", "return", "multiplier")
FRESH = ("fresh: outage", "95% interval", "mean cost", "return")


def rows(found: Sequence[Found]) -> list[Row]:
    """One row for every setting, as numbers."""
    return [_row(each) for each in found]


def _row(each: Found) -> Row:
    row: Row = {
        "environment": each.environment,
        "run": each.label,
        "probability": each.probability,
        "limit": each.limit,
        "seeds": each.seeds,
        "env_steps": int(each.training["env_steps"].max()),
    }
    for name in ("outage", "episode_cost", "episode_return", "multiplier"):
        row[f"training_{name}"], row[f"training_{name}_std"] = spread(each.at_the_end(name))
    row["fresh_episodes"] = int(each.fresh["episodes"].sum()) if each.fresh else None
    for name in ("outage", "episode_cost", "episode_return"):
        both = spread(each.per_seed(name)) if each.fresh else (None, None)
        row[f"fresh_{name}"], row[f"fresh_{name}_std"] = both
    row["fresh_outage_low"], row["fresh_outage_high"] = each.interval or (None, None)
    return row


def spread(values: np.ndarray) -> tuple[float, float | None]:
    """Mean and standard deviation over seeds; none of a single seed."""
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None


def markdown(found: Sequence[Found]) -> str:
    """Two tables: at the end of training, and over fresh episodes."""
    training, fresh = [(*SETTING, *TRAINING), ("---",) * 8], [(*SETTING, *FRESH), ("---",) * 8]
    for row in rows(found):
        judged = "-" if row["run"].startswith("ppo_lag") else f"{row['probability']:g}"
        low, high = row["fresh_outage_low"], row["fresh_outage_high"]
        setting = (row["environment"], row["run"], judged, str(row["seeds"]))
        ends = [shown(row, "training_episode_cost"), shown(row, "training_episode_return")]
        training.append((*setting, shown(row, "training_outage", 3), *ends, f"{row['training_multiplier']:.1f}"))
        interval = "missing" if low is None else f"{low:.3f} to {high:.3f}"
        ends = [shown(row, "fresh_episode_cost"), shown(row, "fresh_episode_return")]
        fresh.append((*setting, shown(row, "fresh_outage", 3), interval, *ends))
    return "\n\n".join("\n".join(f"| {' | '.join(cells)} |" for cells in table) for table in (training, fresh))


def shown(row: Row, name: str, digits: int = 1) -> str:
    if row[name] is None:
        return "missing"
    std = row[f"{name}_std"]
    return f"{row[name]:.{digits}f}" + ("" if std is None else f" ± {std:.{digits}f}")
