"""The certificate itself: all that it asserts, one hash over it, a signature if there is a key, and its file."""

import contextlib
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from qcrl.constraints import Constraint, Outage, from_dict
from qcrl.errors import UserError
from qcrl.evaluation import together
from qcrl.evaluation.evaluate import write_json
from qcrl.evaluation.plan import Plan
from qcrl.kinds import Json
from qcrl.runs import shapes
from qcrl.runs.folder import Run
from qcrl.runs.lane import Lane, shortest

LONGEST_KEY = 2**16
"""Bytes of a file that may be a key."""
SEALS = ("sha256", "signature")
"""What the hash does not cover."""


class NotWhole(UserError):
    """A file that is no certificate, or no longer one: nothing in it holds."""

    exit_code = 1


@dataclass(frozen=True)
class Certificate:
    """A promise about one policy, and all that is needed to check it."""

    verdict: str
    """certified: the upper bound is at most the probability. violated: the lower bound is above it. Else undecided."""
    policy: str
    """Its file in the run folder."""
    policy_sha256: str
    environment: Json
    engine: str
    deterministic: bool
    limit: float
    cost: str
    """Which of the environment's costs."""
    probability: float
    """What is promised: at most this share of episodes costs more than the limit."""
    trained_probability: float
    confidence: float
    """Of all the certificates that were made together, and of all attempts so far."""
    certified_together: int
    """Certificates that share the error 1 - confidence evenly."""
    attempt: int
    """1 + the highest number of those that the run had before; certificates that are made together have one."""
    spent: float
    """The error of all those before; of certificates that are made together, each bears an even share of it."""
    error: float
    """What is left for this one: the probability of a false certificate where the outage equals the promise."""
    expected: float | None
    """The outage that the number of episodes was planned for; None where the number was given."""
    power: float | None
    """The chance of a certificate at that outage."""
    looks: list[int]
    """After how many episodes outages were to be counted; one number unless the plan is sequential."""
    spending: float
    """How a sequential plan spends its error over the looks."""
    certify_at: list[int]
    """At most so many outages at that look certify."""
    violate_at: list[int]
    """So many or more show that the promise is broken."""
    counts: list[int]
    """Outages at every look that was needed."""
    episodes: int
    outages: int
    upper_bound: float
    lower_bound: float
    candidates: int
    """Policies that this one was chosen from."""
    selection_episodes: int
    """Of the candidate with the fewest, other episodes than those that certify; 0 where nothing was chosen."""
    calibration: list[Json]
    """What those told of every candidate: its file, its hash, outages and mean return."""
    parts: list[Json]
    """Where the policy is a mixture: the weight, file and hash of every part."""
    episode_seed: int
    """Follows from the policy, the environment, how it is run, and the attempt."""
    versions: dict[str, str]
    seed: int
    """Training seed of the policy."""
    learning_rate: float | None = None
    """Only where lanes of the run differ in it."""
    at_run_time: bool = False
    """Limit and probability were chosen as the policy was run, within the ranges that it was trained for."""
    constraints: list[Json] = field(default_factory=list)
    """Where several hold together: what each is, what is promised of it, what was found, its bounds and verdict."""
    sha256: str = field(default="", compare=False)
    """Of everything above, as JSON with sorted keys and without spaces."""
    signature: Json | None = field(default=None, compare=False)
    """Ed25519, of that hash: algorithm, public_key and value; only where a key was given."""

    @property
    def lane(self) -> Lane:
        trained: tuple[Constraint, ...] = (Outage(self.limit, self.trained_probability, self.cost),)
        if self.constraints:
            trained = tuple(from_dict(row["trained"]) for row in self.constraints)
        return Lane(self.seed, trained, self.trained_probability, self.learning_rate)

    @property
    def plan(self) -> Plan:
        looks, low, high = (tuple(each) for each in (self.looks, self.certify_at, self.violate_at))
        return Plan(self.probability, self.error, looks, low, high, self.spending)

    @property
    def promises(self) -> tuple[float, ...]:
        """Of each outage constraint, where several constraints hold together."""
        return tuple(row["promise"] for row in self.constraints if "outages" in row)

    @property
    def file(self) -> str:
        """Its name in the run folder."""
        again = f"-attempt{self.attempt}" if self.attempt > 1 else ""
        asked = f"-at-p{shortest(self.trained_probability)}-d{shortest(self.limit)}-promise{shortest(self.probability)}"
        asked = asked if self.at_run_time else ""
        return f"certificate-{Path(self.policy).stem}{asked}{again}.json"

    def repeats(self, before: "Certificate") -> bool:
        """Whether it is the same attempt at the same policy with the same plan, so that its episodes are the same."""
        of = lambda c: (c.attempt, c.policy_sha256, c.episode_seed, str(c.lane), c.plan, c.promises)
        return of(self) == of(before)

    def digest(self) -> str:
        """The hash of everything that is asserted."""
        return canonical_hash({name: value for name, value in asdict(self).items() if name not in SEALS})

    @property
    def whole(self) -> bool:
        """Whether the hash is that of the content."""
        try:
            return self.sha256 == self.digest()
        except ValueError:  # numbers that JSON has no word for
            return False

    def sealed(self, private: Any = None) -> "Certificate":
        """With its hash, and signed where there is a private key, as `signing_key` reads it."""
        digest = self.digest()
        return replace(self, sha256=digest, signature=None if private is None else sign(digest, private))

    def __repr__(self) -> str:
        return f"<Certificate {self}>"

    def __str__(self) -> str:
        share = f"{self.outages:,} outages in {self.episodes:,} episodes"
        if len(self.looks) > 1:
            share += f" (look {len(self.counts)} of {len(self.looks)})"
        promise = f"at most {self.probability:g} of episodes cost more than {self.limit:g}"
        level = f"confidence {self.confidence:.4g}"
        if self.certified_together > 1:
            level += f" for all {self.certified_together} certificates"
        if self.attempt > 1:
            level += f" for all {self.attempt} attempts of this run"
        mixed = f", a mixture of {len(self.parts)} policies" if self.parts else ""
        bounds = f"upper bound {self.upper_bound:.4f}, lower bound {self.lower_bound:.4f}, each one-sided"
        name = Path(self.policy).stem
        if self.constraints:
            shown = " ".join(row["words"] for row in self.constraints)
            return f"{name}{mixed}: {self.verdict}, all together. {shown} {self.episodes:,} episodes, {level} for each."
        return f"{name}{mixed}: {self.verdict}. Promise: {promise}. Found: {share}; {bounds}, {level}."


