"""Fixed-count evaluation of a run: what its policies return and cost, with intervals, as JSON, CSV and a result."""

import csv
import dataclasses
import io
import json
import platform
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import jax
import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from qcrl.envs import ENVIRONMENT_IDS
from qcrl.envs.base import Described, Description
from qcrl.envs.find import find
from qcrl.envs.host import costs
from qcrl.envs.host.costs import Costs
from qcrl.errors import UserError
from qcrl.evaluation.summary import Results, Summary, summarise
from qcrl.kinds import Json
from qcrl.named import require_trust
from qcrl.output import console
from qcrl.runs.checkpoints import write_file
from qcrl.runs.folder import Run, check_format, load
from qcrl.runs.jax_policy import JaxPolicy
from qcrl.runs.lane import Lane, Numbers, by_setting
from qcrl.sampling import compilation_cache
from qcrl.sampling.play import Totals, engine_of, play
from qcrl.sampling.play.host import Crew
from qcrl.sampling.play.seeds import Played, Seed
from qcrl.stats import check_episodes
from qcrl.version import __version__

SECONDS_BETWEEN_LINES = 10.0
BATCH, BATCH_ON_ACCELERATORS = {"cpu": 500}, 20_000
"""Episodes of a batch where many are run for one purpose."""


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation: one summary per lane, and one per setting over all its seeds."""

    engine: str
    deterministic: bool
    episodes: int
    """Per lane."""
    seed: int
    """The seed of the episodes, not of a training."""
    environment: Json
    versions: dict[str, str]
    per_lane: list[Summary]
    pooled: list[Summary]

    def __repr__(self) -> str:
        policies = "1 policy" if len(self.per_lane) == 1 else f"{len(self.per_lane)} policies"
        of = f"{policies} on {self.environment['id']} ({self.engine}), {self.episodes:,} episodes each"
        found = [f"outage {each.outage:.4g}, return {each.mean_return:.4g}" for each in self.pooled]
        return f"<Evaluation of {of}: {'; '.join(found)}>"


def evaluate(
    run: str | Path | Run,
    episodes: int = 1000,
    engine: str = "jax",
    deterministic: bool = False,
    seed: int | None = None,
    probability: Numbers = None,
    limit: Numbers = None,
    *,
    promised: bool = False,
    env: object = None,
    cost: Costs = None,
    episode_seed: int = 0,
    processes: int | None = None,
    progress: bool = True,
) -> Evaluation:
    """Run every policy of a run for a fixed number of whole, fresh episodes, and write what they cost to its folder.

    episodes: how many per lane.
    engine: jax or mujoco; an environment that runs in Python is its own engine, "host".
    deterministic: act by the mean of the policy's distribution instead of drawing from it.
    seed, probability, limit: only the lanes trained with these, one or several. A policy that was trained for ranges is
        judged at these, or at the ends and the middle of the ranges.
    promised: the policies that promises were certified of, judged at these, instead of those of the lanes. The other
        arguments then choose among certificates.
    env, cost: the environment and where its cost is, as for `train`, where the run was trained on one of your own that
        has no id.
    episode_seed: which episodes; the same ones for the same number.
    processes: for MuJoCo, as many as there are cores unless given; for environments in Python, none unless given.
    """
    if episode_seed < 0:
        raise UserError(f"episode_seed is {episode_seed}, but must be a whole number from 0 on")
    run = run if isinstance(run, Run) else load(run)
    play = Player(run, trained_environment(run, env, cost), engine, deterministic, processes, progress)
    if promised:
        totals = play.promised(episodes, episode_seed, probability, limit, seed)
        lanes = list(totals)
    else:
        lanes = choose_lanes(run, seed, probability, limit)
        totals = play(lanes, episodes, "evaluate", episode_seed)
    result = Evaluation(
        play.engine,
        deterministic,
        episodes,
        episode_seed,
        Description.of(play.env).as_dict(),
        versions(play.engine),
        [summarise([lane], [totals[lane]]) for lane in lanes],
        [summarise(group, [totals[lane] for lane in group]) for group in by_setting(lanes)],
    )
    _write(run, result, totals, "-promised" if promised else "")
    return result


class Player:
    """Runs episodes of a run's policies: which engine, which environment, and how the progress is shown."""

    def __init__(
        self,
        run: Run,
        env: Described,
        engine: str = "jax",
        deterministic: bool = False,
        processes: int | None = None,
        progress: bool = True,
        step_timeout: float | None = None,
    ) -> None:
        """step_timeout: seconds to wait for a worker; as in the training unless given."""
        if processes is not None and processes < 1:
            raise UserError(f"processes is {processes}, but at least one is needed; leave it out to use all cores")
        self.run = run
        self.env = env
        self.engine = engine_of(env, engine)
        self.deterministic = deterministic
        self.processes = processes
        self.progress = progress
        kept = run.config.get("stepping", {}).get("step_timeout", 60.0)
        timeout = kept if step_timeout is None else step_timeout
        self.crew = Crew((processes or 0) if self.engine == "host" else 0, timeout)
        weakref.finalize(self, self.crew.close)

    def __call__(self, lanes: Sequence[Lane], episodes: int, purpose: str, episode_seed: int) -> dict[Lane, Results]:
        """Episodes for different purposes, or of different lanes, share no random numbers."""
        check_episodes(episodes)
        policies = [self.run.policy_of(lane) for lane in lanes]
        seeds: list[Seed] = [[episode_seed, *f"{purpose} {lane}".encode()] for lane in lanes]
        totals = self.play(policies, episodes, seeds, purpose)
        return {lane: results_of(lane, self.env, each) for lane, each in zip(lanes, totals)}

    @property
    def batch(self) -> int:
        """Episodes that one compiled program runs; other numbers of them need a program of their own."""
        return batch_of(self.engine)

    def play_one(self, policy: JaxPolicy, episodes: int, seed: Seed, purpose: str, first: int = 0) -> Totals:
        """So many episodes of one policy, in batches where there are many."""
        return self.play([policy], episodes, [seed], purpose, first, self.batch)[0]

    def promised(
        self, episodes: int, episode_seed: int, probability: Numbers, limit: Numbers, seed: Numbers
    ) -> dict[Lane, Results]:
        """Episodes of the certified policies, each judged at its promises."""
        found = self.run.promises(probability, limit, seed)
        chosen = list(dict.fromkeys((each.file, each.lane) for each in found))
        policies = [self.run.policy_in(*each) for each in chosen]
        seeds: list[Seed] = [[episode_seed, *f"evaluate {policy.info['name']}".encode()] for policy in policies]
        totals = dict(zip(chosen, self.play(policies, episodes, seeds, "evaluate")))
        judged = {dataclasses.replace(each.lane, probability=each.promise): totals[each[:2]] for each in found}
        return {lane: results_of(lane, self.env, each) for lane, each in judged.items()}

    def play(
        self,
        policies: Sequence[JaxPolicy],
        episodes: int,
        seeds: Sequence[Seed],
        purpose: str,
        first: int = 0,
        batch: int | None = None,
    ) -> list[Totals]:
        """So many episodes of each policy, from number `first` of its seed on."""
        check_episodes(episodes)
        for policy in policies:
            name = policy.info["name"]
            if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(policy.state)):
                raise UserError(f"{name} has weights that are not finite numbers; train it again")
            if not policy.info.get("alive", True):
                text = f"warning: {name} turned non-finite in training; its last good policy is run"
                console(self.progress).print(text, highlight=False, soft_wrap=True)
        compilation_cache.use_cache()
        jobs: list[tuple[Played, Seed]] = list(zip(policies, seeds))
        with _shown(f"{purpose} {self.env.id}", len(jobs) * episodes, self.progress) as advance:
            how = self.engine, self.deterministic, advance, self.processes
            return play(jobs, self.env, episodes, *how, first, batch, self.crew)


