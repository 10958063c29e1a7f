"""Host environments in worker processes. One that dies or hangs is reported by name, and does not hang training."""

import os
import signal
import time
from collections.abc import Callable
from itertools import pairwise
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import NamedTuple, NoReturn

import numpy as np
from jaxtyping import Float

from qcrl.envs.host import boundary
from qcrl.envs.host.costs import CostSource
from qcrl.envs.host.fleet import Local, Outcome, Seeds
from qcrl.envs.host.restarting import Restarting
from qcrl.errors import BrokenEnvironment, UserError, WorkerFailure
from qcrl.kinds import GymEnv, Tree

STARTUP = 60.0
"""Seconds that a worker has to import and make its environments, if the timeout is not longer."""
SILENCE = 5.0
"""After so many seconds without an answer, a worker is named in a warning."""


class Worker(NamedTuple):
    """A process and the environments it has."""

    name: str
    process: BaseProcess
    connection: Connection
    places: slice


class Workers:
    """A fleet spread over processes, each of which steps its share one after the other."""

    def __init__(
        self,
        make: Callable[[], GymEnv],
        source: CostSource,
        env_id: str,
        count: int,
        workers: int,
        timeout: float,
        say: Callable[[str], None],
        masks: int = 0,
        restart: bool = False,
    ) -> None:
        import cloudpickle  # comes with Gymnasium, which training on a device does without

        self.timeout = timeout
        self.say = say
        self.steps = 0
        context = get_context("spawn")  # fresh interpreters: forking after JAX has started can deadlock
        bounds = np.linspace(0, count, min(workers, count) + 1).astype(int)
        self.workers: list[Worker] = []
        for i, (first, last) in enumerate(pairwise(bounds)):
            ours, theirs = context.Pipe()
            job = cloudpickle.dumps((make, source, env_id, int(first), int(last - first), masks, restart))
            process = context.Process(target=serve, args=(theirs, job), name=f"qcrl-worker-{i}", daemon=True)
            name = f"worker {i} (environments {first} to {last - 1} of {env_id})"
            self.workers.append(Worker(name, process, ours, slice(first, last)))
            process.start()
            theirs.close()
        self._replies(max(timeout, STARTUP))

    def reset(self, seeds: Seeds) -> Float[np.ndarray, "env obs"]:
        return np.concatenate(self._ask("reset", seeds))

    def step(self, actions: np.ndarray, seeds: Seeds | None = None) -> Outcome:
        self.steps += 1
        replies = self._ask("step", actions, seeds)
        return Outcome(*(np.concatenate(column) for column in zip(*replies)))

    def restarts(self) -> int:
        """How often environments were made anew, in all processes."""
        return sum(self._ask("restarts"))

    def close(self) -> None:
        for worker in self.workers:
            worker.connection.close()  # a worker ends when nobody listens
        for worker in self.workers:
            worker.process.join(1.0)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()

    def _ask(self, method: str, *columns: np.ndarray | Seeds | None) -> list[Tree]:
        for worker in self.workers:
            try:
                worker.connection.send((method, [None if x is None else x[worker.places] for x in columns]))
            except OSError:
                self._died(worker)
        return self._replies(self.timeout)

    def _replies(self, timeout: float) -> list[Tree]:
        """The answers of all workers, in their order."""
        replies: dict[int, Tree] = {}
        start, warned = time.monotonic(), False
        while len(replies) < len(self.workers):
            waiting = {i: worker for i, worker in enumerate(self.workers) if i not in replies}
            ready = connection.wait(
                [x for w in waiting.values() for x in (w.connection, w.process.sentinel)], min(SILENCE, timeout)
            )
            silent = time.monotonic() - start
            names = " and ".join(worker.name for worker in waiting.values())
            if not ready and silent >= timeout:
                raise WorkerFailure(
                    f"{names} gave no answer for {silent:.0f} s, at step {self.steps}: it hangs, "
                    "or a step takes longer than step_timeout allows; raise step_timeout, or mend the environment"
                )
            if not ready and not warned:
                self.say(f"warning: {names} has been silent for {silent:.0f} s; waiting for {timeout:g} s at most")
                warned = True
            for i, worker in waiting.items():
                if worker.connection in ready:
                    replies[i] = self._receive(worker)
                elif worker.process.sentinel in ready:
                    self._died(worker)
        return [replies[i] for i in range(len(self.workers))]

    def _receive(self, worker: Worker) -> Tree:
        try:
            error, reply = worker.connection.recv()
        except (EOFError, OSError):
            self._died(worker)
        if error is not None:
            raise BrokenEnvironment(error)
        return reply

    def _died(self, worker: Worker) -> NoReturn:
        worker.process.join(1.0)
        code = worker.process.exitcode
        how = f"was killed by {signal.Signals(-code).name}" if code and code < 0 else f"ended with exit code {code}"
        hint = "check that there is enough memory and that the simulator runs on its own"
        if not self.steps:
            hint += ", and in a script call this from under `if __name__ == '__main__':`"
        raise WorkerFailure(f"{worker.name} {how} at step {self.steps}; {hint}")


def serve(pipe: Connection, job: bytes) -> None:
    """What a worker process does until nobody listens any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that trains
    os.environ["JAX_PLATFORMS"] = "cpu"  # an environment that uses JAX must not take the accelerator
    import cloudpickle

    fleet: Local | None = None
    name = "the environment"
    answer: tuple[str | None, Tree]
    while True:
        try:
            method, columns = ("make", ()) if fleet is None else pipe.recv()
        except (EOFError, OSError):
            return
        try:
            if fleet is None:
                make, source, name, first, count, masks, restart = cloudpickle.loads(job)
                if restart:
                    fleet = Restarting(make, count, source, name, first, masks=masks)
                else:
                    fleet = Local([boundary.make(make, name) for _ in range(count)], source, name, first, masks=masks)
                answer = (None, None)
            else:
                answer = (None, getattr(fleet, method)(*columns))
        except UserError as error:
            answer = (str(error), None)
        except BaseException as error:
            answer = (f"{name} cannot be run in a worker process ({boundary.told(error)}); mend it", None)
        try:
            pipe.send(answer)
        except OSError:
            return
        if answer[0] is not None:
            return
