"""Training: what was asked for is completed and checked, a folder is claimed, and a group of lanes is trained in it."""

from collections.abc import Sequence
from numbers import Real
from pathlib import Path
from typing import Any

from qcrl.algos import hyperparameters
from qcrl.algos.algorithm import Algorithm
from qcrl.algos.find import build, default_preset, find
from qcrl.envs.base import Description, suited_preset
from qcrl.envs.find import find as find_environment
from qcrl.envs.host.costs import Costs
from qcrl.errors import UserError
from qcrl.kinds import Json
from qcrl.runs.folder import Run
from qcrl.sampling import program
from qcrl.sampling.program import Workers
from qcrl.training import checks, claim, fit, selection
from qcrl.training.callback import Callback, Onlooker
from qcrl.training.checks import Asked
from qcrl.training.group import Group
from qcrl.training.sinks.terminal import Display
from qcrl.training.sinks.trackers import require_wandb


def train(
    algo: str | Algorithm,
    env: Any,
    constraint: Asked | Sequence[Asked],
    steps: float | None = None,
    seeds: int | Sequence[int] = 1,
    preset: str | None = None,
    out: str | Path | None = None,
    *,
    first_seed: int = 0,
    resume: bool = False,
    checkpoint_interval: float = 60.0,
    wandb: str | None = None,
    progress: bool = True,
    cost: Costs = None,
    workers: int = 0,
    step_timeout: float = 60.0,
    on_error: str = "stop",
    recent: int = 0,
    extra: Json | None = None,
    greeting: str = "",
    callback: Callback | None = None,
    **overrides: Any,
) -> Run:
    """Train all seeds under all constraints side by side, as one compiled program, and return the run.

    algo: name of an algorithm, module:Class of your own, or an instance, which brings its own hyper-parameters.
    env: id of an environment, qcrl's or Gymnasium's; a function that makes one; an instance, a vector environment, or a
        functional environment.
    constraint: one constraint; several that hold together, as in `a & b`; or a list of these, trained side by side.
    steps: environment steps per seed and constraint; whole iterations are trained, so it may be some more. The
        preset's own length unless given.
    seeds: how many, counted from `first_seed`, or a list of them.
    preset: which values the hyper-parameters have: host (the default where the environment runs in Python), fast (the
        default elsewhere), tuned, paper or authors.
    out: run folder; without it a new, timestamped one under runs/.
    resume: continue from the newest checkpoint of `out`; start there if it holds no run yet.
    checkpoint_interval: seconds between checkpoints.
    wandb: project of Weights & Biases to log to.
    cost: where the cost of an environment of your own is: a key of info, or a function of obs, action, next_obs, info.
        A dictionary of these gives several costs names, a list of keys names them after the keys. Without it, the third
        of six values that a step returns, or info["cost"]. Of qcrl's tasks: costs to report besides the constraints'.
    workers: processes that step environments which run in Python; 0 steps them in this one.
    step_timeout: seconds after which a worker that does not answer ends the training.
    on_error: stop, or restart an environment in Python that breaks; its episode then counts as cut off.
    recent: how many earlier policies of the last quarter of the training to keep, per lane, in policies/recent. Where
        some are asked for, nothing is chosen among them, whatever the hyper-parameter `candidates` says.
    extra: what else config.json shall hold.
    greeting: what to say once nothing stands in the way.
    callback: is called with every row of metrics.csv, as a dictionary, as soon as there is one. Where it returns true,
        the training is saved and ends there; so it does where it raises, and what it raised is raised again.
    overrides: hyper-parameters of the algorithm, by name. Several learning rates are trained side by side as well.
        `qcrl train ALGO --help` lists them with what they mean; a name that is none is an error that suggests another.
    """
    named = isinstance(algo, str)
    if isinstance(algo, str):
        find(algo)
    if callback is not None and not callable(callback):
        raise UserError(f"callback is {callback!r}, but must be a function of a row of metrics")
    overrides, rates = checks.learning_rates(overrides)
    environment = find_environment(env, cost)
    notes = [greeting] if greeting else []  # what is wrong is said first, and alone
    stepping = Workers(workers, step_timeout, on_error)
    program.check_workers(stepping)
    suited = suited_preset(environment)
    if isinstance(algo, str):
        preset = default_preset(algo, suited) if preset is None else preset
        algo = build(algo, preset)
        overrides = fit.kept_before(out, algo, preset, overrides) | overrides if resume else overrides
        if suited is not None and preset == suited:
            given = fit.chosen_before(out) | overrides if resume else overrides
            whole = checks.length(algo, preset, steps, environment)
            overrides = fit.complete(algo, environment, given, whole, stepping, notes.append)  # type: ignore[arg-type]
    elif preset is None and resume:
        preset = fit.preset_before(out)
    algorithm = hyperparameters.replace(algo, overrides)
    algorithm = checks.fit(algorithm, environment, overrides)
    if named and preset is not None and preset != suited:
        algorithm = fit.scheduled(algorithm, preset, checks.length(algorithm, preset, steps), overrides)
    choosing = algorithm.candidates > 1 and not recent
    recent = algorithm.candidates - 1 if choosing else recent
    lanes = checks.lanes(algorithm, constraint, seeds, first_seed, rates)
    environment = checks.reporting(environment, lanes)
    checks.check_costs(environment, lanes)
    steps = checks.length(algorithm, preset, steps)
    if not (isinstance(checkpoint_interval, Real) and checkpoint_interval >= 0):
        raise UserError(f"checkpoint_interval is {checkpoint_interval!r}, but must be a number of seconds from 0 on")
    program.check_environments(algorithm, environment, len(lanes), stepping)
    if wandb is not None:
        require_wandb()
    with Display(lanes, enabled=progress) as display:
        algorithm = checks.widen_window(algorithm, lanes, notes.append)
        checks.check_length(algorithm, steps, notes.append)
        checks.check_memory(algorithm, environment, len(lanes), notes.append)
        config = claim.describe(algorithm, preset, Description.of(environment), lanes, int(steps))
        config |= {"stepping": claim.stepping(stepping, checkpoint_interval), **(extra or {})}
        with claim.open_folder(out, config, resume, display.say) as folder:
            if config["environment"].get("cost") is not None:
                display.say(str(environment))
            for note in notes:
                display.say(note)
            environment = checks.drawing(environment, lanes)
            looking_on = Onlooker(lanes, callback)
            group = Group(algorithm, environment, lanes, folder, config, display, stepping, recent, looking_on)
            group.train(checkpoint_interval, wandb)
            if choosing:
                selection.keep_best(Run(folder), environment, stepping, group.continuing, display.say)
    return Run(folder)
