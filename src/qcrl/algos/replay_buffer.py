"""Experience replay: one flat array of records in device memory, and what it takes before it is taken."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from qcrl.errors import UserError

Records = Float[Array, "capacity record"]


def store(records: Records, rows: Float[Array, "n record"], seen: Int[Array, ""]) -> Records:
    """The rows in the places after the `seen` ones before them; past the last place the oldest are overwritten."""
    slots = (seen + jnp.arange(rows.shape[0])) % records.shape[0]
    return records.at[slots].set(rows, unique_indices=True, mode="promise_in_bounds")


def sample(records: Records, seen: Int[Array, ""], key: Array, shape: tuple[int, ...]) -> Float[Array, "... record"]:
    """Records drawn uniformly, with replacement, after `seen` have been stored."""
    slots = jax.random.randint(key, shape, 0, jnp.minimum(seen, records.shape[0]))
    return records.at[slots].get(mode="promise_in_bounds")


def require_memory(lanes: int, bytes_each: int, devices: Sequence[jax.Device]) -> str:
    """A sentence on what the replay of all lanes, spread evenly, will take; an error where the devices have less."""
    total, room = lanes * bytes_each, _room(devices)
    sentence = f"replay memory: {lanes} x {bytes_each / 1e9:.3g} GB = {total / 1e9:.3g} GB"
    if room is not None and total > room:
        raise UserError(
            f"{sentence}, but only {room / 1e9:.3g} GB are free; train fewer seeds or constraints at once, or give a "
            f"smaller replay_size"
        )
    return sentence


def _room(devices: Sequence[jax.Device]) -> int | None:
    """Bytes that can still be allocated in equal shares; None where that cannot be known."""
    stats = [device.memory_stats() or {} for device in devices]
    if all("bytes_limit" in each for each in stats):
        return len(stats) * min(each["bytes_limit"] - each.get("bytes_in_use", 0) for each in stats)
    try:
        with open("/proc/meminfo") as file:
            table = dict(line.split(":") for line in file)
        return int(table["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
