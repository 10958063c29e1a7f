"""Learning without a binding constraint, with default settings, beside the PPO of Stable-Baselines3 with its own.

Every training runs in a process of its own, one after the other. Rows that are in the table already are not run again.
"""

import argparse
import csv
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from qcrl.bench import add_changes, changes, count, hardware, print_table
from qcrl.envs.find import find
from qcrl.envs.host.seeds import Seeded, SeededMaker
from qcrl.errors import UserError
from qcrl.kinds import Settings, Tree

TASKS = {
    "CartPole-v1": 100_000,
    "Pendulum-v1": 200_000,
    "Acrobot-v1": 200_000,
    "LunarLander-v3": 500_000,
    "HalfCheetah-v5": 500_000,
    "Hopper-v5": 500_000,
    "Walker2d-v5": 500_000,
    "Ant-v5": 500_000,
    "mobile_env:mobile-small-central-v0": 100_000,
}
"""Environment steps of each."""
LEARNERS = ("qcrl", "sb3")
EPISODES = 50
"""Fresh episodes with drawn actions after a training."""
OUT_OF_REACH = 1e6
"""A limit that no episode reaches."""


class Row(NamedTuple):
    """One training."""

    task: str
    learner: str
    seed: int
    steps: int
    mean_return: float
    cpu_seconds: float
    wall_seconds: float


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), metavar="ID", help="(default: all)")
    parser.add_argument("--learners", nargs="+", choices=LEARNERS, default=list(LEARNERS), help="(default: both)")
    parser.add_argument("--seeds", type=count, default=3, help="trainings of each (default: 3)")
    parser.add_argument("--first-seed", type=int, default=0, help="(default: 0)")
    parser.add_argument("--algo", default="outage_ppo", help="algorithm of qcrl (default: outage_ppo)")
    add_changes(parser)
    parser.add_argument("--steps", type=float, default=None, help="of each training (default: those of the task)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="no training begins later (default: inf)")
    parser.add_argument("--out", default="learn.csv", help="table that rows are added to (default: learn.csv)")
    parser.add_argument("--one", default=None, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> None:
    if args.one is not None:
        print(json.dumps(train(**json.loads(args.one))))
        return
    path = Path(args.out)
    left_out = _run_all(args, path)
    rows = [row for row in read(path) if row.task in args.tasks]
    print(f"{hardware()}; {EPISODES} fresh episodes with drawn actions after each training\n")
    header = ["task", "steps", "seeds", "qcrl", "Stable-Baselines3", "difference / its error", "CPU s", "CPU share"]
    print_table(header, [cells for task in args.tasks if (cells := compare(task, rows))])
    for reason in left_out:
        print(f"\nLeft out: {reason}")


def _run_all(args: argparse.Namespace, path: Path) -> list[str]:
    """Run what is not in the table; what cannot be run."""
    done = {row[:3] for row in read(path)}
    left_out: list[str] = []
    begun = time.monotonic()
    for task in args.tasks:
        for seed in range(args.first_seed, args.first_seed + args.seeds):
            for learner in args.learners:
                if (task, learner, seed) in done or f"{learner} on {task}" in "".join(left_out):
                    continue
                if time.monotonic() - begun > 60 * args.minutes:
                    left_out.append(f"{learner} on {task}, from seed {seed} on: no time")
                    continue
                steps = int(args.steps or TASKS.get(task, 100_000))
                job: Tree = {"learner": learner, "task": task, "steps": steps, "seed": seed, "algo": args.algo}
                job["overrides"] = changes(args) if learner == "qcrl" else {}
                command = [sys.executable, "-m", "qcrl.cli", "bench", "learn", "--one", json.dumps(job)]
                ended = subprocess.run(command, capture_output=True, text=True)
                if ended.returncode:
                    left_out.append(f"{learner} on {task}: {ended.stderr.strip().splitlines()[-1]}")
                    continue
                add(path, Row(**json.loads(ended.stdout.splitlines()[-1])))
    return left_out


def read(path: Path) -> list[Row]:
    """The rows of a table, none where there is none."""
    if not path.exists():
        return []
    with open(path, newline="") as file:
        kinds = Row.__annotations__
        return [Row(**{name: kinds[name](value) for name, value in row.items()}) for row in csv.DictReader(file)]


def add(path: Path, row: Row) -> None:
    fresh = not path.exists()
    with open(path, "a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if fresh:
            writer.writerow(Row._fields)
        writer.writerow(row)


def compare(task: str, rows: list[Row]) -> list[str]:
    """Means with standard errors, their difference in units of its own error, and CPU times; empty without rows."""
    by_learner = {name: [row for row in rows if row.task == task and row.learner == name] for name in LEARNERS}
    returns = {name: np.array([row.mean_return for row in own]) for name, own in by_learner.items()}
    if not any(map(len, returns.values())):
        return []
    error = lambda x: float(np.std(x, ddof=1) / len(x) ** 0.5) if len(x) > 1 else float("nan")
    about = lambda x: f" ± {error(x):.1f}" if len(x) > 1 else ""
    shown = {name: f"{x.mean():.1f}{about(x)}" if len(x) else "" for name, x in returns.items()}
    seconds = {name: float(np.mean([row.cpu_seconds for row in own])) for name, own in by_learner.items() if own}
    steps = next(row.steps for row in rows if row.task == task)
    cells = [task, f"{steps:,}", "|".join(str(len(returns[name])) for name in LEARNERS), *shown.values()]
    if len(seconds) < len(LEARNERS):
        return [*cells, "", " ".join(f"{value:.0f}" for value in seconds.values()), ""]
    distance = float(returns["qcrl"].mean() - returns["sb3"].mean())
    spread = float(np.hypot(error(returns["qcrl"]), error(returns["sb3"])))
    share = seconds["qcrl"] / seconds["sb3"]
    ratio = "equal" if not distance else f"{distance / spread:+.1f}" if spread > 0 else "unknown"
    return [*cells, ratio, f"{seconds['qcrl']:.0f} of {seconds['sb3']:.0f}", f"{share:.2f}"]


def train(learner: str, task: str, steps: int, seed: int, algo: str, overrides: Settings) -> Tree:
    """One training and its fresh episodes, as a row."""
    # What the task itself imports is counted for neither learner.
    deaf = isinstance(getattr(find(task, free), "make", None), SeededMaker)
    begun, cpu = time.perf_counter(), time.process_time()
    with TemporaryDirectory() as folder:
        if learner == "qcrl":
            learned = _with_qcrl(task, steps, seed, algo, Path(folder), overrides)
        else:
            learned = _with_sb3(task, steps, seed, deaf)
        taken = time.process_time() - cpu, time.perf_counter() - begun
        returns = learned()
    return Row(task, learner, seed, steps, float(np.mean(returns)), *taken)._asdict()


def free(obs: Tree, action: Tree, next_obs: Tree, info: Tree) -> float:
    """Nothing costs anything."""
    return 0.0


def _with_qcrl(
    task: str, steps: int, seed: int, algo: str, folder: Path, overrides: Settings
) -> Callable[[], np.ndarray]:
    from qcrl.constraints import Outage
    from qcrl.sampling.play import play
    from qcrl.training.loop import train as qcrl_train

    env = find(task, free)
    constraint = Outage(OUT_OF_REACH, 0.1)
    trained = qcrl_train(algo, env, constraint, steps, [seed], out=folder / "run", progress=False, **overrides)
    return lambda: play([(trained.policy_of(trained.lanes[0]), seed + 2**31)], env, EPISODES)[0].returns


def _with_sb3(task: str, steps: int, seed: int, deaf: bool) -> Callable[[], np.ndarray]:
    """The environment is given the seeds of its resets, where it is deaf to them."""
    try:
        import gymnasium
        import torch
        from stable_baselines3 import PPO
        from stable_baselines3.common.env_util import make_vec_env
        from stable_baselines3.common.evaluation import evaluate_policy
        from stable_baselines3.common.vec_env import VecNormalize
    except ImportError as error:
        raise UserError(f"{error.name} is not installed; pip install 'qcrl[learn]'") from error
    torch.set_num_threads(1)

    class Obeying(gymnasium.Wrapper[Any, Any, Any, Any]):
        def reset(self, **options: Any) -> Any:
            return Seeded(self.env).reset(**options)

    made = lambda: Obeying(gymnasium.make(task)) if deaf else gymnasium.make(task)
    env = VecNormalize(make_vec_env(made, n_envs=1, seed=seed))
    model: Any = PPO("MlpPolicy", env, seed=seed, device="cpu").learn(steps)

    def fresh() -> np.ndarray:
        env.training, env.norm_reward = False, False
        env.seed(seed + 2**31)
        found = evaluate_policy(model, env, EPISODES, deterministic=False, return_episode_rewards=True, warn=False)
        return np.array(found[0])

    return fresh
