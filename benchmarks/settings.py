"""How settings of Outage-PPO's presets are chosen: trains variants side by side on seeds that no table reports.

python benchmarks/settings.py scale/separate tuned/separate --minutes 5 --jobs 3     # until all are done
python benchmarks/settings.py scale/separate --steps-scale 0.002 --episodes 20 --jobs 1 --out /tmp/settings.csv

Rows are kept in results/outage_ppo/settings.csv, and what is there is not trained again. Each says what the last policy
keeps, and what the one that is kept does: the best of the last ones, by fresh episodes.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from outage import TASKS, append, read, side_by_side

STEERED = {"scale": (0.1, 0.01), "tuned": (0.1, 0.2), "fast": (0.1, 0.01)}
"""The probabilities that a preset is judged at."""
Settings = dict[str, object]
PLAIN: Settings = {
    "learning_rate_halving": 120.0,
    "learning_rate_end": float("inf"),
    "least_multiplier": 0.1,
    "falls_from": 0.0,
    "initial_gain": 1.0,
    "target_margin": 0.05,
}
"""What all presets had when the variants were tried."""
SEPARATE: Settings = PLAIN | {"separate_critics": True}
ENDING: Settings = {"learning_rate_halving": 240.0, "learning_rate_end": 420.0, "least_multiplier": 0.03}
FALLING: Settings = PLAIN | ENDING | {"falls_from": 0.1}
WIDE: Settings = {"initial_gain": 2.45}
QUIET: Settings = {"outage_loss_weight": 0.1}
VARIANTS: dict[str, Settings] = {
    "as_is": {},
    "separate": SEPARATE,
    "ending": PLAIN | ENDING,
    "falling": FALLING,
    "falling_4": FALLING | {"epochs": 4},
    "falling_gain": FALLING | WIDE,
    "falling_gain_16": FALLING | {"initial_gain": 1.6},
    "falling_slow": FALLING | {"learning_rate": 4e-4},
    "quiet_gain": FALLING | WIDE | QUIET | {"target_margin": 0.1},
    "quiet": PLAIN | QUIET,
    "quiet_wide": PLAIN | QUIET | WIDE,
    "gain": PLAIN | WIDE,
    "gain_8": PLAIN | WIDE | {"minibatches": 8},
    "separate_gain": SEPARATE | WIDE,
}
COLUMNS = ("program", "preset", "variant", "environment", "probability", "seed", "policy", "iteration")
MEASURED = ("episodes", "outage", "mean_return", "mean_cost_over", "train_outage", "train_return", "multiplier", "kl")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", metavar="PRESET/VARIANT[/TASK]", help="in this order")
    parser.add_argument("--out", type=Path, default=Path("results/outage_ppo/settings.csv"))
    parser.add_argument("--runs", type=Path, default=Path("runs/settings"), help="folder of the run folders")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after so long")
    parser.add_argument("--jobs", type=int, default=2, help="trainings side by side")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1000, 1001])
    parser.add_argument("--candidates", type=int, default=8)
    parser.add_argument("--outages", type=float, nargs="+", help="ask for these (default: those of the preset)")
    parser.add_argument("--episodes", type=int, default=4000, help="fresh ones of every policy")
    parser.add_argument("--steps-scale", type=float, default=1.0, help="share of each preset's own length")
    parser.add_argument("--here", action="store_true", help="train in this process")
    args = parser.parse_args()
    if args.here:
        for program in args.what:
            train_and_evaluate(program, args)
        return 0
    done = {row["program"] for row in read(args.out)}
    programs = [program for each in args.what for program in expanded(each) if program not in done]
    options = ["--here", "--runs", str(args.runs), "--seeds", *map(str, args.seeds)]
    for name in ("candidates", "episodes", "steps_scale"):
        options += [f"--{name.replace('_', '-')}", str(getattr(args, name))]
    options += ["--outages", *map(str, args.outages)] if args.outages else []
    commands = {each: [sys.executable, __file__, each, *options] for each in programs}

    def keep(program: str, code: int) -> None:
        print(f"{time.strftime('%H:%M:%S')} {program}: exit code {code}", flush=True)
        if code == 0:
            append(args.out, read(rows_of(args, program)), (*COLUMNS, *MEASURED))

    side_by_side(commands, args.jobs, args.minutes, keep)
    return 0


def expanded(what: str) -> list[str]:
    return [what] if what.count("/") == 2 else [f"{what}/{task}" for task in TASKS]


def rows_of(args: argparse.Namespace, program: str) -> Path:
    return args.runs / f"{program.replace('/', '-')}.csv"


def train_and_evaluate(program: str, args: argparse.Namespace) -> None:
    import qcrl
    from qcrl.algos.find import algorithms
    from qcrl.constraints import exceeds
    from qcrl.envs import make
    from qcrl.evaluation.evaluate import Player
    from qcrl.runs.checkpoints import read_info
    from qcrl.runs.folder import rows_of as rows_in
    from qcrl.training.selection import RECENT

    preset, variant, task = program.split("/")
    overrides = {"candidates": args.candidates} | VARIANTS[variant]
    steps = max(1, round(args.steps_scale * algorithms()["outage_ppo"].lengths[preset]))
    constraints = [qcrl.Outage(15, probability) for probability in args.outages or STEERED[preset]]
    out = args.runs / program.replace("/", "-")
    run = qcrl.train(
        "outage_ppo", task, constraints, steps, args.seeds, preset, out, resume=True, progress=False, **overrides
    )
    found = []
    for lane in run.lanes:
        kept = run.policy_file(lane)
        after = read_info(kept).get("chosen_after")
        last = run.path / RECENT / f"{lane}-i{after}.safetensors"
        found.append((lane, "kept", kept))
        found.append((lane, "last", last if last.exists() else kept))
    seeds = [[lane.seed, *b"settings"] for lane, _, _ in found]
    policies = [run.policy_in(path, lane) for lane, _, path in found]
    totals = Player(run, make(task), progress=False).play(policies, args.episodes, seeds, "settings")
    rows, metrics = [], run.metrics
    for (lane, which, path), each in zip(found, totals):
        own, costs = rows_in(metrics, lane.columns), each.costs[:, 0]
        late = own[-max(1, len(own) // 8) :]
        over = exceeds(costs, 15)
        means = (np.mean(metrics[name][late]) for name in ("outage", "episode_return", "multiplier", "approx_kl"))
        numbers = [over.mean(), each.returns.mean(), costs[over].mean() if over.any() else "", *means]
        cells = [program, preset, variant, task, lane.probability, lane.seed, which, read_info(path)["iteration"]]
        rounded = [f"{number:.5g}" if number != "" else "" for number in numbers]
        rows.append(dict(zip((*COLUMNS, *MEASURED), (*cells, args.episodes, *rounded))))
    rows_of(args, program).unlink(missing_ok=True)
    append(rows_of(args, program), rows, (*COLUMNS, *MEASURED))


if __name__ == "__main__":
    sys.exit(main())
