"""Host environments in worker processes. One that dies or hangs is reported by name, or started anew where asked."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from qcrl.envs.host import boundary
from qcrl.envs.host.costs import CostSource
from qcrl.envs.host.fleet import Local, Outcome, Seeds
from qcrl.envs.host.restarting import IN_A_ROW, MOST, Restarting
from qcrl.errors import BrokenEnvironment, UserError, WorkerFailure
from qcrl.kinds import GymEnv, Tree

STARTUP = 60.0
"""Seconds that a worker has to import and make its environments, if the timeout is not longer."""
SILENCE = 5.0
"""After so many seconds without an answer, a worker is named in a warning."""


class Job(NamedTuple):
    """What a process is to make and to step."""

    make: Callable[[], GymEnv]
    source: CostSource
    env_id: str
    first: int
    """The number of its first environment."""
    envs: int
    """How many."""
    masks: int
    restart: bool


class Answer(NamedTuple):
    """What a worker sends back."""

    error: str | None
    reply: Tree
    said: list[str]
    """What there is to tell the user."""
    restarts: int
    """How often environments were made anew."""


class Worker:
    """A process and the environments it has. It can be started anew."""

    def __init__(self, index: int, job: Job) -> None:
        self.index = index
        self.job = job
        self.places = slice(job.first, job.first + job.envs)
        self.name = f"worker {index} (environments {job.first} to {job.first + job.envs - 1} of {job.env_id})"
        self.restarts = 0
        """Of its environments, and of itself."""
        self.before = 0
        """Those that processes before this one have counted."""
        self.failed = 0
        """Times in a row that it has not lasted for a step."""
        self.start()

    def start(self) -> None:
        import cloudpickle  # comes with Gymnasium, which training on a device does without

        context = get_context("spawn")  # fresh interpreters: forking after JAX has started can deadlock
        self.connection, theirs = context.Pipe()
        args = (theirs, cloudpickle.dumps(self.job))
        self.process = context.Process(target=serve, args=args, name=f"qcrl-worker-{self.index}", daemon=True)
        self.process.start()
        theirs.close()

    def start_anew(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()
        self.restarts += 1
        self.before, self.failed = self.restarts, self.failed + 1
        self.start()


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
        self.timeout = timeout
        self.say = say
        self.restart = restart
        self.steps = 0
        self.costs = len(source.names)
        self.last = np.zeros((count, 0), np.float32)
        """What was observed last."""
        bounds = [int(bound) for bound in np.linspace(0, count, min(workers, count) + 1)]
        self.workers = [
            Worker(i, Job(make, source, env_id, first, last - first, masks, restart))
            for i, (first, last) in enumerate(pairwise(bounds))
        ]
        self._replies(max(timeout, STARTUP), "make", ())

    def reset(self, seeds: Seeds) -> Float[np.ndarray, "env obs"]:
        self.last = np.concatenate(self._ask("reset", seeds))
        return self.last

    def step(self, actions: np.ndarray, seeds: Seeds | None = None) -> Outcome:
        self.steps += 1
        replies = self._ask("step", actions, seeds)
        for worker, reply in zip(self.workers, replies):
            worker.failed = 0 if not reply.lost else worker.failed
        outcome = Outcome(*(np.concatenate(column) for column in zip(*(reply.outcome for reply in replies))))
        self.last = outcome.obs
        return outcome

    def restarts(self) -> int:
        """How often environments or processes were started anew."""
        return sum(worker.restarts for worker in self.workers)

    def close(self) -> None:
        for worker in self.workers:
            worker.connection.close()  # a worker ends when nobody listens
        patience = time.monotonic() + 1.0
        for worker in self.workers:
            worker.process.join(max(0.0, patience - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()

    def _ask(self, method: str, *columns: np.ndarray | Seeds | None) -> list[Tree]:
        for worker in self.workers:
            # One that does not listen has died, which is noticed while waiting for its answer.
            with suppress(OSError):
                worker.connection.send((method, [None if x is None else x[worker.places] for x in columns]))
        return self._replies(self.timeout, method, columns)

    def _replies(self, timeout: float, method: str, columns: tuple[Tree, ...]) -> list[Tree]:
        """The answers of all workers to a method, in their order."""
        replies: dict[int, Tree] = {}
        start, warned = time.monotonic(), False
        while len(replies) < len(self.workers):
            waiting = [worker for worker in self.workers if worker.index not in replies]
            ready = connection.wait(
                [x for w in waiting for x in (w.connection, w.process.sentinel)], min(SILENCE, timeout)
            )
            silent = time.monotonic() - start
            names = " and ".join(worker.name for worker in waiting)
            if not ready and silent >= timeout:
                hangs = self._hangs(names, silent)
                replies |= {worker.index: self._go_on(worker, hangs, method, columns) for worker in waiting}
            elif not ready and not warned:
                self.say(f"warning: {names} has been silent for {silent:.0f} s; waiting for {timeout:g} s at most")
                warned = True
            for worker in waiting:
                if worker.connection in ready or worker.process.sentinel in ready:
                    try:
                        replies[worker.index] = self._receive(worker, method)
                    except WorkerFailure as failure:
                        replies[worker.index] = self._go_on(worker, failure, method, columns)
        return [replies[i] for i in range(len(self.workers))]

    def _receive(self, worker: Worker, method: str) -> Tree:
        try:
            answer: Answer = worker.connection.recv()
        except (EOFError, OSError):
            raise self._died(worker) from None
        for text in answer.said:
            self.say(text)
        if answer.error is not None:
            raise BrokenEnvironment(answer.error)
        worker.restarts = worker.before + answer.restarts
        return Stepped(answer.reply) if method == "step" else answer.reply

    def _go_on(self, worker: Worker, failure: WorkerFailure, method: str, columns: tuple[Tree, ...]) -> Tree:
        """The reply in place of one that never comes, from a process started anew: its episodes are cut off."""
        if not self.restart:
            raise failure
        seeds = [None] * worker.job.envs if not columns or columns[-1] is None else columns[-1][worker.places]
        while True:
            if worker.failed >= IN_A_ROW or self.restarts() >= MOST:
                often = f"{worker.failed + 1} times in a row" if worker.failed >= IN_A_ROW else f"{MOST + 1} times"
                raise WorkerFailure(f"{failure}; that is {often}, too often to go on with on_error=restart")
            self.say(f"warning: {failure}; restarted")
            worker.start_anew()
            try:
                made = self._only(worker, max(self.timeout, STARTUP))
                if method == "make":
                    return made
                worker.connection.send(("reset", [seeds]))
                obs = self._only(worker, self.timeout)
                break
            except WorkerFailure as again:
                failure = again
        if method == "reset":
            return obs
        yes, no = np.ones(len(obs), bool), np.zeros(len(obs), bool)
        gained = np.zeros(len(obs)), np.zeros((len(obs), self.costs))
        return Stepped(Outcome(yes, obs, self.last[worker.places], *gained, no, yes), lost=True)

    def _only(self, worker: Worker, timeout: float) -> Tree:
        """The answer of one worker."""
        if not connection.wait([worker.connection, worker.process.sentinel], timeout):
            raise self._hangs(worker.name, timeout)
        return self._receive(worker, "")

    def _hangs(self, names: str, silent: float) -> WorkerFailure:
        return WorkerFailure(
            f"{names} gave no answer for {silent:.0f} s, at step {self.steps}: it hangs, "
            "or a step takes longer than step_timeout allows; raise step_timeout, or mend the environment"
        )

    def _died(self, worker: Worker) -> WorkerFailure:
        worker.process.join(1.0)
        code = worker.process.exitcode
        how = f"was killed by {signal.Signals(-code).name}" if code and code < 0 else f"ended with exit code {code}"
        hint = "check that there is enough memory and that the simulator runs on its own"
        if not self.steps:
            hint += ", and in a script call this from under `if __name__ == '__main__':`"
        return WorkerFailure(f"{worker.name} {how} at step {self.steps}; {hint}")


class Stepped(NamedTuple):
    """One step of a worker's environments."""

    outcome: Outcome
    lost: bool = False
    """The process was lost, and started anew."""


