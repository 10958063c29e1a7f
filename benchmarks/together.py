"""Several constraints at once, and one policy for every limit, at full size: trains, evaluates, prints tables.

python benchmarks/together.py gremlin|mean|limits --out runs/together [--minutes 8]

The same command goes on where it was stopped: trainings from their checkpoints, evaluations that are there are kept.
With --minutes it stops by itself, saved, with exit code 143. --steps-scale 0.001 --preset fast is a rehearsal.
"""

import argparse
import json
import os
import signal
import sys
from pathlib import Path

import qcrl
from qcrl.constraints import Constraint, Together
from qcrl.runs.folder import Run
from qcrl.show.figures import plot

LIMITS = (5.0, 10.0, 15.0, 20.0, 30.0)
PLAIN = qcrl.Outage(15, 0.1)
BOTH = qcrl.Outage(15, 0.1, cost="hazards") & qcrl.Outage(5, 0.05, cost="gremlins")
STEPS = 60_000_000
"""The length of `scale`."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("gremlin", "mean", "limits"))
    parser.add_argument("--out", type=Path, default=Path("runs/together"))
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


def trained(args: argparse.Namespace, name: str, env: str, asked: object, seeds: int, times: float = 1.0) -> Run:
    """The run of this name, trained to its end."""
    steps = max(1, int(times * args.steps_scale * STEPS))
    return qcrl.train(
        "outage_ppo",
        env,
        asked,  # type: ignore[arg-type]
        steps,
        args.seeds or seeds,
        args.preset,
        args.out / name,
        first_seed=args.first_seed,
        resume=True,
    )


def evaluated(args: argparse.Namespace, run: Run, **asked: object) -> dict:
    """The evaluation of a run, made unless it is there."""
    path = run.path / "evaluation-jax.json"
    if not path.exists() or json.loads(path.read_text())["episodes"] < args.episodes:
        qcrl.evaluate(run, args.episodes, **asked)  # type: ignore[arg-type]
    return json.loads(path.read_text())


def per_seed(found: dict, key: str) -> str:
    values = [row[key] for row in found["per_lane"]]
    return f"{sum(values) / len(values):.4g} ({min(values):.4g} to {max(values):.4g})"


def constraints_of(found: dict) -> list[dict]:
    return found["pooled"][0]["constraints"] or []


def gremlin(args: argparse.Namespace) -> None:
    """Two outages on GremlinEnv beside one on all costs."""
    both = evaluated(args, trained(args, "gremlin-both", "GremlinEnv-v0", BOTH, 10))
    plain = evaluated(args, trained(args, "gremlin-cost", "GremlinEnv-v0", PLAIN, 10))
    print(
        "| constraint | asked | measured over all seeds | at most target + .01 | mean cost over the limit |\n"
        "|---|---|---|---|---|"
    )
    for row in constraints_of(both):
        kept = row["measured"] <= row["bound"] + 0.01
        print(f"| {row['name']} | {row['bound']:g} | {row['measured']:.4f} | {kept} | {row['mean_cost_over']} |")
    ratio = both["pooled"][0]["mean_return"] / plain["pooled"][0]["mean_return"]
    print(f"any of the limits: {both['pooled'][0]['outage_any']:.4f}")
    print(
        f"return {per_seed(both, 'mean_return')}, of Outage(15, .1) on cost {per_seed(plain, 'mean_return')}: "
        f"{ratio:.3f}"
    )
    print(f"outage of the latter {per_seed(plain, 'outage')}; return at least 80%: {ratio >= 0.8}")


def mean(args: argparse.Namespace) -> None:
    """An outage on DynamicEnv, alone and with a mean of two thirds of what it led to."""
    plain = evaluated(args, trained(args, "mean-without", "DynamicEnv-v0", PLAIN, 10))
    limit = float(f"{2 / 3 * plain['pooled'][0]['mean_cost']:.3g}")
    asked: Constraint | Together = PLAIN & qcrl.Mean(limit)
    both = evaluated(args, trained(args, f"mean-{limit:g}", "DynamicEnv-v0", asked, 10))
    print(
        "| constraint | asked | measured over all seeds | kept within .01, or the mean within 2% |\n|---|---|---|---|"
    )
    for row, slack in zip(constraints_of(both), (0.01, 0.02 * limit)):
        print(
            f"| {row['name']} | {row['bound']:g} | {row['measured']:.4g} | {row['measured'] <= row['bound'] + slack} |"
        )
    ratio = both["pooled"][0]["mean_return"] / plain["pooled"][0]["mean_return"]
    print(f"return {per_seed(both, 'mean_return')}, without the mean {per_seed(plain, 'mean_return')}: {ratio:.3f}")
    print(f"mean cost {per_seed(both, 'mean_cost')}, without {per_seed(plain, 'mean_cost')}")
    over = [found["pooled"][0]["mean_cost_over"] for found in (both, plain)]
    print(
        f"mean cost of episodes over the limit: {over[0]}, without the mean {over[1]}; "
        f"return at least 90%: {ratio >= 0.9}"
    )


def limits(args: argparse.Namespace) -> None:
    """One policy for limits 5 to 30, beside policies trained for one limit each."""
    for env in ("DynamicEnv-v0", "DynamicButtonEnv-v0"):
        name = env.removesuffix("-v0")
        one = trained(args, f"limits-{name}", env, qcrl.Outage((LIMITS[0], LIMITS[-1]), 0.1), 3, times=3.0)
        each = trained(args, f"limits-{name}-each", env, [qcrl.Outage(limit, 0.1) for limit in LIMITS], 3)
        found, apart = evaluated(args, one, limit=list(LIMITS)), evaluated(args, each)
        print(
            f"{env}\n| limit | outage | return | trained for it alone: outage | return | share | outages within .01 |"
        )
        print("|---|---|---|---|---|---|---|")
        for own, alone in zip(*(sorted(x["pooled"], key=lambda row: row["limit"]) for x in (found, apart))):
            near = abs(own["outage"] - alone["outage"]) <= 0.01
            share = own["mean_return"] / alone["mean_return"]
            cells = [f"{own['limit']:g}", f"{own['outage']:.4f}", f"{own['mean_return']:.2f}", f"{alone['outage']:.4f}"]
            print(f"| {' | '.join(cells)} | {alone['mean_return']:.2f} | {share:.3f} | {near} |", flush=True)
        print(plot([one.path, each.path], args.out / f"limits-{name}.png", "limits"))


if __name__ == "__main__":
    sys.exit(main())
