"""The sweep on Ray: groups are tasks with declared resources, and Ray decides where and when they run.

Without shared storage a task trains in a folder of its node, and sends what it has to the sweep's folder after every
checkpoint; a task that Ray starts again elsewhere fetches it from there.
"""

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from qcrl.errors import UserError
from qcrl.kinds import Settings
from qcrl.runs import checkpoints
from qcrl.sweeps import memory
from qcrl.sweeps.grid import Cell
from qcrl.sweeps.groups import FINISHED, Group, Outcome, run_group

try:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as error:
    raise UserError("the Ray engine needs Ray, which is not installed; pip install 'qcrl[ray]'") from error

RETRIES = 10
"""Times that a group is started again after its worker or node died."""
SECONDS_BETWEEN_LOOKS = 0.5
HOST_SHARE = 3
"""Host memory of a group that trains on a GPU, in sizes of its state: one, and two to write a checkpoint from."""

Files = dict[str, bytes]


def connect(address: str | None) -> None:
    """Join the cluster at this address; without one, start Ray on this machine."""
    if address and address.startswith("ray://"):
        raise UserError(
            f"address is {address}, but results come back to this machine, so it must be part of the cluster; run "
            "`ray start --address HOST:PORT` here, and give --address auto"
        )
    if ray.is_initialized():
        return
    try:
        ray.init(address=address or "local", log_to_driver=False, configure_logging=False, include_dashboard=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UserError(f"there is no Ray cluster at {address} ({error}); start one with `ray start --head`") from error


def resources(cpus: float, gpus: float | None) -> Settings:
    """What a group reserves: one GPU where the cluster has any, unless told otherwise."""
    known = [(node.get("CPU", 0), node.get("GPU", 0)) for node in nodes()]
    has_gpu = any(gpu for _, gpu in known)
    gpus = float(has_gpu) if gpus is None else gpus
    if cpus < 0 or gpus < 0 or (gpus > 1 and gpus % 1):
        raise UserError(
            f"cpus is {cpus:g} and gpus {gpus:g}, but neither may be negative, nor gpus 1 and a part; change it"
        )
    if not any(cpus <= cpu and gpus <= gpu for cpu, gpu in known):
        raise UserError(
            f"a group asks for {cpus:g} CPUs and {gpus:g} GPUs of one machine, but those of the cluster have "
            f"{', '.join(f'{cpu:g} and {gpu:g}' for cpu, gpu in dict.fromkeys(known))}; ask for less, or add a machine"
        )
    # Ray does not hide the GPUs of a machine from a task that reserves none.
    hidden = {"runtime_env": {"env_vars": {"JAX_PLATFORMS": "cpu"}}} if has_gpu and not gpus else {}
    return {"num_cpus": cpus, "num_gpus": gpus, **hidden}


def nodes() -> list[dict[str, float]]:
    """What each machine of the cluster has, in Ray's names."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def lanes_that_fit(cpus: float = 1, gpus: float | None = None, **_: object) -> Callable[[Cell], int]:
    """Like that of one machine, but asked on a node with the resources of a group."""
    ask = ray.remote(**resources(cpus, gpus))(memory.lanes_that_fit)
    return lambda cell: ray.get(ask.remote(cell))


def run(
    groups: Sequence[Group],
    out: Path,
    checkpoint_interval: float,
    *,
    shared: bool = False,
    cpus: float = 1,
    gpus: float | None = None,
    retries: int = RETRIES,
) -> Iterator[Outcome]:
    """Train the groups side by side, as many as the cluster has room for.

    shared: every node sees the sweep's folder under the same path, so that nothing has to be sent.
    cpus, gpus: what a group reserves.
    retries: times that a group is started again after its worker or node died.
    """
    if retries < 0:
        raise UserError(f"retries is {retries}, but must be a whole number from 0 on; change it")
    reserved = resources(cpus, gpus)
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    home = ray.remote(Home).options(num_cpus=0, scheduling_strategy=here, max_concurrency=4).remote(out.resolve())
    task = ray.remote(max_retries=retries, **reserved)(_task)
    able = [node for node in nodes() if node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= reserved["num_gpus"]]
    most = int(max(node.get("memory", 0) for node in able))  # a group that asks for more would wait for ever
    running = {
        task.options(name=group.path, memory=min(most, _memory(group, bool(reserved["num_gpus"])))).remote(
            group, str(out.resolve()) if shared else None, home, checkpoint_interval
        ): group
        for group in groups
    }
    while running:
        (done,), _ = ray.wait(list(running), num_returns=1)
        group = running.pop(done)
        try:
            ray.get(done)
        except ray.exceptions.RayTaskError as error:
            yield group, error.cause if isinstance(error.cause, UserError) else error
        except ray.exceptions.RayError as error:
            yield group, error
        else:
            yield group, None


def _memory(group: Group, on_gpu: bool) -> int:
    """Bytes of main memory that the group reserves on its node."""
    if on_gpu:
        return HOST_SHARE * group.lanes * memory.state_bytes(group.cell)
    return group.lanes * memory.bytes_per_lane(group.cell)


def _task(group: Group, shared: str | None, home: Any, checkpoint_interval: float) -> None:
    if shared:
        folder = Path(shared) / group.path
        folder.mkdir(parents=True, exist_ok=True)
        run_group(group, folder, checkpoint_interval)
        return
    with tempfile.TemporaryDirectory(prefix="qcrl-") as scratch:
        folder = Path(scratch)
        write(folder, ray.get(home.fetch.remote(group.path)))
        with Courier(folder, lambda files: ray.get(home.keep.remote(group.path, files))):
            run_group(group, folder, checkpoint_interval)


class Home:
    """The sweep's folder, for tasks on other nodes."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def fetch(self, path: str) -> Files:
        return read(self.out / path)

    def keep(self, path: str, files: Files) -> None:
        write(self.out / path, files)


class Courier:
    """While entered, sends a run folder home after every new checkpoint, and at the end."""

    def __init__(self, folder: Path, send: Callable[[Files], object]) -> None:
        self.folder = folder
        self.send = send
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.sent = self._newest()

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.thread.join()
        self.send(read(self.folder))

    def _newest(self) -> str:
        return max((path.name for path in (self.folder / "checkpoints").glob("*.safetensors")), default="")

    def _watch(self) -> None:
        while not self.stopped.wait(SECONDS_BETWEEN_LOOKS):
            newest = self._newest()
            if newest > self.sent:
                with contextlib.suppress(FileNotFoundError):  # replaced by a newer one meanwhile: the next look has it
                    self.send(read(self.folder))
                    self.sent = newest


def read(folder: Path) -> Files:
    """The files of a run folder, as many checkpoints as are needed to resume: the newest."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    spent = sorted((folder / "checkpoints").glob("*.safetensors"))[:-1]
    # The checkpoint first: rows that are added while it is read are cut off again, missing ones could not be.
    paths = sorted(set(paths) - set(spent), key=lambda path: path.parent.name != "checkpoints")
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def write(folder: Path, files: Files) -> None:
    """Each file in one step; what says that there is more than before comes last."""
    folder.mkdir(parents=True, exist_ok=True)
    last = lambda name: (name.startswith("checkpoints"), name == FINISHED)
    for name in sorted(files, key=last):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        checkpoints.write_file(folder / name, files[name])
    kept = {os.path.basename(name) for name in files if name.startswith("checkpoints")}
    for path in (folder / "checkpoints").glob("*.safetensors"):
        if kept and path.name < min(kept):
            path.unlink()