def batch_of(engine: str) -> int:
    return BATCH.get(jax.default_backend(), BATCH_ON_ACCELERATORS) if engine == "jax" else 1


def results_of(lane: Lane, env: Described, totals: Totals) -> Results:
    """With the cost that the lane's constraint is about, and all costs by name."""
    every = dict(zip(env.costs, totals.costs.T))
    results = Results(totals.returns, every[lane.constraint.cost], every)
    if not (np.isfinite(totals.returns).all() and np.isfinite(totals.costs).all()):
        raise UserError(f"{lane} has episodes whose return or cost is not a finite number; train it again")
    return results


def choose_lanes(run: Run, seed: int | None = None, probability: Numbers = None, limit: Numbers = None) -> list[Lane]:
    """All lanes with these values; a value left out leaves all. Lanes trained for ranges become those asked for."""
    ranged = run.lanes[0].constraint.ranged
    lanes = run.chosen(seed=seed) if ranged else run.chosen(seed=seed, probability=probability, limit=limit)
    for lane in lanes:
        run.policy_file(lane)
    return [judged for lane in lanes for judged in lane.judged(limit, probability)] if ranged else lanes


def trained_environment(run: Run, env: object = None, cost: Costs = None) -> Described:
    """The environment that the run was trained on: the one given, or the one of that id."""
    check_format(run.path, run.config)
    trained = run.config["environment"]
    given = env is not None
    if not given:
        require_trust(trained["id"], "environment", calls=True)
    if cost is None:
        costs.require_trust(trained.get("cost"))
        cost = trained.get("cost")
    if not given and trained["id"] not in ENVIRONMENT_IDS:
        reason, advice = "does not come with qcrl", "pass it as env= from Python"
        try:
            env = None if cost is None else find(trained["id"], cost)
        except UserError as error:
            reason = f"cannot be made from its name ({error})"
            advice = f"run this where it can be imported, or {advice}"
        if env is None:
            raise UserError(f"{run.path} was trained on {trained['id']}, which {reason}; {advice}")
    found = find(trained["id"] if env is None else env, cost)
    if hasattr(found, "with_costs"):
        found = found.with_costs(trained["costs"])
    description = Description.of(found).as_dict()
    # Another object of the same kind may well be called something else.
    renamed = ("id", "horizon", "cost") if given and "cost" in description else ()
    for name, value in trained.items():
        if description.get(name) != value and name not in renamed:
            raise UserError(
                f"{run.path} was trained on an environment whose {name} is {value}, but here it is "
                f"{description.get(name)}; use the environment of the training"
            )
    return found


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


