"""Runs one environment for qcrl in another Python: a script that needs NumPy and what makes the environment, no more.

It may be an old one, from 3.8 on. Requests and replies are lines of JSON on standard input and output; arrays are bytes
in base64. Nothing is pickled.
"""

import base64
import importlib
import json
import os
import signal
import sys

try:
    import numpy as np
except ImportError:
    sys.exit(1)  # the other side says what is missing


def pack(value):
    """What JSON can hold; what it cannot, such as an object in info, becomes None."""
    if isinstance(value, dict):
        return {"dict": {str(key): pack(each) for key, each in value.items()}}
    if isinstance(value, (tuple, list)):
        return {"list": [pack(each) for each in value]}
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biuf":
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"array": data, "dtype": str(value.dtype), "shape": list(value.shape)}
    return value if isinstance(value, (bool, int, float, str)) else None


def unpack(value):
    """What `pack` packed."""
    if not isinstance(value, dict):
        return value
    if "dict" in value:
        return {key: unpack(each) for key, each in value["dict"].items()}
    if "list" in value:
        return [unpack(each) for each in value["list"]]
    array = np.frombuffer(base64.b64decode(value["array"]), value["dtype"]).reshape(value["shape"])
    return array.copy() if array.ndim else array[()]


def describe(space):
    """A space by the name of its class and what makes it."""
    kind, parts = type(space).__name__, getattr(space, "spaces", {})
    if kind == "Dict":
        return {"dict": {"kind": kind, "parts": {"dict": {key: describe(each) for key, each in parts.items()}}}}
    if kind == "Tuple":
        return {"dict": {"kind": kind, "parts": {"list": [describe(each) for each in parts]}}}
    fields = {"Box": ("low", "high"), "Discrete": ("n", "start"), "MultiDiscrete": ("nvec",), "MultiBinary": ("shape",)}
    about = {name: getattr(space, name) for name in fields.get(kind, ())}
    return pack({"kind": kind, "dtype": str(getattr(space, "dtype", "")), **about})


def make(name):
    """module:function, an id of Gymnasium, or module:id with what the module registers, or makes itself."""
    module, _, own = name.rpartition(":")
    home = importlib.import_module(module) if module else None
    if home is not None and own.isidentifier():
        return getattr(home, own)()
    if home is None or not hasattr(home, "make"):
        home = importlib.import_module("gymnasium")
    return home.make(own)


def answer(env, request):
    if "reset" in request:
        return pack(env.reset(seed=request["reset"]))
    if "step" in request:
        action = unpack(request["step"])
        return pack(env.step(tuple(action) if isinstance(action, list) else action))
    limit = getattr(getattr(env, "spec", None), "max_episode_steps", None)
    spaces = {name: describe(getattr(env, name)) for name in ("observation_space", "action_space")}
    return {"dict": {**spaces, "max_episode_steps": limit}}


def main():
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that trains
    with os.fdopen(os.dup(1), "w") as replies:
        os.dup2(2, 1)  # what the environment prints must not be taken for a reply
        sys.path.insert(0, os.getcwd())
        env = None
        for line in sys.stdin:
            try:
                request = json.loads(line)
                env = make(request["make"]) if "make" in request else env
                reply = {"reply": answer(env, request)}
            except Exception as error:
                reply = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
            replies.write(json.dumps(reply) + "\n")
            replies.flush()


if __name__ == "__main__":
    main()
