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
            steps, limit = run.config["steps"], found.limit
        row = (args.example, limit, 0.1, seed, steps, args.episodes, found.mean_return, found.outage, cpu_seconds)
        fresh = not Path(args.out).exists()
        with open(args.out, "a", newline="") as file:
            names = "example,limit,probability,seed,steps,episodes,mean_return,outage,cpu_seconds".split(",")
            csv.writer(file).writerows([names, row] if fresh else [row])
        print(*row, flush=True)


if __name__ == "__main__":
    main()
