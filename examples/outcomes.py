"""What came of an example: its seeds one after the other, each judged in fresh episodes; with --free without a limit.

python outcomes.py cartpole --seeds 0 1 2
"""

import argparse
import csv
import importlib
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import qcrl


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("example")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=float, default=None, help="(default: those of the example)")
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument("--free", action="store_true")
    parser.add_argument("--out", default="outcomes.csv", help="table that rows are added to")
    args = parser.parse_args()
    example = importlib.import_module(args.example)
    options = ({"steps": args.steps} if args.steps else {}) | ({"limit": 1e6} if args.free else {})
    for seed in args.seeds:
        begun = time.process_time()
        with TemporaryDirectory() as folder:
            run = example.main(seeds=[seed], out=Path(folder) / "run", progress=False, **options)
            cpu_seconds = time.process_time() - begun
            env = getattr(example, "Battery", None)
            found = qcrl.evaluate(run, env=env, episodes=args.episodes, progress=False).per_lane[0]
            row = {"example": args.example, "limit": found.limit, "seed": seed, "steps": run.config["steps"]}
        row |= {"episodes": args.episodes, "mean_return": found.mean_return, "outage": found.outage}
        row |= {"cpu_seconds": cpu_seconds}
        begins = not Path(args.out).exists()
        with open(args.out, "a", newline="") as file:
            csv.writer(file).writerows([row.keys(), row.values()] if begins else [row.values()])
        print(row, flush=True)


if __name__ == "__main__":
    main()
