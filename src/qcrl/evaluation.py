"""Fixed-count evaluation of a run: what its policies return and cost, with intervals, as JSON, CSV and a result."""

import csv
import dataclasses
import io
import json
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from qcrl import __version__, compilation
from qcrl.checkpoints import write_file
from qcrl.envs import ENVIRONMENT_IDS
from qcrl.envs.base import Environment
from qcrl.envs.costs import CostFunction
from qcrl.envs.find import find
from qcrl.envs.host import Host, open_host
from qcrl.episodes import ENGINES, Seed, Totals, run_episodes, run_in_mujoco
from qcrl.errors import UserError
from qcrl.policy import Interface, Policy
from qcrl.runs import Lane, Run, load
from qcrl.summaries import Summary, summarise

SECONDS_BETWEEN_LINES = 10.0


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation: one summary per lane, and one per setting over all its seeds."""

    engine: str
    deterministic: bool
    episodes: int
    """Per lane."""
    seed: int
    """The seed of the episodes, not of a training."""
    environment: dict[str, Any]
    versions: dict[str, str]
    per_lane: list[Summary]
    pooled: list[Summary]


def evaluate(
    run: str | Path | Run,
    episodes: int = 1000,
    engine: str = "jax",
    deterministic: bool = False,
    seed: int | None = None,
    probability: float | None = None,
    limit: float | None = None,
    *,
    env: Any = None,
    cost: str | CostFunction | None = None,
    episode_seed: int = 0,
    processes: int | None = None,
    progress: bool = True,
) -> Evaluation:
    """Run every policy of a run for a fixed number of whole, fresh episodes, and write what they cost to its folder.

    episodes: how many per lane.
    engine: jax or mujoco; an environment that runs in Python is its own engine, "host".
    deterministic: act by the mean of the policy's distribution instead of drawing from it.
    seed, probability, limit: only the lanes trained with these.
    env, cost: the environment and where its cost is, as for `train`, where the run was trained on one of your own that
        has no id.
    episode_seed: which episodes; the same ones for the same number.
    processes: for MuJoCo, as many as there are cores unless given; for environments in Python, none unless given.
    """
    run = run if isinstance(run, Run) else load(run)
    lanes = choose_lanes(run, seed, probability, limit)
    play = Player(run, trained_environment(run, env, cost), engine, deterministic, processes, progress)
    totals = play(lanes, episodes, "evaluate", episode_seed)
    result = Evaluation(
        play.engine,
        deterministic,
        episodes,
        episode_seed,
        Interface.of(play.env).as_dict(),
        versions(play.engine),
        [summarise([lane], [total]) for lane, total in zip(lanes, totals)],
        [summarise(*group) for group in _by_setting(lanes, totals)],
    )
    _write(run, result, lanes, totals)
    return result


class Player:
    """Runs episodes of a run's policies: which engine, which environment, and how the progress is shown."""

    def __init__(
        self,
        run: Run,
        env: Any = None,
        engine: str = "jax",
        deterministic: bool = False,
        processes: int | None = None,
        progress: bool = True,
    ) -> None:
        if engine not in (*ENGINES, "host"):
            raise UserError(f"there is no engine {engine!r}; the engines are {', '.join(ENGINES)}")
        if processes is not None and processes < 1:
            raise UserError(f"processes is {processes}, but at least one is needed; leave it out to use all cores")
        self.run = run
        self.env = env if isinstance(env, Host) else trained_environment(run, env)
        if isinstance(self.env, Host) and engine == "mujoco":
            raise UserError(f"{self.env.id} runs in Python as it is, not on the engine mujoco; leave the engine out")
        self.engine = "host" if isinstance(self.env, Host) else engine
        self.deterministic = deterministic
        self.processes = processes
        self.progress = progress

    def __call__(self, lanes: Sequence[Lane], episodes: int, purpose: str, episode_seed: int) -> list[Totals]:
        """Episodes for different purposes, or of different lanes, share no random numbers."""
        if episodes != int(episodes) or episodes < 1:
            raise UserError(f"episodes is {episodes}, but must be a whole number from 1 on; 1000 is a good start")
        if episode_seed < 0:
            raise UserError(f"episode_seed is {episode_seed}, but must be a whole number from 0 on")
        jobs: list[tuple[Policy, Seed]] = [
            (Policy.load(self.run.policy_file(lane)), [episode_seed, *f"{purpose} {lane}".encode()]) for lane in lanes
        ]
        for lane, (policy, _) in zip(lanes, jobs):
            if not policy.info.get("alive", True):
                text = f"warning: {lane} turned non-finite in training; its last good policy is run"
                Console(stderr=True, quiet=not self.progress).print(text, highlight=False, soft_wrap=True)
        compilation.use_cache()
        with _shown(f"{purpose} {self.env.id}", len(lanes) * episodes, self.progress) as advance:
            if self.engine == "mujoco":
                totals = run_in_mujoco(
                    jobs, cast(Environment, self.env), episodes, self.deterministic, advance, self.processes
                )
            else:
                totals = [
                    run_episodes(policy, self.env, episodes, seed, self.deterministic, advance, self.processes)
                    for policy, seed in jobs
                ]
        for lane, each in zip(lanes, totals):
            if not np.isfinite(each).all():
                raise UserError(f"{lane} has episodes whose return or cost is not a finite number; train it again")
        return totals


