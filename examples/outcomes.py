"""What came of an example: its seeds one after the other, each judged in fresh episodes; with --free without a limit.

With --shield that policy is judged once more with a stop: once a part of the limit is spent, all its actions are 0. So
much can be had without learning about costs, where to do nothing costs nothing.

python outcomes.py cartpole --seeds 3 4 5
"""

import argparse
import csv
import importlib
import inspect
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import gymnasium
import numpy as np

import qcrl

STOPS = 0.7, 0.8, 0.9
"""Parts of the limit."""


def shielded(run, limit, stop, cost, episodes):
    """Mean return, outage and mean cost of fresh episodes in which every action is 0 once that much is spent."""
    env, policy = gymnasium.make(run.config["environment"]["id"]), run.policy(backend="numpy")
    rng, returns, costs = np.random.default_rng(0), [], []
    for episode in range(episodes):
        obs, _ = env.reset(seed=2**20 + episode)
        carry, paid, total, spent, ended = policy.initial(), 0.0, 0.0, 0.0, False
        while not ended:
            action, carry = policy(obs, carry, cost=paid, rng=rng)
            action = np.zeros_like(action) if spent >= stop else action
            after, reward, terminated, truncated, info = env.step(action)
            paid = cost(obs, action, after, info)
            obs, total, spent, ended = after, total + reward, spent + paid, terminated or truncated
        returns.append(total)
        costs.append(spent)
    return float(np.mean(returns)), float(np.mean(np.array(costs) > limit)), float(np.mean(costs))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("example")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=float, default=None, help="(default: those of the example)")
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument("--free", action="store_true")
    parser.add_argument("--shield", default=None, metavar="COST", help="the example's function that costs are from")
    parser.add_argument("--out", default="outcomes.csv", help="table that rows are added to")
    args = parser.parse_args()
    example = importlib.import_module(args.example)
    free = args.free or args.shield
    options = ({"steps": args.steps} if args.steps else {}) | ({"limit": 1e6} if free else {})
    for seed in args.seeds:
        begun = time.process_time()
        with TemporaryDirectory() as folder:
            run = example.main(seeds=[seed], out=Path(folder) / "run", progress=False, **options)
            cpu_seconds = time.process_time() - begun
            env = getattr(example, "Battery", None)
            found = qcrl.evaluate(run, env=env, episodes=args.episodes, progress=False).per_lane[0]
            outcomes = {args.example: (found.limit, found.mean_return, found.outage, found.mean_cost)}
            if args.shield:
                limit = inspect.signature(example.main).parameters["limit"].default
                for part in STOPS:
                    stopped = shielded(run, limit, part * limit, getattr(example, args.shield), args.episodes)
                    outcomes[f"{args.example} stopped at {part:g}"] = (limit, *stopped)
            steps = run.config["steps"]
        for name, (limit, mean_return, outage, mean_cost) in outcomes.items():
            row = {"example": name, "limit": limit, "seed": seed, "steps": steps, "episodes": args.episodes}
            row |= {"mean_return": mean_return, "outage": outage, "mean_cost": mean_cost, "cpu_seconds": cpu_seconds}
            begins = not Path(args.out).exists()
            with open(args.out, "a", newline="") as file:
                table = csv.writer(file, lineterminator="\n")
                table.writerows([row.keys(), row.values()] if begins else [row.values()])
            print(row, flush=True)


if __name__ == "__main__":
    main()