def canonical_hash(content: Json) -> str:
    """Of a JSON object, whatever the order of its keys."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def episode_seed(policy_sha256: str, environment: Json, engine: str, deterministic: bool, attempt: int) -> int:
    """Which episodes certify. Another plan for the same policy is the next attempt, which gets others."""
    measured = {
        "policy": policy_sha256,
        "environment": environment,
        "engine": engine,
        "deterministic": deterministic,
        "attempt": attempt,
    }
    return int(canonical_hash(measured)[:12], 16)


def write_certificate(run: Run, certificate: Certificate, earlier: Sequence[Certificate] = ()) -> Certificate:
    """What stands in its file now. The same attempt once more brings no fresh luck, and loses no signature."""
    for before in earlier:
        if before.whole and certificate.repeats(before) and not _came_out_alike(certificate, before):
            now, then = (_found(each) for each in (certificate, before))
            raise UserError(
                f"the same episodes of {before.policy} came out otherwise (outages {now}, before {then}), so the "
                "environment does not obey its seeds, or versions or device differ; the certificate of before stands: "
                "use it, or repeat it with the versions and device that it names"
            )
    path = run.path / certificate.file
    if certificate.signature is None and path.exists():
        with contextlib.suppress(UserError):
            before = read_certificate(path)
            if before.whole and before.signature is not None and certificate.repeats(before):
                return before
    write_json(path, asdict(certificate))
    return certificate


def _came_out_alike(one: Certificate, two: Certificate) -> bool:
    return one.counts == two.counts and together.same(one.constraints, two.constraints)


def _found(certificate: Certificate) -> str:
    """Outages at every look; where several constraints hold together, of each its outages or its mean cost."""
    rows = [row.get("outages", row.get("mean")) for row in certificate.constraints]
    return ", ".join(map(str, rows or certificate.counts))


def earlier_certificates(run: Run, lanes: Sequence[Lane] | None = None) -> list[Certificate]:
    """Those of this run, or of these lanes of it, also those set aside when training went on; copies count once."""
    found: dict[str, Certificate] = {}
    for path in sorted([*run.path.glob("certificate-*.json"), *run.path.glob("earlier/*/certificate-*.json")]):
        try:
            certificate = read_certificate(path)
        except UserError:
            continue  # it certifies nothing, so it has spent nothing
        found[certificate.sha256] = certificate
    names = None if lanes is None else {str(lane) for lane in lanes}
    return [certificate for certificate in found.values() if names is None or str(certificate.lane) in names]


def read_certificate(file: str | Path) -> Certificate:
    """The certificate in this file; anything else is a user's mistake."""
    advice = "certify the policy again"
    if Path(file).is_dir():
        raise UserError(f"{file} is a folder; give the file of a certificate in it, named certificate-...")
    try:
        content = shapes.read_json(Path(file), Certificate, advice)
    except FileNotFoundError:
        raise UserError(f"there is no file {file}; give the file of a certificate") from None
    except shapes.Damaged as error:
        raise NotWhole(str(error)) from None
    names = {each.name for each in fields(Certificate)}
    for name in sorted(names ^ content.keys()):  # what has a default here must be in the file all the same
        what = "is missing" if name in names else "is nothing that a certificate holds"
        raise NotWhole(f"{file} is no whole certificate: its {name} {what}; {advice}")
    return Certificate(**content)


