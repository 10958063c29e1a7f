"""How far from the best shares three algorithms end on examples/three_routes.py, over seeds.

python benchmarks/three_routes.py                     # 16 seeds, three minutes on two cores
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

import qcrl

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))

from three_routes import best_shares, shares, train

SEEDS = tuple(range(10, 26))
"""The settings were found on other ones."""
TIME, DAMAGE = (qcrl.Outage(10, 0.25, cost=cost) for cost in ("time", "damage"))
MEANS = [qcrl.Mean(8, cost=cost) for cost in ("time", "damage")]
# For damage alone the multiplier would have to be 0.05 to 0.2: with relative gains it stays above 0.1.
MORE_REWARD = dict(reward_scale=0.25)
SUITE = [
    *((algo, TIME & DAMAGE, {}) for algo in ("outage_ppo", "qcpo")),
    *((algo, TIME & MEANS[1], {}) for algo in ("outage_ppo", "qcpo")),
    *((algo, TIME, {}) for algo in ("outage_ppo", "qcpo")),
    *((algo, DAMAGE, MORE_REWARD) for algo in ("outage_ppo", "qcpo")),
    ("ppo_lag", MEANS[0] & MEANS[1], {}),
    ("ppo_lag", MEANS[0], {}),
    ("ppo_lag", MEANS[1], MORE_REWARD),
]


def main() -> None:
    print("| algorithm | constraints | farthest | on average |\n|---|---|---|---|")
    for algo, constraint, changes in SUITE:
        with tempfile.TemporaryDirectory() as folder:
            run = train(algo, constraint, seeds=SEEDS, out=Path(folder) / "run", progress=False, **changes)
            asked = run.lanes[0].constraints
            away = [np.abs(shares(run.policy(seed=seed)) - best_shares(*asked)).max() for seed in SEEDS]
        words = " and ".join(f"{type(each).__name__.lower()} of {each.cost}" for each in asked)
        print(f"| `{algo}` | {words} | {max(away):.3f} | {np.mean(away):.3f} |", flush=True)


if __name__ == "__main__":
    main()
