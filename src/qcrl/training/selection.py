"""Which of a training's last policies is kept: the best of those that keep the constraints in fresh episodes.

A multiplier steers the outage of many policies in a row. The last one alone may lie on either side of the target.
"""

import math
import signal
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np

from qcrl.envs.base import Described
from qcrl.errors import UserError
from qcrl.runs import checkpoints
from qcrl.runs.folder import Run, cost_column, rows_of
from qcrl.runs.lane import Lane
from qcrl.sampling.play import can_play, play
from qcrl.sampling.play.host import Crew
from qcrl.sampling.play.seeds import Totals, joined
from qcrl.sampling.program import Workers
from qcrl.training.interruption import Interrupted

RECENT = "policies/recent"
"""Where earlier policies of a training are kept, if they are."""
RECENT_SHARE = 0.25
"""The last part of the training that they are of."""
EARLIER = 7
"""How many of them are candidates, beside the last policy."""
STEPS_SHARE = 0.1
"""Steps of the fresh episodes, as a share of the training's."""
FEWEST = 20
"""With fewer episodes than this there is no choice."""


Play = Callable[[int, int, int], Totals]
"""Plays a candidate, by its number, in so many episodes from a first one on."""
Score = Callable[[Totals], tuple[float, float]]
"""The lower, the better."""


def kept_at(iterations: int, count: int) -> set[int]:
    """The iterations after which so many earlier policies are kept."""
    return {iterations - round(iterations * RECENT_SHARE * (n + 1) / count) for n in range(count)}


def keep_best(run: Run, env: Described, workers: Workers, continuing: str, say: Callable[[str], None]) -> None:
    """Of every lane whose constraint was felt, put the best of its last policies in the place of the last one."""
    try:
        if can_play(env):
            with closing(Crew(workers.processes, workers.timeout)) as crew:
                _keep_best(run, env, crew, say)
    except KeyboardInterrupt as interrupt:
        raise Interrupted(continuing, signal.SIGINT) from interrupt
    except UserError as error:
        say(f"warning: the last policies are kept, without a choice: {error}")


def _keep_best(run: Run, env: Described, crew: Crew, say: Callable[[str], None]) -> None:
    for lane in run.lanes:
        last = run.policy_file(lane)
        info = checkpoints.read_info(last)
        late = kept_at(info["iteration"], EARLIER)
        named = [run.path / RECENT / f"{lane}-i{iteration}.safetensors" for iteration in sorted(late)]
        earlier = [path for path in named if path.exists()]
        if not earlier or not info["alive"] or "chosen_after" in info or lane.constraint.ranged:
            continue
        rows = _late_rows(run, lane)
        episodes = round(STEPS_SHARE / RECENT_SHARE * rows.size)
        if episodes < FEWEST or not _felt(run, lane, env, rows):
            continue
        policies = [last, *earlier]
        say(f"{lane}: choosing among the last {len(policies)} policies, by {episodes} fresh episodes")
        fresh = partial(_play, run, env, lane, crew, policies)
        best, measured = choose(fresh, len(policies), episodes, partial(score, lane, env.costs))
        chosen = checkpoints.read_info(policies[best])["iteration"]
        if best:
            last.replace(run.path / RECENT / f"{lane}-i{info['iteration']}.safetensors")
        checkpoints.adopt(policies[best], last, {"chosen_after": info["iteration"]})
        found = f"mean return {measured.returns.mean():.4g}, {', '.join(_outcome(lane, env.costs, measured))}"
        say(f"{lane}: that of iteration {chosen:,} is kept; in its {measured.returns.size} episodes: {found}")


def _play(
    run: Run, env: Described, lane: Lane, crew: Crew, policies: Sequence[Path], number: int, count: int, first: int
) -> Totals:
    # The same episodes for all, so that luck with them counts for none.
    seed = [lane.seed, *b"choose"]
    return play([(run.policy_in(policies[number], lane), seed)], env, count, first=first, crew=crew)[0]


def choose(fresh: Play, candidates: int, episodes: int, score: Score) -> tuple[int, Totals]:
    """The number of the best candidate, and its episodes: in every round the better half plays on."""
    left, rounds = list(range(candidates)), math.ceil(math.log2(candidates))
    found: dict[int, Totals] = {}
    while len(left) > 1:
        count = max(1, round(episodes / rounds / len(left)))
        for number in left:
            known = [found[number]] if number in found else []
            more = fresh(number, count, sum(each.returns.size for each in known))
            found[number] = joined([*known, more])
        left = sorted(left, key=lambda number: score(found[number]))[: len(left) // 2]
    return left[0], found[left[0]]  # not of all: those dropped early played few episodes, and may have been lucky


def score(lane: Lane, costs: Sequence[str], measured: Totals) -> tuple[float, float]:
    """How far constraints are broken, as a share of what is allowed; then the return."""
    excess = 0.0
    for constraint in lane.constraints:
        own = measured.costs[:, costs.index(constraint.cost)]
        excess += max(0.0, constraint.suspect(own) - constraint.bound) / max(constraint.bound, 1e-9)
    return excess, -float(measured.returns.mean())


def _late_rows(run: Run, lane: Lane) -> np.ndarray:
    """Which rows of episodes.csv are of a lane, in the part of the training that candidates are of."""
    table = run.episodes
    rows = rows_of(table, lane.columns)
    return rows[table["env_steps"][rows] > (1 - RECENT_SHARE) * run.config["steps"]]


def _felt(run: Run, lane: Lane, env: Described, rows: np.ndarray) -> bool:
    """Whether there is anything to choose by: outages in these episodes; for other kinds of constraints, costs."""
    table = run.episodes
    return any(each.measure(cost_column(table, env.costs, each.cost)[rows]) > 0 for each in lane.constraints)


def _outcome(lane: Lane, costs: Sequence[str], measured: Totals) -> list[str]:
    return [
        f"{each.measured}{each.of_cost} {each.measure(measured.costs[:, costs.index(each.cost)]):.3g}"
        for each in lane.constraints
    ]