def _write(run: Run, result: Evaluation, totals: dict[Lane, Results], suffix: str = "") -> None:
    name = f"evaluation-{result.engine}{'-deterministic' if result.deterministic else ''}{suffix}"
    write_json(run.path / f"{name}.json", dataclasses.asdict(result))
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    names = result.environment["costs"]
    further = names if len(names) > 1 else []
    rows.writerow([*next(iter(totals)).columns, "episode", "return", "cost", *(f"cost_{name}" for name in further)])
    for lane, total in totals.items():
        columns = [total.returns, total.costs, *(total.every[name] for name in further)]
        for number, sums in enumerate(zip(*(column.tolist() for column in columns))):
            rows.writerow([*lane.columns.values(), number, *(f"{each:.8g}" for each in sums)])
    _write_file(run.path / f"{name}.csv", text.getvalue())


def write_json(path: Path, content: Json) -> None:
    _write_file(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def _write_file(path: Path, text: str) -> None:
    try:
        write_file(path, text.encode())
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror or error}); mend that, and run it again") from error


@contextmanager
def _shown(text: str, total: int, enabled: bool) -> Iterator[Callable[[float], None]]:
    """A bar in a terminal, a line now and then elsewhere, on stderr."""
    shown = console(enabled)
    done, last = 0.0, time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(None), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=shown, disable=not (enabled and shown.is_terminal))
    task = bar.add_task(text, total=total)

    def advance(more: float) -> None:
        nonlocal done, last
        done += more
        bar.update(task, completed=round(done))
        now = time.monotonic()
        if not shown.is_terminal and now - last >= SECONDS_BETWEEN_LINES:
            last = now
            shown.print(f"{text}: {round(done):,} of {total:,} episodes", highlight=False, soft_wrap=True)

    with bar:
        yield advance