def serve(pipe: Connection, pickled: bytes) -> None:
    """What a worker process does until nobody listens any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that trains
    os.environ["JAX_PLATFORMS"] = "cpu"  # an environment that uses JAX must not take the accelerator
    import cloudpickle

    fleet: Local | None = None
    name, said = "the environment", list[str]()
    while True:
        try:
            method, columns = ("make", ()) if fleet is None else pipe.recv()
        except (EOFError, OSError):
            return
        error, reply = None, None
        try:
            if fleet is None:
                job: Job = cloudpickle.loads(pickled)
                name = job.env_id
                fleet = _fleet(job, said.append)
            else:
                reply = getattr(fleet, method)(*columns)
        except UserError as refused:
            error = str(refused)
        except BaseException as raised:
            error = f"{name} cannot be run in a worker process ({boundary.told(raised)}); mend it"
        try:
            pipe.send(Answer(error, reply, said, fleet.restarts() if fleet else 0))
        except OSError:
            return
        if error is not None:
            return
        said.clear()


def _fleet(job: Job, say: Callable[[str], None]) -> Local:
    make, source, name, first, count, masks, restart = job
    if restart:
        return Restarting(make, count, source, name, first, say, masks)
    return Local([boundary.make(make, name) for _ in range(count)], source, name, first, say, masks)
