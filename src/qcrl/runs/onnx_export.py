"""A trained policy as an ONNX graph, for programs that are not written in Python.

Its inputs are a batch of observations, standard normal noise, and of what came before only what the policy looks at.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qcrl.errors import UserError
from qcrl.kinds import Json
from qcrl.nets.images import filters
from qcrl.runs.checkpoints import write_file
from qcrl.runs.forward import FORBIDDEN, LOG_STD_RANGE, Known, Left, NetworkForward, SoftForward, one_hots
from qcrl.runs.numpy_policy import NumpyPolicy
from qcrl.runs.onnx_actions import away, to_env
from qcrl.runs.onnx_graph import Graph

OPSET = 17
TOLERANCE = 1e-5
"""How far actions may lie from those of NumPy."""


def export(policy: NumpyPolicy, path: Path) -> None:
    """Write the graph, once onnxruntime has acted on it as NumPy does."""
    try:
        import onnx
        import onnxruntime  # noqa: F401 - without it the graph could not be checked
    except ImportError as error:
        raise UserError(f"{error.name} is not installed; pip install 'qcrl[onnx]'") from error
    model = build(policy)
    onnx.checker.check_model(model)
    distance = compare(policy, model.SerializeToString())
    if not distance <= TOLERANCE:
        raise UserError(f"onnxruntime acts {distance:g} away from NumPy, so nothing was written; please report this")
    write_file(path, model.SerializeToString())


def build(policy: NumpyPolicy) -> Any:
    """The graph of a policy."""
    graph = Graph()
    helper, kinds = graph.onnx.helper, graph.onnx.TensorProto
    net, env = policy.forward, policy.env
    if isinstance(net, NetworkForward):
        outputs = _network(graph, net, policy)
    else:
        assert isinstance(net, SoftForward)
        outputs = _soft(graph, net, policy)
    raw = graph.call(outputs.pop("raw"), "raw_action")
    declared = {}
    for name, part in to_env(graph, raw, policy).items():
        declared[graph.call(part.value, name)] = kinds.INT64 if part.whole else kinds.FLOAT, part.shape
    declared["raw_action"] = kinds.FLOAT, (env.action_size,)
    for name, value in outputs.items():
        declared[graph.call(value, f"next_{name}")] = kinds.FLOAT, (graph.inputs[name],)
    make = helper.make_tensor_value_info
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "qcrl-policy",
            [make(name, kinds.FLOAT, ["batch", size]) for name, size in graph.inputs.items()],
            [make(name, kind, ["batch", *shape]) for name, (kind, shape) in declared.items()],
            graph.constants,
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=8,
    )
    helper.set_model_props(model, {name: str(value) for name, value in about(policy).items()})
    return model


def about(policy: NumpyPolicy) -> Json:
    """What a user of the graph must know."""
    return {
        "producer": "qcrl",
        "algorithm": policy.info["algorithm"]["name"],
        "environment": policy.env.id,
        "needs": " ".join(policy.needs) or "nothing",
        **{name: policy.info[name] for name in ("seed", "limit", "probability", "env_steps") if name in policy.info},
    }


def _network(graph: Graph, net: NetworkForward, policy: NumpyPolicy) -> dict[str, str]:
    size, costs = policy.env.action_size, len(policy.env.costs)
    x, after = graph.input("obs", policy.env.observation_size), {}
    told = "cost" in policy.needs and net.about["cost_input"] != "none"
    cost = graph.input("cost", costs) if told else ""
    x = graph.join([x, *(_left(graph, left, costs) for left in net.left)])
    if net.late_costs:
        after["late_cost"], cost = cost, graph.input("late_cost", costs)
    if net.about["cost_input"] == "observation":
        x = graph.join([x, cost])
    x = graph.add("Mul", graph.add("Sub", x, graph.constant(net.mean)), graph.constant(net.inverse))
    if np.isfinite(net.clip):
        x = graph.clip(x, -net.clip, net.clip)
    if net.images:
        x = _look(graph, x, net)
    for layer in net.layers:
        x = graph.add("Tanh", graph.linear(x, layer))
    if net.lstm is not None:
        parts = [x, graph.input("previous_action", size), graph.input("reward", 1)]
        parts += [cost] if net.about["cost_input"] == "lstm" else []
        raw = graph.linear(graph.join([*parts, graph.input("hidden", net.lstm_size)]), net.lstm)
        gates = [graph.columns(raw, i * net.lstm_size, (i + 1) * net.lstm_size) for i in range(4)]
        new, forget, out = (graph.add("Sigmoid", gates[i]) for i in (0, 1, 3))
        kept = graph.add("Mul", forget, graph.input("cell", net.lstm_size))
        cell = graph.add("Add", kept, graph.add("Mul", new, graph.add("Tanh", gates[2])))
        hidden = graph.add("Mul", out, graph.add("Tanh", cell))
        after |= {"hidden": hidden, "cell": cell}
        x = graph.add("Add", x, hidden) if net.about["skip"] else hidden
    head = graph.linear(x, net.heads)
    if net.masks:
        seen = policy.env.observation_size
        allowed = graph.add("Greater", graph.columns("obs", seen - net.masks, seen), graph.constant(0.0))
        logits = graph.add("Where", allowed, graph.columns(head, net.numbers, size), graph.constant(FORBIDDEN))
        head = graph.join([graph.columns(head, 0, net.numbers), logits] if net.numbers else [logits])
    noise = graph.input("noise", size)
    parts = []
    if net.numbers:
        numbers = graph.columns(head, 0, net.numbers)
        numbers = graph.add("Tanh", numbers) if net.about["tanh_mean"] else numbers
        spread = graph.add("Mul", graph.columns(noise, 0, net.numbers), graph.constant(net.std))
        parts.append(graph.add("Add", numbers, spread))
    first = net.numbers
    for count in net.choices:
        logits, own = (graph.columns(each, first, first + count) for each in (head, noise))
        chosen = graph.add("ArgMax", graph.add("Add", logits, _gumbel(graph, own)), axis=-1, keepdims=0)
        depth = graph.constant(count, np.int64)
        parts.append(graph.add("OneHot", chosen, depth, graph.constant([0.0, 1.0]), axis=-1))
        first += count
    return {"raw": graph.join(parts), **after}


def _left(graph: Graph, left: Left, costs: int) -> str:
    """What is left of a budget or of the time, or asked for."""
    number = graph.constant
    if left.kind == "time":
        share = graph.add("Div", graph.input("time", 1), number(left.limit[1]))
        return graph.add("Sub", number(1.0), share)
    if left.kind == "asked":
        position = graph.columns(graph.input("asked", 2), left.which, left.which + 1)
        return graph.add("Sub", graph.add("Mul", position, number(2.0)), number(1.0))
    (lowest, highest), limit = left.limit, number(left.limit[0])
    if lowest < highest:
        position = graph.columns(graph.input("asked", 2), 0, 1)
        limit = graph.add("Add", graph.add("Mul", position, number(highest - lowest)), limit)
    if left.unit:
        unit = number(left.unit)
    else:
        whole = graph.add("Max", limit, number(left.least))
        unit = graph.add("Where", graph.add("Greater", whole, number(0.0)), whole, number(1.0))
    spent = graph.columns(graph.input("spent", costs), left.which, left.which + 1)
    share = graph.add("Div", graph.add("Div", graph.add("Sub", limit, spent), unit), number(left.part))
    seen = graph.clip(share, *left.bounds)
    if left.over is None:
        return seen
    seen = graph.add("Where", graph.add("Less", share, number(0.0)), number(left.over), seen)
    if (highest if left.unit else lowest) > 0:
        return seen
    # A full budget of 0 is whole until something is spent.
    nothing = graph.add("And", *(graph.add("LessOrEqual", each, number(0.0)) for each in (limit, spent)))
    return graph.add("Where", nothing, number(left.unspent), seen)


def _look(graph: Graph, x: str, net: NetworkForward) -> str:
    """What the CNN sees of each image, behind the numbers that are no pixels."""
    at, seen = 0, []
    for image in net.images:
        seen += [graph.columns(x, at, image.start)] if at < image.start else []
        at = image.end
    seen += [graph.columns(x, at, net.mean.size)] if at < net.mean.size else []
    for image, layers in zip(net.images, net.pictures):
        shape = lambda *sizes: graph.constant([-1, *sizes], np.int64)
        y = graph.add("Reshape", graph.columns(x, image.start, image.end), shape(*image.shape))
        channels_first = (*image.order[2:], *image.order[:2])
        y = graph.add("Transpose", y, perm=[0, *(1 + axis for axis in channels_first)])
        y, sides = graph.add("Reshape", y, shape(image.channels, *image.sides)), image.sides
        for block, (kernel, bias) in zip(image.blocks, layers):
            missing = [-side % block for side in sides]
            sides = -(-sides[0] // block) - 1, -(-sides[1] // block) - 1
            weights = graph.constant(filters(kernel, block)), graph.constant(bias)
            y = graph.add("Relu", graph.add("Conv", y, *weights, strides=[block] * 2, pads=[0, 0, *missing]))
        seen.append(graph.add("Reshape", graph.add("Transpose", y, perm=[0, 2, 3, 1]), shape(image.features)))
    return graph.join(seen)


def _gumbel(graph: Graph, noise: str) -> str:
    """Normal noise turned into Gumbel noise."""
    half = graph.add("Erf", graph.add("Mul", noise, graph.constant(0.5**0.5)))
    below = graph.clip(graph.add("Mul", graph.add("Add", half, graph.constant(1.0)), graph.constant(0.5)), 1e-7, 1.0)
    log = graph.add("Neg", graph.clip(graph.add("Log", below), -np.inf, -1e-7))
    return graph.add("Neg", graph.add("Log", log))


def _soft(graph: Graph, net: SoftForward, policy: NumpyPolicy) -> dict[str, str]:
    x = graph.input("obs", policy.env.observation_size)
    for index, layer in enumerate(net.layers):
        x = graph.linear(graph.add("Relu", x) if index else x, layer)
    mean, log_std = graph.columns(x, 0, net.size), graph.columns(x, net.size, 2 * net.size)
    spread = graph.add("Exp", graph.clip(log_std, *LOG_STD_RANGE))
    drawn = graph.add("Add", mean, graph.add("Mul", spread, graph.input("noise", net.size)))
    return {"raw": graph.add("Tanh", drawn)}


def compare(policy: NumpyPolicy, model: bytes, rows: int = 64, steps: int = 3) -> float:
    """The largest distance between raw actions of onnxruntime and of NumPy, over steps with random inputs.

    Of options, how much less likely the one chosen is than the likeliest, in logits: two may be equally likely.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    parts = [each.name for each in session.get_outputs() if each.name.startswith("action")]
    rng, worst = np.random.default_rng(0), 0.0
    carry = policy.fresh(None, rows)._replace(asked=rng.random((rows, 2), np.float32) if "asked" in names else ())
    memory = {name: None for name in names if name in ("hidden", "cell", "late_cost")}
    for _ in range(steps):
        obs = rng.normal(size=(rows, policy.env.observation_size)).astype(np.float32)
        reward, cost = rng.normal(size=rows), rng.uniform(size=(rows, len(policy.env.costs)))
        known = policy.known(obs, carry, reward, cost)
        feed = _feed(known, names) | {"noise": np.zeros_like(carry.action)}
        blank = {"hidden": 0, "cell": 1, "late_cost": -1}
        feed |= {n: carry.memory[blank[n]] if x is None else x for n, x in memory.items()}
        asked = ["raw_action", *parts, *(f"next_{name}" for name in memory)]
        raw, *later = session.run(asked, feed)
        found, later = dict(zip(parts, later)), later[len(parts) :]
        head, _ = policy.forward(known, carry.memory)
        numbers = np.tanh(head.mean) if policy.forward.squashed else head.mean
        count = numbers.shape[-1]
        best = np.concatenate([raw[:, :0], *one_hots(head.logits, policy.forward.choices)], axis=-1)
        lost = np.where(best == raw[:, count:], 0.0, best - raw[:, count:]) * head.logits
        groups = np.split(lost, np.cumsum(policy.forward.choices)[:-1], axis=-1)
        distances = [raw[:, :count] - numbers, *(group.sum(axis=-1) for group in groups)]
        worst = max(worst, away(policy, raw, found), *(float(np.abs(each).max(initial=0.0)) for each in distances))
        memory = dict(zip(memory, later))
        seen = policy.env.observation_size - policy.env.masks
        mask = obs[:, seen:] if policy.env.masks else None
        _, carry = policy(obs[:, :seen], carry, reward, cost, rng=0, deterministic=True, mask=mask)
    return worst


def _feed(known: Known, names: Sequence[str]) -> dict[str, np.ndarray]:
    column = lambda x: np.asarray(x, np.float32).reshape(-1, 1)
    values = {
        "obs": known.obs,
        "previous_action": known.action,
        "reward": column(known.reward),
        "cost": known.cost,
        "spent": known.spent,
        "time": column(known.time),
        "asked": known.asked,
    }
    return {name: value for name, value in values.items() if name in names}
