"""An environment that lives in another Python, with packages that cannot be installed beside qcrl's."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from qcrl.envs.host import elsewhere_server
from qcrl.envs.host.elsewhere_server import pack, unpack
from qcrl.errors import UserError
from qcrl.kinds import GymSpace, Json, Tree

PREFIX = "python:"
"""python:PATH:ID is the environment ID in the Python at PATH."""


def named(python: str, env: str) -> str:
    """What names an environment in another Python."""
    return f"{PREFIX}{python}:{env}"


@dataclass(frozen=True)
class Maker:
    """Starts that Python, which makes the environment."""

    name: str

    def __call__(self) -> "Elsewhere":
        python, _, env = self.name.removeprefix(PREFIX).partition(":")
        return Elsewhere(python, env)


class Elsewhere:
    """Has Gymnasium's methods. Its process ends when nobody talks to it any more."""

    def __init__(self, python: str, env: str) -> None:
        command = [python, str(Path(elsewhere_server.__file__))]
        try:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        except OSError as error:
            raise UserError(f"{python} cannot be run ({error.strerror}); give the path of a Python") from None
        self.python, self.made = python, False
        about = unpack(self._ask({"make": env}))
        self.made = True
        self.observation_space, self.action_space = (
            space(about[name], env) for name in ("observation_space", "action_space")
        )
        self.spec = SimpleNamespace(id=env, max_episode_steps=about["max_episode_steps"])

    def reset(self, *, seed: int | None = None, options: object = None) -> tuple[Tree, ...]:
        return tuple(unpack(self._ask({"reset": seed})))

    def step(self, action: Tree) -> tuple[Tree, ...]:
        return tuple(unpack(self._ask({"step": pack(action)})))

    def close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self.process.wait(1.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _ask(self, request: Json) -> Tree:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except OSError:
            line = ""
        if not line:
            code = self.process.wait()
            advice = "mend it" if self.made else "it needs NumPy and Gymnasium"
            raise UserError(f"the process of {self.python} ended with exit code {code}; {advice}")
        try:
            reply = json.loads(line)
        except ValueError:
            raise UserError(f"{self.python} said {line.strip()[:80]!r}; is it a Python?") from None
        if "error" in reply:
            raise UserError(f"in {self.python}: {reply['error']}")
        return reply["reply"]


def space(about: Json, env: str) -> GymSpace:
    """The space of this Python that is like the one described."""
    from gymnasium import spaces

    match about["kind"]:
        case "Box":
            return spaces.Box(about["low"], about["high"], dtype=about["dtype"])
        case "Discrete":
            return spaces.Discrete(int(about["n"]), start=int(about["start"]))
        case "MultiDiscrete":
            return spaces.MultiDiscrete(about["nvec"])
        case "MultiBinary":
            return spaces.MultiBinary(about["shape"])
        case "Dict":
            return spaces.Dict({key: space(each, env) for key, each in about["parts"].items()})
        case "Tuple":
            return spaces.Tuple([space(each, env) for each in about["parts"]])
    raise UserError(f"{env} has a space of the kind {about['kind']}, which cannot be trained")
