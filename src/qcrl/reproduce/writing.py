"""The files of a reproduction: the figure, its numbers as CSV, and a page with table, claims and what is missing."""

import csv
import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from qcrl.errors import UserError
from qcrl.reproduce import tables
from qcrl.reproduce.claims import Claim, markdown
from qcrl.reproduce.results import Found, check_folder, collect, missing
from qcrl.reproduce.scale import PAPER_HOURS, PAPER_STEPS, scaled
from qcrl.runs import checkpoints
from qcrl.show.figures import save
from qcrl.sweeps.grid import cells

HOW_JUDGED = (
    "A mean over seeds is at, over or under a value if its Student interval, given in brackets, contains it or lies on "
    "that side. All intervals of one claim hold together with a confidence of 95%."
)


class Reproduction(NamedTuple):
    """What was made, and what went wrong on the way."""

    figure: Path
    table: Path
    text: Path
    failures: dict[str, str]
    missing: list[str]


def write(figure: str, module: ModuleType, source: Path, out: Path, failures: dict[str, str]) -> Reproduction:
    """Draw the figure from thin results in `source`, which has a folder for every figure."""
    check_folder(source)
    found = _choose(module, source)
    if not found:
        raise UserError(
            f"{source / figure} holds no results of {', '.join(module.GRID['environments'])}; train them without --from"
        )
    scale = min(each.config.get("scale", 1.0) for each in found)
    absent = missing(found, cells(scaled(module, 1.0)))
    drawn = module.draw(found)
    if scale < 1:
        drawn.suptitle(f"scale {scale:g}: shows that it runs, not what the paper claims", fontsize=10, color="#b91c1c")
    out.mkdir(parents=True, exist_ok=True)
    picture = save(drawn, out / f"{figure}.png")
    table = out / f"{figure}.csv"
    checkpoints.write_file(table, _csv(tables.rows(found)).encode())
    page = out / f"{figure}.md"
    text = _page(module, figure, found, module.claims(found), scale, absent, failures)
    checkpoints.write_file(page, text.encode())
    return Reproduction(picture, table, page, failures, absent)


def _choose(module: ModuleType, source: Path) -> list[Found]:
    """All that the figure's own folder has; and from the others, for the same environments, what its grid trains."""
    own = source / module.SOURCES[0]
    asked = {cell.label for cell in cells(scaled(module, 1.0))}
    known = collect(source / name for name in module.SOURCES)
    trained = [each.environment for each in known if own in each.folder.parents]
    environments = list(dict.fromkeys([*module.GRID["environments"], *trained]))
    mine = [each for each in known if own in each.folder.parents or each.label in asked]
    found = [each for each in mine if each.environment in environments]
    return sorted(found, key=lambda each: (environments.index(each.environment), each.label, each.probability))


def _csv(rows: Sequence[tables.Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _page(
    module: ModuleType,
    figure: str,
    found: Sequence[Found],
    claims: Sequence[Claim],
    scale: float,
    absent: Sequence[str],
    failures: dict[str, str],
) -> str:
    parts = [f"# {module.TITLE}"]
    if scale < 1:
        parts.append(f"**Scale {scale:g}.** This shows that everything runs; the verdicts say nothing about the paper.")
    parts.append(f"![{module.TITLE}]({figure}.png)")
    parts.append(
        "Mean ± standard deviation over seeds. Training: the last iteration, over the most recent 100 episodes. "
        "Fresh: new episodes of each seed's last policy, with the exact 95% interval of their outage over all seeds."
    )
    parts.append(tables.markdown(found))
    if hasattr(module, "extra"):
        parts.append(module.extra(found))
    parts.append(f"## Claims\n\n{HOW_JUDGED}\n\n{markdown(claims)}")
    absent = [
        *absent,
        *(
            f"{each.environment} {each.label} at {each.probability:g}: fresh episodes"
            for each in found
            if not each.fresh
        ),
    ]
    lost = [f"{path}: {failure}" for path, failure in failures.items()]
    if absent or lost:
        parts.append("## Missing\n\n" + "\n".join(f"- {each}" for each in [*absent, *lost]))
    parts.append("## How these numbers were made\n\n" + _origin(found))
    return "\n".join(map(_wrapped, "\n\n".join(parts).split("\n"))) + "\n"


def _wrapped(line: str) -> str:
    """In lines that a page of text may have; tables stay as they are."""
    if line.startswith("|"):
        return line
    return textwrap.fill(line, 130, subsequent_indent="  " * line.startswith("- "), break_on_hyphens=False)


def _origin(found: Sequence[Found]) -> str:
    """Devices, versions and time, of all folders together."""
    configs = list({each.folder: each.config for each in found}.values())
    devices = sorted({f"{each['setup']['device']}, jax {each['setup']['jax']}" for each in configs})
    runs = sum(len(each["lanes"]) for each in configs)
    timed = [each["training_seconds"] for each in configs if "training_seconds" in each]
    took = f"{sum(timed) / 60:.1f} minutes of training, compilation not counted" if timed else "time not recorded"
    if 0 < len(timed) < len(configs):
        took += f", for {len(timed)} of {len(configs)} cells; the others have no time recorded"
    text = f"{runs} trainings on {' and '.join(devices)}: {took}."
    if min(each["steps"] for each in configs) >= PAPER_STEPS:
        text += f" The paper's server takes 8 to 10 hours for each, about {runs * PAPER_HOURS:,} hours for as many."
    return text