def choose_lanes(
    run: Run, seed: int | None = None, probability: float | None = None, limit: float | None = None
) -> list[Lane]:
    """All lanes with these values; a value left out leaves all."""
    wanted = {"seed": seed, "probability": probability, "limit": limit}
    for name, value in wanted.items():
        known = sorted({getattr(lane, name) for lane in run.lanes})
        if value is not None and value not in known:
            listed = ", ".join(f"{each:g}" for each in known)
            raise UserError(f"{run.path} has no {name} {value:g}; it was trained with {listed}")
    given = {name: value for name, value in wanted.items() if value is not None}
    lanes = [lane for lane in run.lanes if given.items() <= lane._asdict().items()]
    if not lanes:
        asked = ", ".join(f"{name} {value:g}" for name, value in given.items())
        raise UserError(f"{run.path} was not trained with {asked} together; see the lanes in its config.json")
    for lane in lanes:
        run.policy_file(lane)
    return lanes


def trained_environment(run: Run, env: Any = None, cost: str | CostFunction | None = None) -> Environment | Host:
    """The environment that the run was trained on: the one given, or the one of that id."""
    trained = run.config["environment"]
    given = env is not None
    cost = trained.get("cost") if cost is None else cost
    if not given and trained["id"] not in ENVIRONMENT_IDS:
        reason = "does not come with qcrl"
        try:
            env = None if cost is None else open_host(trained["id"], cost)
        except UserError as error:
            reason = f"cannot be made from its name ({error})"
        if env is None:
            raise UserError(f"{run.path} was trained on {trained['id']}, which {reason}; pass it as env= from Python")
    env = find(trained["id"] if env is None else env, cost)
    found = Interface.of(env).as_dict()
    for name, value in trained.items():
        renamed = given and isinstance(env, Host) and name in ("id", "horizon", "cost")
        if found.get(name) != value and not renamed:
            raise UserError(
                f"{run.path} was trained on an environment whose {name} is {value}, but here it is {found.get(name)}; "
                "use the environment of the training"
            )
    return env


def versions(engine: str) -> dict[str, str]:
    """What the episodes were run with."""
    own = {"mujoco": ["mujoco"], "host": ["gymnasium"]}.get(engine, [])
    packages = ["jax", "jaxlib", "numpy", "scipy", *own]
    device = jax.devices()[0] if engine == "jax" else jax.devices("cpu")[0]
    return {
        "qcrl": __version__,
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in packages},
        "device": f"{device.platform}: {device.device_kind}",
    }


def _by_setting(lanes: Sequence[Lane], totals: Sequence[Totals]) -> Iterator[tuple[list[Lane], list[Totals]]]:
    for setting in dict.fromkeys(lane[1:] for lane in lanes):
        chosen = [i for i, lane in enumerate(lanes) if lane[1:] == setting]
        yield [lanes[i] for i in chosen], [totals[i] for i in chosen]


def _write(run: Run, result: Evaluation, lanes: Sequence[Lane], totals: Sequence[Totals]) -> None:
    name = f"evaluation-{result.engine}{'-deterministic' if result.deterministic else ''}"
    write_json(run.path / f"{name}.json", dataclasses.asdict(result))
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow([*lanes[0]._fields, "episode", "return", "cost"])
    for lane, total in zip(lanes, totals):
        for number, (episode_return, cost) in enumerate(zip(total.returns.tolist(), total.costs.tolist())):
            rows.writerow([*lane, number, f"{episode_return:.8g}", f"{cost:.8g}"])
    _write_file(run.path / f"{name}.csv", text.getvalue())


def write_json(path: Path, content: dict[str, Any]) -> None:
    _write_file(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def _write_file(path: Path, text: str) -> None:
    try:
        write_file(path, text.encode())
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror or error}); mend that, and run it again") from error


@contextmanager
def _shown(text: str, total: int, enabled: bool) -> Iterator[Callable[[float], None]]:
    """A bar in a terminal, a line now and then elsewhere, on stderr."""
    console = Console(stderr=True, quiet=not enabled)
    done, last = 0.0, time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(None), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, disable=not (enabled and console.is_terminal))
    task = bar.add_task(text, total=total)

    def advance(more: float) -> None:
        nonlocal done, last
        done += more
        bar.update(task, completed=round(done))
        now = time.monotonic()
        if not console.is_terminal and now - last >= SECONDS_BETWEEN_LINES:
            last = now
            console.print(f"{text}: {round(done):,} of {total:,} episodes", highlight=False, soft_wrap=True)

    with bar:
        yield advance
