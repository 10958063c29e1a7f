"""A group: the lanes that one compiled program trains together; around it rows, checkpoints and resuming."""

import contextlib
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from qcrl.algos.algorithm import Algorithm
from qcrl.envs.base import Described
from qcrl.errors import UserError
from qcrl.kinds import Json
from qcrl.runs import checkpoints
from qcrl.runs.lane import Lane
from qcrl.sampling import compilation_cache, memory, program
from qcrl.sampling.program import Program, Workers
from qcrl.sampling.record import Metrics, State
from qcrl.training import claim, selection
from qcrl.training.callback import Onlooker
from qcrl.training.interruption import Aborted, BrokenOff, Interrupted, Interruption
from qcrl.training.pulse import watch
from qcrl.training.sinks.tables import Tables
from qcrl.training.sinks.terminal import Display
from qcrl.training.sinks.trackers import TensorBoard, WandB


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
            begins = restored is None
            del restored
            state = program.place(self.env, state, len(self.lanes))
            seeds = [lane.seed for lane in self.lanes]
            with contextlib.ExitStack() as stack:
                opened = stack.enter_context(
                    program.open_program(
                        self.algorithm,
                        self.env,
                        seeds,
                        state,
                        first,
                        self.workers,
                        self.display.say,
                        watch(self.tick, interruption.breakable),
                    )
                )
                sizes = info.get("sizes", {})
                self.tables = Tables(self.folder, self.lanes, opened.scalars, sizes, self.iterations, self.env.costs)
                stack.enter_context(contextlib.closing(self.tables))
                claim.write_config(self.folder, self.config)
                self._set_aside(first)
                self.tables.curves.append(TensorBoard(self.folder, f".{first}"))
                if wandb is not None:
                    self.tables.curves.append(WandB(self.folder, wandb, self.config))
                self.display.start(first, self.iterations)
                if begins:  # a lane that broke in it stays at such a number
                    for _ in range(-int(np.min(state.iteration))):  # episodes are spread out first
                        state, _ = opened.advance(state)
                self.advance(opened, state, first, checkpoint_interval, interruption)

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
        opened: Program,
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
                state, metrics = opened.advance(state)
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
            at_once = due or opened.waits
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
