"""Which of a training's last policies is kept: the best of those that keep the constraints in fresh episodes.

A multiplier steers the outage of many policies in a row. The last one alone may lie on either side of the target.
"""

import math
import signal
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

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
STEPS_SHARE = 0.1
"""Steps of the fresh episodes, as a share of the training's."""
FEWEST = 20
"""With fewer episodes than this there is no choice."""


class Choice(NamedTuple):
    """A lane, and the policies that it has to choose from: the last one, then earlier ones."""

    lane: Lane
    policies: list[Path]
    episodes: int
    """That the choice may take."""


Turn = tuple[int, int]
"""Numbers of a choice, and of a candidate in it."""
Best = tuple[int, Totals]
"""The number of a candidate that was chosen, and its episodes."""
Play = Callable[[Sequence[Turn], int, int], list[Totals]]
"""Plays candidates, in so many episodes each, from a first one on."""
Score = Callable[[Totals], tuple[float, float]]
"""The lower, the better."""


def kept_at(iterations: int, count: int) -> set[int]:
    """The iterations after which so many earlier policies are kept, fewer where there are few iterations."""
    return {iterations - round(iterations * RECENT_SHARE * (n + 1) / count) for n in range(count)} - {iterations}


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
    between = {lane: policies for lane in run.lanes if len(policies := _candidates(run, lane)) > 1}
    # A long file: it is read once, and where there is something to choose.
    table = run.episodes if between else {}
    asked = [_choice(run, env, lane, policies, table) for lane, policies in between.items()]
    choices = [choice for choice in asked if choice is not None]
    for lane, policies, episodes in choices:
        say(f"{lane}: choosing among the last {len(policies)} policies, by {episodes} fresh episodes")
    counts = [at_first(each.episodes, len(each.policies)) for each in choices]
    best: list[tuple[Choice, Best]] = []
    # No lane's choice depends on another's; those with as many episodes play side by side.
    for count in dict.fromkeys(counts):
        own = [choice for choice, each in zip(choices, counts) if each == count]
        best += zip(own, _best_of(run, env, own, count, crew))
    for choice, found in best:  # once all have played: where a simulator breaks, nothing was replaced
        _adopt(run, env, choice, found, say)


def _best_of(run: Run, env: Described, choices: Sequence[Choice], count: int, crew: Crew) -> list[Best]:
    """`count`: episodes of each policy in the first round."""

    def fresh(turns: Sequence[Turn], episodes: int, first: int) -> list[Totals]:
        lanes = [choices[choice].lane for choice, _ in turns]
        policies = [run.policy_in(choices[choice].policies[number], choices[choice].lane) for choice, number in turns]
        # The same episodes for all of a lane, so that luck with them counts for none.
        jobs = [(policy, [lane.seed, *b"choose"]) for policy, lane in zip(policies, lanes)]
        return play(jobs, env, episodes, first=first, batch=count, crew=crew)

    scores = [partial(score, each.lane, env.costs) for each in choices]
    return choose(fresh, [len(each.policies) for each in choices], count, scores)


def _adopt(run: Run, env: Described, choice: Choice, best: Best, say: Callable[[str], None]) -> None:
    """Put the best policy in the place of the last one, which is kept beside the others."""
    (lane, policies, _), (number, measured) = choice, best
    last, chosen = policies[0], policies[number]
    iteration, after = (checkpoints.read_info(each)["iteration"] for each in (chosen, last))
    if number:
        last.replace(run.path / RECENT / f"{lane}-i{after}.safetensors")
    checkpoints.adopt(chosen if number else last, last, {"chosen_after": after})
    found = f"mean return {measured.returns.mean():.4g}, {', '.join(_outcome(lane, env.costs, measured))}"
    say(f"{lane}: that of iteration {iteration:,} is kept; in its {measured.returns.size} episodes: {found}")


def _candidates(run: Run, lane: Lane) -> list[Path]:
    """The last policy of a lane, and earlier ones if it has any to choose from."""
    last = run.policy_file(lane)
    info = checkpoints.read_info(last)
    if not info["alive"] or "chosen_after" in info or lane.constraint.ranged:
        return [last]
    late = kept_at(info["iteration"], run.config["algorithm"]["fields"]["candidates"] - 1)
    named = [run.path / RECENT / f"{lane}-i{iteration}.safetensors" for iteration in sorted(late)]
    return [last, *(path for path in named if path.exists())]


def _choice(run: Run, env: Described, lane: Lane, policies: list[Path], table: dict[str, np.ndarray]) -> Choice | None:
    """What a lane has to choose from, if there is anything to choose by: episodes, and that the constraint was felt.

    Felt it was where some of these episodes were outages; for other kinds of constraints, where they cost something.
    """
    own = rows_of(table, lane.columns)
    late = own[table["env_steps"][own] > (1 - RECENT_SHARE) * run.config["steps"]]
    # Where episodes are of one length their number is that of all lanes, and so is the program that plays them.
    counted = RECENT_SHARE * run.config["steps"] / env.horizon if env.fixed_length and late.size else late.size
    episodes = round(STEPS_SHARE / RECENT_SHARE * counted)
    measured = (each.measure(cost_column(table, env.costs, each.cost)[late]) for each in lane.constraints)
    return Choice(lane, policies, episodes) if episodes >= FEWEST and any(each > 0 for each in measured) else None


def at_first(episodes: int, candidates: int) -> int:
    """Episodes of each candidate in the first round, where all rounds together may have so many."""
    return max(1, round(episodes / math.ceil(math.log2(candidates)) / candidates))


def choose(fresh: Play, candidates: Sequence[int], count: int, scores: Sequence[Score]) -> list[Best]:
    """The best candidate of every choice, and its episodes: after each round the better half plays on, twice as long.

    candidates: how many each choice has.
    """
    left, played = [list(range(number)) for number in candidates], 0
    found: dict[Turn, Totals] = {}

    def better_half(choice: int, own: list[int]) -> list[int]:
        ranked = sorted(own, key=lambda number: scores[choice](found[choice, number])) if len(own) > 1 else own
        return ranked[: max(1, len(own) // 2)]

    while max(map(len, left)) > 1:
        turns = [(choice, number) for choice, own in enumerate(left) for number in own if len(own) > 1]
        for turn, more in zip(turns, fresh(turns, count, played)):
            found[turn] = joined([found[turn], more]) if played else more
        played, count = played + count, 2 * count
        left = [better_half(choice, own) for choice, own in enumerate(left)]
    # Not the best of all: those dropped early played few episodes, and may have been lucky.
    return [(own[0], found[choice, own[0]]) for choice, own in enumerate(left)]


def score(lane: Lane, costs: Sequence[str], measured: Totals) -> tuple[float, float]:
    """How far constraints are broken, as a share of what is allowed; then the return."""
    excess = 0.0
    for constraint in lane.constraints:
        own = measured.costs[:, costs.index(constraint.cost)]
        excess += max(0.0, constraint.suspect(own) - constraint.bound) / max(constraint.bound, 1e-9)
    return excess, -float(measured.returns.mean())


def _outcome(lane: Lane, costs: Sequence[str], measured: Totals) -> list[str]:
    return [
        f"{each.measured}{each.of_cost} {each.measure(measured.costs[:, costs.index(each.cost)]):.3g}"
        for each in lane.constraints
    ]
