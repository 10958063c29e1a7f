"""The training loop: one compiled program iterates all lanes; around it rows, checkpoints and resuming."""

import contextlib
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qcrl.algos import hyperparameters
from qcrl.algos.algorithm import Algorithm
from qcrl.algos.find import HOST_PRESET, build, default_preset, find
from qcrl.envs.base import Described, Description
from qcrl.envs.find import find as find_environment
from qcrl.envs.host.costs import Costs
from qcrl.envs.host.environment import HostEnv
from qcrl.errors import UserError
from qcrl.kinds import Json
from qcrl.runs import checkpoints
from qcrl.runs.folder import Run
from qcrl.runs.lane import Lane
from qcrl.sampling import compilation_cache, memory, program
from qcrl.sampling.host import Watch
from qcrl.sampling.program import Workers
from qcrl.sampling.record import Metrics, State
from qcrl.training import checks, claim, fit, selection
from qcrl.training.callback import Callback, Onlooker
from qcrl.training.checks import Asked
from qcrl.training.interruption import Aborted, BrokenOff, Interrupted, Interruption
from qcrl.training.sinks.tables import Tables
from qcrl.training.sinks.terminal import Display
from qcrl.training.sinks.trackers import TensorBoard, WandB, require_wandb


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
        none are asked for, the preset host keeps some, and chooses among them and the last one by fresh episodes.
    extra: what else config.json shall hold.
    greeting: what to say once nothing stands in the way.
    callback: is called with every row of metrics.csv, as a dictionary, as soon as there is one. Where it returns true,
        the training is saved and ends there; so it does where it raises, and what it raised is raised again.
    overrides: hyper-parameters of the algorithm, by name. Several learning rates are trained side by side as well.
    """
    if isinstance(algo, str):
        find(algo)
    overrides, rates = checks.learning_rates(overrides)
    environment = find_environment(env, cost)
    notes = [greeting] if greeting else []  # what is wrong is said first, and alone
    if isinstance(algo, str):
        preset = default_preset(algo, isinstance(environment, HostEnv)) if preset is None else preset
        algo = build(algo, preset)
        if preset == HOST_PRESET and isinstance(environment, HostEnv):
            given = fit.chosen_before(out) | overrides if resume else overrides
            whole = checks.length(algo, preset, steps, environment)
            overrides = fit.complete(algo, environment, given, whole, workers, notes.append)
    choosing = preset == HOST_PRESET and isinstance(environment, HostEnv) and not recent
    recent = selection.EARLIER if choosing else recent
    algorithm = hyperparameters.replace(algo, overrides)
    algorithm = checks.fit(algorithm, environment, overrides)
    lanes = checks.lanes(algorithm, constraint, seeds, first_seed, rates)
    environment = checks.reporting(environment, lanes)
    checks.check_costs(environment, lanes)
    steps = checks.length(algorithm, preset, steps)
    if not checkpoint_interval >= 0:
        raise UserError(f"checkpoint_interval is {checkpoint_interval}, but must be a number of seconds from 0 on")
    stepping = Workers(workers, step_timeout, on_error)
    program.check_environments(algorithm, environment, len(lanes), stepping)
    if wandb is not None:
        require_wandb()
    with Display(lanes, enabled=progress) as display:
        algorithm = checks.widen_window(algorithm, lanes, notes.append)
        checks.check_length(algorithm, steps, notes.append)
        checks.check_memory(algorithm, environment, len(lanes), notes.append)
        config = claim.describe(algorithm, preset, Description.of(environment), lanes, int(steps)) | (extra or {})
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
                selection.keep_best(Run(folder), environment, workers, group.continuing, display.say)
    return Run(folder)


class Group:
    """The lanes that one compiled program trains together, and the files of their run."""

    tables: Tables

    def __init__(
        self,
        algorithm: Algorithm,
        env: Described,
        lanes: Sequence[Lane],
        folder: Path,
        config: Json,
        display: Display,
        workers: Workers = Workers(),  # noqa: B008
        recent: int = 0,
        onlooker: Onlooker | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.env = env
        self.workers = workers
        self.lanes = lanes
        self.folder = folder
        self.config = config
        self.display = display
        self.continuing = claim.resume_command(folder, config)
        self.iterations = -(-config["steps"] // algorithm.steps_per_iteration)
        self.kept = selection.kept_at(self.iterations, recent)
        self.alive = np.ones(len(lanes), bool)
        self.onlooker = onlooker or Onlooker(lanes)
        self.mark = 0.0
        """When the last iteration was logged, in seconds."""

    def init(self) -> State:
        """The state of all lanes before the first iteration. A lane's random key comes from its seed alone."""
        numbers = lambda values: jnp.array(list(values), jnp.float32)
        constraints = jax.tree.map(lambda *each: numbers(each), *(lane.constraints for lane in self.lanes))
        seeds = jnp.array([lane.seed for lane in self.lanes], jnp.uint32)
        state = jax.vmap(lambda seed, own: self.algorithm.init(self.env, jax.random.key(seed), own))(seeds, constraints)
        state = state._replace(probability=numbers(lane.probability for lane in self.lanes))
        rates = [lane.learning_rate for lane in self.lanes]
        return state if None in rates else state._replace(learning_rate=numbers(rates))

    def train(self, checkpoint_interval: float, wandb: str | None) -> None:
        """From the newest checkpoint, or from the start, to the last iteration."""
        compilation_cache.use_cache()
        shapes = jax.eval_shape(self.init)
        memory.require_memory(memory.tree_bytes(shapes), "the lanes", len(jax.local_devices()))
        restored, info = checkpoints.load_checkpoint(self.folder / "checkpoints", shapes, self.display.say) or (
            None,
            {},
        )
        first = info.get("iteration", 0)
        if restored is not None:
            self.alive = restored.alive
            self.display.say(f"{self.folder} continues after iteration {first:,} of {self.iterations:,}")
            self.save_policies(restored, only_lost=True)
        elif any((self.folder / "policies").glob("*.safetensors")):
            raise UserError(
                f"{self.folder} has policies but no checkpoint any more, so it cannot go on, and to begin anew would "
                "replace them; put the checkpoints back, or give another --out"
            )
        elif (self.folder / "metrics.csv").exists():
            self.display.say(f"{self.folder} holds no checkpoint, so training starts from the beginning")
        if first >= self.iterations or not self.alive.any():
            return
        with Interruption(self.display.say) as interruption:
            lanes = "1 lane" if len(self.lanes) == 1 else f"{len(self.lanes)} lanes"
            self.display.stage(f"compiling {self.config['algorithm']['name']} for {lanes}")
            # What is donated must not be shared. Within the program a copy costs nothing.
            fresh = lambda tree: jax.tree.map(jnp.copy, tree)
            state = jax.jit(lambda: fresh(self.init()))() if restored is None else fresh(restored)
            del restored
            state = program.place(self.env, state, len(self.lanes))
            seeds = [lane.seed for lane in self.lanes]
            with contextlib.ExitStack() as stack:
                advance, scalars = stack.enter_context(
                    program.open_program(
                        self.algorithm,
                        self.env,
                        seeds,
                        state,
                        first,
                        self.workers,
                        self.display.say,
                        Watch(self.tick, interruption.breakable),
                    )
                )
                sizes = info.get("sizes", {})
                self.tables = Tables(self.folder, self.lanes, scalars, sizes, self.iterations, self.env.costs)
                stack.enter_context(contextlib.closing(self.tables))
                claim.write_config(self.folder, self.config)
                self._set_aside(first)
                self.tables.curves.append(TensorBoard(self.folder, f".{first}"))
                if wandb is not None:
                    self.tables.curves.append(WandB(self.folder, wandb, self.config))
                self.display.start(first, self.iterations)
                for _ in range(-int(np.min(state.iteration))):  # episodes are spread out first
                    state, _ = advance(state)
                self.advance(advance, state, first, checkpoint_interval, interruption)

    def _set_aside(self, iteration: int) -> None:
        """What was found out about the policies so far shall not be taken for a result of those to come."""
        kinds = ("evaluation-*", "certificate-*", "policies/promised-*")
        found = [path for kind in kinds for path in self.folder.glob(kind)]
        if found:
            earlier = self.folder / "earlier" / f"iteration-{iteration}"
            earlier.mkdir(parents=True, exist_ok=True)
            for path in found:
                path.replace(earlier / path.name)
            self.display.say(f"evaluations and certificates so far are of earlier policies, and now in {earlier}")

    def advance(
        self,
        advance: Callable[[State], tuple[State, Metrics]],
        state: State,
        first: int,
        checkpoint_interval: float,
        interruption: Interruption,
    ) -> None:
        """Iterate to the end. The device works on the next iteration while the last one is logged."""
        pending, pause, kept_at = None, 0.0, first
        saved = self.mark = time.monotonic()
        for iteration in range(first + 1, self.iterations + 1):
            try:
                state, metrics = advance(state)
            except (UserError, KeyboardInterrupt) as error:  # an environment broke, before the state was touched
                if isinstance(error, Aborted):
                    raise
                self.log([] if pending is None else [(iteration - 1, pending)])
                if kept_at < iteration - 1 or isinstance(error, BrokenOff):
                    self.save(iteration - 1, state)
                if isinstance(error, KeyboardInterrupt):
                    raise Interrupted(self.continuing, interruption.requested or signal.SIGINT) from error
                kept = f"saved up to iteration {iteration - 1}, to continue with: {self.continuing}"
                raise type(error)(f"{error}; {kept if iteration > 1 else 'nothing was trained yet'}") from error
            if iteration in self.kept:
                self.save_policies(state._replace(store=()), folder=selection.RECENT, suffix=f"-i{iteration}")
            due = time.monotonic() - saved >= max(checkpoint_interval, pause) or iteration == self.iterations
            rows: list[tuple[int, Metrics]] = [] if pending is None else [(iteration - 1, pending)]
            at_once = due or isinstance(self.env, HostEnv)  # where Python steps, nothing is worked on meanwhile
            self.log([*rows, (iteration, metrics)] if at_once else rows)
            pending = None if at_once else metrics
            asked, broken = interruption.requested, self.onlooker.stops or not self.alive.any()
            if pending is not None and (asked or broken):
                self.log([(iteration, pending)])
                pending = None
            if due or asked or broken:
                begun = time.monotonic()
                self.save(iteration, state)
                kept_at = iteration
                saved = self.mark = time.monotonic()
                if checkpoint_interval:  # a large replay shall not be written most of the time
                    pause = 10 * (saved - begun)
            if asked and iteration < self.iterations:
                raise Interrupted(self.continuing, asked)
            if broken:
                break
        if self.onlooker.raised is not None:
            raise self.onlooker.raised

    def tick(self, share: float) -> None:
        """So much of the running iteration is done."""
        self.display.within(share, self.algorithm.steps_per_iteration * len(self.lanes))

    def log(self, rows: Sequence[tuple[int, Metrics]]) -> None:
        """Write and show some iterations, once all of them are done: they share the time since the last ones."""
        if not rows:
            return
        while not rows[-1][1].scalars["alive"].is_ready():  # type: ignore[attr-defined]
            time.sleep(0.002)  # not block_until_ready: signals are only heard between two lines of Python
        now = time.monotonic()
        speed = len(rows) * len(self.lanes) * self.algorithm.steps_per_iteration / (now - self.mark)
        self.mark = now
        for iteration, metrics in rows:
            scalars, episodes = jax.device_get(metrics)
            for lane, before, after in zip(self.lanes, self.alive, scalars["alive"]):
                if before and not after:
                    self.display.say(
                        f"{lane} turned non-finite in iteration {iteration}: it is frozen with its last good policy"
                    )
            self.alive = scalars["alive"]
            self.tables.log(scalars, episodes, speed)
            self.onlooker.see(scalars, speed)
            if self.alive.any():
                self.display.update(iteration, scalars, speed)

    def save(self, iteration: int, state: State) -> None:
        """Policies for users, and a checkpoint that a resumed run continues from."""
        state = checkpoints.to_numpy(state)
        sizes = self.tables.sync()
        # Policies last: where there are some, there is a checkpoint that they can be written from again.
        checkpoints.save_checkpoint(self.folder / "checkpoints", iteration, state, {"sizes": sizes})
        self.save_policies(state)

    def save_policies(self, state: State, only_lost: bool = False, folder: str = "policies", suffix: str = "") -> None:
        """What `qcrl.load` finds; of a finished run only those that are missing, torn or older than its checkpoint."""
        state = checkpoints.to_numpy(state)
        policies = self.folder / folder
        policies.mkdir(parents=True, exist_ok=True)
        for index, lane in enumerate(self.lanes):
            own = jax.tree.map(lambda leaf, index=index: leaf[index], state)
            info = {
                **lane.as_dict(),
                "iteration": int(own.iteration),
                "env_steps": int(own.env_steps),
                "alive": bool(own.alive),
                "algorithm": self.config["algorithm"],
                "environment": self.config["environment"],
                "forward": self.algorithm.deployment(self.env, lane.constraints),
            }
            path = policies / f"{lane}{suffix}.safetensors"
            if not (only_lost and checkpoints.is_whole(path, info)):
                checkpoints.write_tree(path, self.algorithm.policy_state(self.env, own), info)
