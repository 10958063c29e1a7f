"""What the files of a run hold, as types, and the one reader that holds them against these types."""

import json
import re
from pathlib import Path
from typing import Annotated, Literal, NotRequired, Required, TypedDict

from qcrl.errors import UserError
from qcrl.kinds import Json, Tree
from qcrl.runs.files import plain

try:
    import msgspec
    from msgspec import Meta
except ImportError:  # a machine with JAX and little else can train, and believes its own files
    msgspec, Meta = None, dict  # type: ignore[assignment,misc]

Count = Annotated[int, Meta(ge=0)]
Size = Annotated[int, Meta(ge=1, lt=2**31)]
Seed = Annotated[int, Meta(ge=0, lt=2**32)]
Share = Annotated[float, Meta(ge=0, le=1)]
Probability = Annotated[float, Meta(gt=0, lt=1)]
Limit = Annotated[float, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]
Name = Annotated[str, Meta(min_length=1)]
Numbers = Annotated[list[float], Meta(min_length=3, max_length=4)]
"""A lane as an earlier version wrote it."""


class Algorithm(TypedDict):
    name: Name
    label: NotRequired[str]
    fields: NotRequired[Json]


class Actions(TypedDict, total=False):
    discrete: Required[bool]
    shape: list[Count]
    dtype: str
    start: int
    low: list[float | None]
    high: list[float | None]


class Environment(TypedDict, total=False):
    id: Required[Name]
    observation_size: Count
    action_size: Size
    horizon: Size
    fixed_length: bool
    discrete: bool
    timed: bool
    costs: Annotated[list[Name], Meta(min_length=1)]
    actions: Json
    cost: str | dict[str, str]
    images: list[Json]


class Lane(TypedDict, total=False):
    seed: Required[Seed]
    probability: Required[Probability]
    limit: Limit
    learning_rate: float
    constraints: Required[Annotated[list[Json], Meta(min_length=1)]]


class Config(TypedDict, total=False):
    """config.json. An earlier version wrote lanes as lists of numbers."""

    format: int
    algorithm: Algorithm
    preset: str | None
    environment: Environment
    constraint: str
    steps: Size
    seeds: Annotated[list[Seed], Meta(min_length=1)]
    probabilities: Annotated[list[Probability], Meta(min_length=1)]
    limits: Annotated[list[Limit], Meta(min_length=1)]
    lanes: Required[Annotated[list[Lane | Numbers], Meta(min_length=1)]]
    setup: dict[str, str]
    stepping: "Stepping"
    promise: "Promise"


class Promise(TypedDict):
    """What shall be certified of a run."""

    probability: Probability
    confidence: Probability
    episodes: Size
    sequential: NotRequired[bool]
    key: NotRequired[str]


class Stepping(TypedDict):
    """How environments in Python are stepped, and how often checkpoints are written. Earlier runs do not say it."""

    workers: Count
    step_timeout: Annotated[float, Meta(gt=0)]
    on_error: Literal["stop", "restart"]
    checkpoint_interval: Seconds


TRAINED = ("algorithm", "environment")
"""What config.json has of a run that was trained here, and not only thinned."""
RESUMED = (*TRAINED, "preset", "steps", "seeds", "probabilities", "limits", "setup")
"""What it needs to go on."""


class Summary(TypedDict, total=False):
    """What is shown of the episodes of one lane, or of several seeds."""

    seed: Seed | None
    seeds: Count
    probability: Required[Probability]
    limit: Required[Limit]
    episodes: Required[Size]
    outages: Required[Count]
    outage: Required[Share]
    outage_low: Required[Share]
    outage_high: Required[Share]
    mean_return: Required[float]
    std_return: Required[float]
    mean_cost: Required[float]
    mean_cost_over: float | None
    cost_quantile: Required[float]
    cost_quantile_low: float | None
    cost_quantile_high: float | None
    cvar: Required[float]
    weibull: Required["Weibull | None"]
    gaussian: Required["Gaussian | None"]
    learning_rate: float | None
    mean_costs: dict[str, float] | None
    constraints: list[Json] | None
    outage_any: Share | None


class Weibull(TypedDict):
    shape: Annotated[float, Meta(gt=0)]
    scale: Annotated[float, Meta(gt=0)]
    outage: Share


class Gaussian(TypedDict):
    mean: float
    std: Annotated[float, Meta(ge=0)]
    outage: Share


class Evaluation(TypedDict):
    """evaluation-ENGINE.json."""

    engine: str
    deterministic: bool
    episodes: Size
    per_lane: Annotated[list[Summary], Meta(min_length=1)]
    pooled: Annotated[list[Summary], Meta(min_length=1)]


Plan = dict[str, Size]
"""plan.json of a sweep: the most lanes of a group, by cell."""


class Finished(TypedDict):
    """finished.json of a sweep's group."""

    settings: Json
    steps: Count
    episodes: Count
    frozen: list[str]


class Policy(TypedDict, total=False):
    """What is saved beside a policy's arrays."""

    seed: Required[Seed]
    probability: Required[Probability]
    constraints: Required[Annotated[list[Json], Meta(min_length=1)]]
    algorithm: Required[Algorithm]
    environment: Required[Environment]
    alive: bool
    mixture: list[Json]


class Checkpoint(TypedDict):
    """What is saved beside a checkpoint's arrays."""

    iteration: Count
    sizes: NotRequired[dict[str, Count]]


class Certified(TypedDict):
    """What a run is asked of its certificates; `evaluation.certificate` knows all that they hold."""

    verdict: Name
    policy: Name
    policy_sha256: Name
    attempt: Size
    seed: Seed
    probability: Probability
    trained_probability: Probability
    limit: Limit
    learning_rate: NotRequired[float | None]


class Damaged(UserError):
    """A file that is there, but holds something else than it should."""


def read_json(path: Path, shape: Tree, advice: str) -> Json:
    """The content of a JSON file of this shape; anything else is a mistake with the file, the key and what to do."""
    try:
        text = plain(path).read_bytes()
        content = json.loads(text) if msgspec is None else msgspec.json.decode(text)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error}); {advice}") from None
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path} cannot be read: it is not JSON ({error}); {advice}") from None
    check(content, shape, path, advice)
    return content


def check(content: Tree, shape: Tree, source: object, advice: str) -> None:
    """Raise where what was read is not of this shape."""
    if msgspec is None:
        return
    try:
        msgspec.convert(content, shape, strict=True)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{source} cannot be read: {_explain(str(error))}; {advice}") from None


def _explain(text: str) -> str:
    """What msgspec says, in the words of a user: the key, what was expected, what was there."""
    expected, _, place = text.partition(" - at ")
    keys = re.sub(r"^\$\.?|`", "", place.strip("`")).replace("[...]", "")
    expected = expected.replace("Expected", "must be").replace("`", "").replace(", got", ", not")
    if missing := re.fullmatch(r"Object missing required field (\w+)", expected):
        return f"its {'.'.join(filter(None, [keys, missing[1]]))} is missing"
    return f"its {keys} {expected}" if keys else f"it {expected}"
