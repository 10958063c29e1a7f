"""One hostile case: what is done, what may come of it, and what did."""

import contextlib
import io
import json
import shutil
import signal
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import jax

import qcrl
from qcrl.bench.robustness import zoo
from qcrl.bench.robustness.damage import Damage
from qcrl.errors import UserError
from qcrl.kinds import Settings
from qcrl.sampling import memory, program
from qcrl.training import loop

SMALL: Settings = {"num_envs": 2, "steps_per_env": 40, "chunk_length": 10, "hidden_sizes": (8,), "lstm_size": 0}
"""Settings that train within a second."""
Main = Callable[[list[str]], int]
"""The command line."""
PATIENCE = 300
"""Seconds that a case may take."""
OUTCOMES = ("fine", "refused", "traceback", "accepted", "lost")
BAD = OUTCOMES[2:]
READ = {
    "config.json": {"evaluate": True, "plot": True, "report": True, "resume": True},
    "metrics.csv": {"plot": True, "report": True, "resume": False, "go on": False},
    "episodes.csv": {"report": False, "resume": False, "go on": False},
    "evaluation-jax.json": {"costs": True, "report": False},
    "evaluation-jax.csv": {"costs": True, "report": False},
    "certificate": {"verify": True, "report": False},
    "policies/promised": {"evaluate": False, "resume": False},
    "policies": {"evaluate": True, "resume": False},
    "checkpoints": {"resume": False, "go on": False},
}
"""Commands that read a file, and whether they must refuse a broken one. A report names it and shows the rest."""


class Outcome(NamedTuple):
    kind: str
    """One of OUTCOMES."""
    name: str
    text: str = ""


def attempt(action: Callable[[], object]) -> tuple[int | None, str]:
    """Exit code and output of something that a user might do; no code where it ended in a traceback, or not at all."""
    out, late = io.StringIO(), []

    def stop(*_: object) -> None:
        late.append("it did not end")
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(PATIENCE)
    code: object = None
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = action()
    except UserError as error:
        code, _ = error.exit_code, out.write(str(error))
    except BaseException:
        return None, "".join([traceback.format_exc(), *late])
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    if late:
        return None, f"{out.getvalue()}\n{late[0]} within {PATIENCE} seconds"
    return (code if isinstance(code, int) else 0), out.getvalue()


def judge(name: str, code: int | None, text: str, refuse: bool, lost: bool) -> Outcome:
    if code not in (0, 1, 2) or "Traceback" in text:
        return Outcome("traceback", name, text)
    if lost:
        return Outcome("lost", name, text)
    return Outcome("accepted" if refuse and code == 0 else "refused" if code else "fine", name, text)


def trained(folder: Path) -> Path:
    """A finished run with an evaluation and a certificate."""
    run = qcrl.train("ppo_lag", "TwoPathEnv-v0", qcrl.Outage(15, 0.1), 320, out=folder, progress=False, **SMALL)
    qcrl.evaluate(run, 20, progress=False)
    qcrl.certify(run, promise=0.9, episodes=20, progress=False)
    return folder


def try_file(main: Main, base: Path, scratch: Path, name: str, damage: Damage, command: str) -> Outcome:
    """A command on a run with one damaged file. Nothing else of the run may change."""
    run = scratch / "run"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(base, run)
    (run / name).write_bytes(damage.content)
    before = contents(run)
    arguments = {
        "evaluate": ["evaluate", str(run), "--episodes", "3"],
        "plot": ["plot", str(run), "--out", str(scratch / "plot.png")],
        "costs": ["plot", str(run), "--kind", "costs", "--out", str(scratch / "plot.png")],
        "report": ["report", str(run), "--replays", "--out", str(scratch / "report.html")],
        "resume": ["train", "--resume", "--out", str(run)],
        "go on": ["train", "--resume", "--out", str(run), "--steps", "400"],
        "verify": ["certify", "--verify", str(run / name)],
    }[command]
    code, text = attempt(lambda: main(arguments))
    after = contents(run)
    kept = {path for path in before if not path.startswith("evaluation-")} if command == "evaluate" else set(before)
    if command in ("resume", "go on") and (code != 2 or "; the trained run is saved in " in text):
        # Lost policies may come back, and rows may be added.
        kept = {path for path in kept if path.endswith(".csv") and command == "resume"}
    lost = any(after.get(path) != before[path] for path in kept)
    breaks = damage.breaks or (command == "verify" and not _alike(base / name, damage))
    refuse = READ[family(name)][command] and breaks
    return judge(f"{command}, {name}: {damage.what}", code, text, refuse, lost)


def family(name: str) -> str:
    """The key of READ that a file belongs to; nothing where no command depends on it."""
    return next((each for each in READ if name.startswith(each)), "")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _alike(path: Path, damage: Damage) -> bool:
    """Whether a JSON file says the same as before."""
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(damage.content) == json.loads(path.read_bytes())
    return False