def signing_key(key: Any) -> Any:
    """The private key in this file. It is read once, before any episode is run: it may be bad, or a pipe."""
    if key is None or hasattr(key, "sign"):
        return key
    private = _read_key(key)
    if not hasattr(private, "sign"):
        raise UserError(f"{key} holds a public key, which can only verify; to sign, give the private one")
    return private


def sign(digest: str, private: Any) -> Json:
    """The signature of a hash with a private key."""
    value = private.sign(bytes.fromhex(digest))
    return {"algorithm": "Ed25519", "public_key": _public_bytes(private).hex(), "value": value.hex()}


def signature_problem(certificate: Certificate, key: str | Path | None) -> str | None:
    """What is wrong with the signature; None if nothing is, or if there is none and no key was given."""
    signature = certificate.signature
    if signature is None:
        return None if key is None else "it has no signature"
    _require_cryptography()
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        public = bytes.fromhex(signature["public_key"])
        Ed25519PublicKey.from_public_bytes(public).verify(
            bytes.fromhex(signature["value"]), bytes.fromhex(certificate.sha256)
        )
    except (InvalidSignature, KeyError, TypeError, ValueError):
        return "its signature is not one of its hash"
    if key is not None and public != _public_bytes(_read_key(key)):
        return f"it is signed, but not with the key {key}"
    return None


def _read_key(file: str | Path) -> Any:
    """The Ed25519 key, private or public, in a PEM file."""
    _require_cryptography()
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519

    try:
        with open(file, "rb") as opened:  # perhaps a pipe
            content = opened.read(LONGEST_KEY)
    except OSError as error:
        raise UserError(f"cannot read {file} ({error.strerror}); give a PEM file with an Ed25519 key") from None
    try:
        private = b"PRIVATE KEY" in content
        key = (
            serialization.load_pem_private_key(content, None) if private else serialization.load_pem_public_key(content)
        )
    except (TypeError, ValueError) as error:
        raise UserError(f"{file} holds no key that can be read ({error}); give a PEM file without a password") from None
    if not isinstance(key, ed25519.Ed25519PrivateKey | ed25519.Ed25519PublicKey):
        raise UserError(f"{file} holds no Ed25519 key; make one: openssl genpkey -algorithm ed25519 -out {file}")
    return key


def _public_bytes(key: Any) -> bytes:
    public = key.public_key() if hasattr(key, "public_key") else key
    return public.public_bytes_raw()


def _require_cryptography() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise UserError("signatures need the package cryptography; install it: pip install 'qcrl[sign]'") from None
