"""Several constraints at once, and one policy for every limit, at full size: trains, evaluates, prints tables.

python benchmarks/together.py gremlin|mean|limits [--minutes 8]

What one constraint alone leads to is read from the rows of benchmarks/outage.py. The same command goes on where it was
stopped: trainings from their checkpoints, and evaluations in results/together are kept where they are of what is asked
for. With --minutes it stops by itself, saved, with exit code 143. --steps-scale 0.001 --preset fast --out /tmp/x
--results /tmp/x is a rehearsal.
"""

import argparse
import csv
import json
import os
import signal
import sys
from pathlib import Path

import qcrl
from qcrl.constraints import Constraint, Together
from qcrl.show.figures import plot

LIMITS = (5.0, 10.0, 15.0, 20.0, 30.0)
PLAIN = qcrl.Outage(15, 0.1)
BOTH = qcrl.Outage(15, 0.1, cost="hazards") & qcrl.Outage(5, 0.05, cost="gremlins")
STEPS = 60_000_000
"""The length of `scale`."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("gremlin", "mean", "limits"))
    parser.add_argument("--out", type=Path, default=Path("runs/together"), help="folder of the run folders")
    parser.add_argument("--results", type=Path, default=Path("results/together"), help="folder of the evaluations")
    parser.add_argument("--alone", type=Path, default=Path("results/outage_ppo/tables.csv"))
    parser.add_argument("--seeds", type=int, help="10, or 3 for limits")
    parser.add_argument("--first-seed", type=int, default=5000)
    parser.add_argument("--episodes", type=int, default=4000)
    parser.add_argument("--preset", default="scale")
    parser.add_argument("--steps-scale", type=float, default=1.0)
    parser.add_argument("--minutes", type=float, default=0.0)
    args = parser.parse_args()
    if args.minutes:
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        signal.setitimer(signal.ITIMER_REAL, 60 * args.minutes)
    {"gremlin": gremlin, "mean": mean, "limits": limits}[args.what](args)
    return 0


def evaluated(
    args: argparse.Namespace, name: str, env: str, asked: object, seeds: int, times: float = 1.0, **judged: object
) -> dict:
    """The evaluation of a run, trained to its end and made unless it is there, of what is asked for."""
    path = args.results / f"{name}.json"
    how: dict = {"seeds": args.seeds or seeds, "first_seed": args.first_seed, "preset": args.preset}
    how["steps"] = max(1, int(times * args.steps_scale * STEPS))
    made = how | {"episodes": args.episodes}
    found = json.loads(path.read_text()) if path.exists() else {}
    if found.get("made") != made:
        run = qcrl.train("outage_ppo", env, asked, out=args.out / name, resume=True, **how)  # type: ignore[arg-type]
        qcrl.evaluate(run, args.episodes, **judged)  # type: ignore[arg-type]
        found = {"made": made, **json.loads((run.path / "evaluation-jax.json").read_text())}
        args.results.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=1) + "\n")
    return found


def alone(args: argparse.Namespace, env: str) -> dict[str, list[float]]:
    """What Outage(15, .1) on `cost` leads to, of every seed."""
    with open(args.alone, newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["cell"] == f"scale-outage_ppo-scale-{env}-p0.1"]
    names = "outage", "mean_return", "mean_cost", "mean_cost_over"
    return {name: [float(row[name]) for row in rows if row[name]] for name in names}


def average(values: list[float]) -> float:
    return sum(values) / len(values)


def spread(values: list[float]) -> str:
    return f"{average(values):.4g} ({min(values):.4g} to {max(values):.4g})"


def per_seed(found: dict, key: str) -> str:
    return spread([row[key] for row in found["per_lane"]])


def constraints_of(found: dict) -> list[dict]:
    return found["pooled"][0]["constraints"] or []


def gremlin(args: argparse.Namespace) -> None:
    """Two outages on GremlinEnv beside one on all costs."""
    both, plain = evaluated(args, "gremlin-both", "GremlinEnv-v0", BOTH, 10), alone(args, "GremlinEnv-v0")
    print(
        "| constraint | asked | measured over all seeds | at most target + .01 | mean cost over the limit |\n"
        "|---|---|---|---|---|"
    )
    for row in constraints_of(both):
        kept = row["measured"] <= row["bound"] + 0.01
        print(f"| {row['name']} | {row['bound']:g} | {row['measured']:.4f} | {kept} | {row['mean_cost_over']} |")
    ratio = both["pooled"][0]["mean_return"] / average(plain["mean_return"])
    print(f"any of the limits: {both['pooled'][0]['outage_any']:.4f}")
    print(
        f"return {per_seed(both, 'mean_return')}, of Outage(15, .1) on cost {spread(plain['mean_return'])}: {ratio:.3f}"
    )
    print(f"outage of the latter {spread(plain['outage'])}; return at least 80%: {ratio:.3f}, {ratio >= 0.8}")


def mean(args: argparse.Namespace) -> None:
    """An outage on DynamicEnv, alone and with a mean of two thirds of what it led to."""
    plain = alone(args, "DynamicEnv-v0")
    limit = float(f"{2 / 3 * average(plain['mean_cost']):.3g}")
    asked: Constraint | Together = PLAIN & qcrl.Mean(limit)
    both = evaluated(args, f"mean-{limit:g}", "DynamicEnv-v0", asked, 10)
    print(
        "| constraint | asked | measured over all seeds | kept within .01, or the mean within 2% |\n|---|---|---|---|"
    )
    for row, slack in zip(constraints_of(both), (0.01, 0.02 * limit)):
        print(
            f"| {row['name']} | {row['bound']:g} | {row['measured']:.4g} | {row['measured'] <= row['bound'] + slack} |"
        )
    ratio = both["pooled"][0]["mean_return"] / average(plain["mean_return"])
    print(f"return {per_seed(both, 'mean_return')}, without the mean {spread(plain['mean_return'])}: {ratio:.3f}")
    print(f"mean cost {per_seed(both, 'mean_cost')}, without {spread(plain['mean_cost'])}")
    over = both["pooled"][0]["mean_cost_over"], average(plain["mean_cost_over"])
    print(
        f"mean cost of episodes over the limit: {over[0]}, without the mean {over[1]}; "
        f"return at least 90%: {ratio >= 0.9}"
    )


def limits(args: argparse.Namespace) -> None:
    """One policy for limits 5 to 30, beside policies trained for one limit each."""
    for env in ("DynamicEnv-v0", "DynamicButtonEnv-v0"):
        name = env.removesuffix("-v0")
        judged = {"limit": list(LIMITS)}
        found = evaluated(args, f"limits-{name}", env, qcrl.Outage((LIMITS[0], LIMITS[-1]), 0.1), 3, 3.0, **judged)
        apart = evaluated(args, f"limits-{name}-each", env, [qcrl.Outage(limit, 0.1) for limit in LIMITS], 3)
        print(
            f"{env}\n| limit | outage | return | trained for it alone: outage | return | share | outages within .01 |"
        )
        print("|---|---|---|---|---|---|---|")
        for own, alone in zip(*(sorted(x["pooled"], key=lambda row: row["limit"]) for x in (found, apart))):
            near = abs(own["outage"] - alone["outage"]) <= 0.01
            share = own["mean_return"] / alone["mean_return"]
            cells = [f"{own['limit']:g}", f"{own['outage']:.4f}", f"{own['mean_return']:.2f}", f"{alone['outage']:.4f}"]
            print(f"| {' | '.join(cells)} | {alone['mean_return']:.2f} | {share:.3f} | {near} |", flush=True)
        runs = [args.out / f"limits-{name}", args.out / f"limits-{name}-each"]
        if all(run.exists() for run in runs):
            print(plot(runs, args.results / f"limits-{name}.png", "limits"))


if __name__ == "__main__":
    sys.exit(main())