@contextlib.contextmanager
def untrained() -> Iterator[None]:
    """While entered, trainings end where they would be compiled: all checks are made, and the program is traced."""

    def only_traced(group: loop.Group, *_: object) -> None:
        memory.require_memory(memory.tree_bytes(jax.eval_shape(group.init)), "the lanes")
        lane = jax.eval_shape(lambda: jax.tree.map(lambda leaf: leaf[0], group.init()))
        memory.require_memory(memory.peak(program.trace(group.algorithm, group.env, lane)), "values of one iteration")
        raise Traced

    with mock.patch.object(loop.Group, "train", only_traced):
        yield


class Traced(Exception):
    """The settings were accepted."""


def try_options(main: Main, scratch: Path, algorithm: str, options: list[str]) -> Outcome:
    """A training with these options, up to its compilation."""
    out = scratch / "options"
    shutil.rmtree(out, ignore_errors=True)

    def action() -> int:
        try:
            return main(["train", algorithm, "TwoPathEnv-v0", "--steps=16", f"--out={out}", *options])
        except Traced:
            return 0

    with untrained():
        code, text = attempt(action)
    refuse = any(never(*option.removeprefix("--").split("=")) for option in options)
    return judge(f"{algorithm} {' '.join(options)}", code, text, refuse, lost=False)


COMMANDS = {
    "evaluate": "RUN --episodes=3",
    "certify": "RUN --promise=0.9 --episodes=20",
    "plot": "RUN --out=OUT.png",
    "report": "RUN --replays --episodes=1 --out=OUT.html",
    "render": "RUN --episodes=1 --out=OUT.gif",
    "export": "RUN --out=OUT.onnx",
    "check-env": f"{zoo.__name__}:Sound --episodes=2 --steps=30",
}
"""Commands besides `train`, as they are quick."""
OPTIONS = {
    "evaluate": (("seed", "episodes", "processes", "episode-seed"), ("probability", "limit"), ("engine",)),
    "certify": (
        ("seed", "episodes", "processes", "selection-episodes"),
        ("probability", "limit", "promise", "promises", "expected", "power", "confidence"),
        ("engine", "key", "verify"),
    ),
    "plot": ((), (), ("kind", "out")),
    "report": (("episodes",), (), ("replays", "engine", "out")),
    "render": (("seed", "episodes"), ("probability", "limit"), ("engine", "episode", "out")),
    "export": ((), ("seed", "probability", "limit"), ("format", "out")),
    "check-env": (("episodes", "steps", "seed"), (), ("cost",)),
}
"""Their options that have a value: those that count, other numbers, and texts."""


def try_command(main: Main, base: Path, scratch: Path, command: str, option: str) -> Outcome:
    """A command with one option that may have any value. It changes nothing of the run but its own results."""
    run, made = scratch / "run", scratch / "made"
    for folder in (run, made):
        shutil.rmtree(folder, ignore_errors=True)
    made.mkdir()
    shutil.copytree(base, run)
    before = contents(run)
    words = COMMANDS[command].replace("RUN", str(run)).replace("OUT", str(made / "it")).split()
    with contextlib.chdir(made):
        code, text = attempt(lambda: main([command, *words, option]))
    own, after = ("evaluation-", "certificate-", "policies/promised"), contents(run)
    lost = any(after.get(path) != before[path] for path in before if not path.startswith(own))
    name, _, value = option.removeprefix("--").partition("=")
    refuse = name not in OPTIONS[command][2] and value in ("nan", "inf", "-inf", "x", "", "-1")
    return judge(f"{command} {option}", code, text, refuse, lost)


def never(name: str, value: str) -> bool:
    """Whether no option of this name may have this value."""
    if value in ("1e300", "1e-300"):  # seconds may be any; and a limit that is nearly 0
        return name not in ("checkpoint-interval", "step-timeout") and (name, value) != ("limit", "1e-300")
    return value in ("nan", "x", "", "-inf", "-1e300")


def try_environment(scratch: Path, sound: Path, name: str, command: str) -> Outcome:
    """A command on an environment of the zoo. What was trained before it broke must have been saved."""
    since, after = {"train": (50, 8), "check-env": (zoo.FROM, 3)}.get(command, (15, 2))
    broken = zoo.broken_step(name, since) if name in zoo.STEPS else None
    env = zoo.MADE.get(name) or broken or zoo.broken_reset(name, after)
    out = scratch / "environment"
    shutil.rmtree(out, ignore_errors=True)
    limit = qcrl.Outage(3.0, 0.1)

    def check() -> int:
        from qcrl.envs.host.check import check_env

        return 0 if check_env(env, steps=200).passed else 1

    actions: dict[str, Callable[[], object]] = {
        "check-env": check,
        "train": lambda: qcrl.train("ppo_lag", env, limit, 240, preset="fast", out=out, progress=False, **SMALL),
        "evaluate": lambda: qcrl.evaluate(sound, 40, env=env, progress=False),
        "certify": lambda: qcrl.certify(sound, promise=0.9, episodes=40, env=env, progress=False),
    }
    before = contents(sound)
    code, text = attempt(actions[command])
    saved = (out / "checkpoints").exists() or name in zoo.MADE
    lost = (command == "train" and not saved) or contents(sound) != before
    return judge(f"{command}: {name}", code, text, True, lost)
