"""Experience replay: one flat array of records in device memory, and what it takes before it is taken."""

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


def require_memory(lanes: int, bytes_each: int) -> str:
    """A sentence on what the replay of all lanes will take; an error where the device has less."""
    total, room = lanes * bytes_each, _room()
    sentence = f"replay memory: {lanes} x {bytes_each / 1e9:.3g} GB = {total / 1e9:.3g} GB"
    if room is not None and total > room:
        raise UserError(
            f"{sentence}, but only {room / 1e9:.3g} GB are free; train fewer seeds or constraints at once, or give a "
            f"smaller replay_size"
        )
    return sentence


def _room() -> int | None:
    """Bytes that can still be allocated on the first device; None where that cannot be known."""
    device = jax.devices()[0]
    stats = device.memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    try:
        with open("/proc/meminfo") as file:
            table = dict(line.split(":") for line in file)
        return int(table["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
