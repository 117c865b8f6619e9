"""PATE with the Confident-GNMax aggregator (Papernot et al. 2018, Algorithm 1; dplis2021, Section 5.7).

| paper | here |
| --- | --- |
| teachers, T | teachers, threshold (votes) |
| σ₂ | the noise multiplier of the budget, in votes |
| σ₁ | selection_ratio times σ₂ |
| queries, answers | queries, labels: at most so many answers |
| K, σ_smooth | smoothing_samples (0: no smoothing), smoothing_deviation |

The first step, line by line:
- every private record gets one teacher, drawn for it alone; each teacher is trained on its own records (`votes_file`:
  the counts of teachers trained elsewhere);
- the public inputs are the first `public_examples` of the test set, without their labels; the result of a run is
  measured on the rest. Every teacher votes on the first `queries` of them;
- check: the largest count of each query plus N(0, σ₁²) is compared with the threshold;
- answer: the first `labels` queries that pass get the class of the largest count after N(0, σ₂²) on every count.
Every step then moves the student by a batch of round(q·N) of the answered queries: post-processing, with N public.

Privacy, for one record added, removed or replaced. Proof. A record has one teacher, and the other records' teachers are
drawn by themselves, so given these draws one teacher changes; its batches depend on its own number of records. So on
every query one vote moves from one class to another: the largest count moves by at most 1, the counts by at most √2.
Which queries are asked is public. All checks are `queries` Gaussians of sensitivity 1. Given their results the answers
are `labels` Gaussians of sensitivity √2: which query each is about is read off the checks (adaptive inputs), its noise
is fixed; an answer that no query needs is drawn on zeros and dropped. Ledger: `labels` answered `ConfidentGNMax`, and
`queries` − `labels` unanswered ones, whatever is voted. Without the cap an ε charged for the answers that were given
would depend on the votes, as in dplis2021's Table 13. The draws of the teachers are independent of the data, so what
holds given each of them holds for their mixture.

The student's batch has round(q·N) labels, N the number of private records. N is taken as public here, as the record
prints it. With `batch_size` B in the spec q is B/N, and a neighbour of N ± 1 records has the same batch as long as
q < 1/2; with `sampling_rate` its batch may have one label more or less.

No votes are kept, so a run has no data-dependent ε: that one is private itself unless it is released with noise
(`dpbench.privacy.smooth_sensitivity`).
Shapes: R runs, N examples, Q queries, L labels, C classes, B places of a batch, P parameters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from dpbench import randomness
from dpbench.catalog import build
from dpbench.errors import DpbenchError
from dpbench.events import Composition, ConfidentGNMax, Event
from dpbench.mechanisms._pate_votes import Teachers, counted_votes, hash_of, owners, read_votes, trained_teachers
from dpbench.mechanisms.presets import ANY, Factory
from dpbench.step.functional import Network, finite_runs
from dpbench.step.mechanism import Hyperparameters, Kept, Observed, Released, Setting, State
from dpbench.step.pipeline import optimised
from dpbench.step.stages import Update, gaussian_noise

NUMERICS = 1

NOT_ASKED, NOT_ANSWERED = -2, -1
MOST_SAMPLES = 10_000  # of the smoothing: each is a gradient of every batch
NOTHING_ANSWERED = "no query was answered, so there is nothing to train on: lower the threshold, or ask more queries"


@dataclass(frozen=True)
class VotesFile:
    """Counts of votes from a file, relative to the working directory; a stored run has the hash alone.

    A spec may leave the hash out as long as nobody has the file.
    """

    sha256: str | None
    path: str | None
    licence: str | None
    made_from: str | None


@dataclass(frozen=True)
class Pate:
    """See the module. `public` are the public inputs, (public_examples, ...)."""

    optimizer: Update
    teachers: Teachers
    threshold: float
    selection_ratio: float
    public_examples: int
    queries: int
    labels: int
    above_teachers: bool = False
    halfway_factor: float = 1.0
    smoothing_samples: int = 0
    smoothing_deviation: float = 0.03
    votes: VotesFile | None = None
    public: Tensor | None = field(default=None, repr=False, compare=False)

    clips = False
    private = True
    secure = True
    spends_budget = False
    drawn_afterwards = (randomness.SAMPLE, randomness.SMOOTHING)  # streams of the student, after all releases

    def __post_init__(self) -> None:
        least = {"public_examples": 1, "queries": 1, "labels": 1, "smoothing_samples": 0}
        counts: dict[str, tuple[Any, int]] = {name: (getattr(self, name), low) for name, low in least.items()}
        counts["teachers"] = (self.teachers.count, 2)
        counts["teacher_steps"], counts["teacher_batch_size"] = (self.teachers.steps, 1), (self.teachers.batch_size, 1)
        for name, (value, low) in counts.items():
            if not isinstance(value, int) or isinstance(value, bool) or value < low:
                raise DpbenchError(f"{name} = {value!r}: expected a whole number, {low} or more")
        for name, number, above in (
            ("threshold", self.threshold, None),
            ("selection_ratio", self.selection_ratio, 0.0),
            ("teacher_learning_rate", self.teachers.learning_rate, 0.0),
            ("halfway_factor", self.halfway_factor, 0.0),
            ("smoothing_deviation", self.smoothing_deviation, 0.0),
        ):
            real = isinstance(number, int | float) and not isinstance(number, bool) and math.isfinite(number)
            if not real or (above is not None and number <= above):
                raise DpbenchError(
                    f"{name} = {number!r}: expected a finite number{'' if above is None else ' above 0'}"
                )
        if self.smoothing_samples > MOST_SAMPLES:
            raise DpbenchError(f"smoothing_samples = {self.smoothing_samples}: expected at most {MOST_SAMPLES:,}")
        if self.threshold > self.teachers.count and not self.above_teachers:
            raise DpbenchError(
                f"threshold = {self.threshold:g}: above the {self.teachers.count} votes that there are, so that even"
                " unanimous queries pass by the noise alone; lower it, take more teachers, or say above_teachers: true"
            )
        if self.queries > self.public_examples:
            raise DpbenchError(
                f"queries = {self.queries}: expected at most public_examples = {self.public_examples}, of which they"
                " are the first"
            )
        if self.labels > self.queries:
            raise DpbenchError(f"labels = {self.labels}: expected at most queries = {self.queries}")

    def with_public(self, inputs: Tensor) -> Pate:
        """The same mechanism with its public inputs, (public_examples, ...)."""
        return replace(self, public=inputs)

    def check(self, setting: Setting) -> None:
        """Raise DpbenchError if there are not enough records, public inputs or votes."""
        setting.expect_cross_entropy("pate")
        if self.votes is None and self.teachers.count > setting.examples:
            raise DpbenchError(
                f"teachers = {self.teachers.count}: more than the {setting.examples} private examples; expected at most"
                " one for each"
            )
        if self.votes is None and self.teachers.batch_size > setting.examples:
            raise DpbenchError(
                f"teacher_batch_size = {self.teachers.batch_size}: more than the {setting.examples} private examples;"
                " expected fewer than a teacher has"
            )
        if setting.test_examples is not None and self.public_examples >= setting.test_examples:
            raise DpbenchError(
                f"public_examples = {self.public_examples}: leaves none of the {setting.test_examples} test examples to"
                " measure the student on; take fewer"
            )
        if setting.clip_norm is not None:
            raise DpbenchError(f"clip_norm = {setting.clip_norm:g}: pate clips nothing; leave it out")
        if setting.sampling_rate * setting.examples < 0.5:
            raise DpbenchError(
                f"sampling_rate = {setting.sampling_rate:g}: makes a student's batch of"
                f" {setting.sampling_rate * setting.examples:g} labels; expected a batch_size of 1 or more"
            )
        if self.votes is not None and self.obstacle() is None:
            classes = self._from_file().shape[1]
            if setting.classes not in (None, classes):
                raise DpbenchError(
                    f"votes_file = {self.votes.path}: has the votes of {classes} classes; expected those of the"
                    f" {setting.classes} classes of the data"
                )

    def obstacle(self) -> str | None:
        """Why a run cannot be trained here: its file of votes is absent."""
        if self.votes is None or self.votes.path is None:
            return None
        try:
            if Path(self.votes.path).is_file():
                return None
        except OSError as error:
            raise DpbenchError(f"votes_file = {self.votes.path}: cannot be read ({error.strerror or error})") from error
        made = f", {self.votes.made_from}" if self.votes.made_from else ""
        return f"the votes are absent: votes_file = {self.votes.path}{made}"

    def ledger(self, *, sampling_rate: float, noise_multiplier: float | None, steps: int) -> Composition | None:
        """Every query, `labels` of them answered; nothing depends on the rate and the steps of the student."""
        del sampling_rate, steps
        if not noise_multiplier or not noise_multiplier > 0:
            raise ValueError(f"noise_multiplier = {noise_multiplier!r}: expected a number above 0")
        query = ConfidentGNMax(float(self.threshold), self.selection_ratio * noise_multiplier, noise_multiplier)
        parts = ((replace(query, answered=False), self.queries - self.labels), (query, self.labels))
        return Composition(tuple((event, count) for event, count in parts if count))

    def released(self, state: State, hyper: Hyperparameters) -> tuple[Composition | None, ...]:
        asked_R = (state.memory["labels_RQ"][:, 0] != NOT_ASKED).tolist()
        numbers = zip(asked_R, hyper.noise_multiplier_R.tolist(), strict=True)
        return tuple(self._whole(sigma) if asked else Composition(()) for asked, sigma in numbers)

    def facts(self) -> Mapping[str, Any]:
        here = f"{self.teachers.count} teachers, each trained on its own part of the private examples"
        told = {"votes": here}
        if self.votes is not None:
            said = f"({self.votes.made_from}; {self.votes.licence})"
            told["votes"] = f"from a file {said}; assumed, not checked: one record changes one teacher's vote"
        return {
            "sampler": "none: every record belongs to a teacher",
            "adjacency": "add_or_remove",
            "privacy_unit": "one training example",
            "normalisation": "the student's batch of released labels",
            "public_examples": self.public_examples,
            **told,
        }

    def start(self, theta_RP: Tensor, hyper: Hyperparameters, inputs: Tensor, targets: Tensor) -> State:
        """The student's initial parameters; nothing is released yet."""
        del hyper, inputs, targets
        memory = {name: torch.zeros_like(theta_RP) for name in self.optimizer.memory}
        shape = len(theta_RP), self.queries
        memory["labels_RQ"] = torch.full(shape, NOT_ASKED, dtype=torch.int64, device=theta_RP.device)
        return State(theta_RP, memory, torch.zeros(len(theta_RP), dtype=torch.int64, device=theta_RP.device))

    def refuse_state(self, state: State, start: State, hyper: Hyperparameters, examples: int) -> None:
        """Raise DpbenchError for labels that were not asked for, or more of them than are answered."""
        del start, hyper, examples
        labels_RQ = state.memory["labels_RQ"]
        if bool((labels_RQ < NOT_ANSWERED).any()) or int((labels_RQ >= 0).sum()) > self.labels:
            raise DpbenchError(f"its labels_RQ: expected {NOT_ANSWERED} or a class, and at most {self.labels} classes")

    def released_labels(self, state: State) -> Tensor:
        """The label of every query, int64 (R, Q), below 0 where it has none."""
        return state.memory["labels_RQ"]

    def view(self, state: State, inputs: Tensor) -> Tensor | None:
        del state, inputs
        return None

    def release(
        self, net: Network, state: State, hyper: Hyperparameters, inputs: Tensor, targets: Tensor, chunk: int
    ) -> tuple[Released, Kept]:
        """The labels, in the first step; then a gradient of the student, by the labels alone."""
        labels_RQ = state.memory["labels_RQ"]
        asking_R = labels_RQ[:, 0] == NOT_ASKED
        if bool(asking_R.any()):
            place = asking_R.nonzero().flatten()
            votes_RQC = self.counted(net, state.theta_RP[place], hyper.take(place), inputs, targets, chunk)
            labels_RQ = labels_RQ.clone()
            labels_RQ[place] = self.aggregated(votes_RQC, hyper.take(place))
        gradient_RP, loss_R, drawn_R = self._student(net, state, hyper, labels_RQ, len(targets), chunk)
        late_R = 2 * state.step_R >= hyper.steps_R
        whole_R = torch.ones_like(hyper.learning_rate_R)
        factor_R = torch.where(late_R, self.halfway_factor * whole_R, whole_R)
        empty_R = (labels_RQ < 0).all(1)
        observed = Observed(
            drawn_R=drawn_R,
            loss_R=loss_R,
            clipped_R=torch.zeros_like(drawn_R),
            finite_R=finite_runs(gradient_RP),
            stopped=dict.fromkeys(empty_R.nonzero().flatten().tolist(), NOTHING_ANSWERED),
        )
        values = {"labels_RQ": labels_RQ, "rate_factor_R": factor_R}
        return Released(gradient_RP, partial(self._events, asking_R, hyper), values), Kept(observed)

    def update(self, state: State, rate_R: Tensor, released: Released) -> State:
        rate_R = rate_R * released.values["rate_factor_R"]
        theta_RP, kept = optimised(self.optimizer, state, rate_R, released.gradient_RP)
        kept["labels_RQ"] = released.values["labels_RQ"]
        return replace(state, theta_RP=theta_RP, memory={**state.memory, **kept}, step_R=state.step_R + 1)

    # ---- what looks at the private data ----

    def owners(self, hyper: Hyperparameters, examples: int) -> Tensor:
        """The teacher of every private example, int64 (R, N)."""
        return owners(hyper.keys_RS, examples, self.teachers.count)

    def trained(
        self, net: Network, theta_RP: Tensor, hyper: Hyperparameters, inputs: Tensor, targets: Tensor, chunk: int
    ) -> Tensor:
        """The parameters of the teachers, (R, T, P). They are private."""
        owner_RN = self.owners(hyper, len(targets))
        return trained_teachers(self.teachers, owner_RN, net, theta_RP, hyper.keys_RS, inputs, targets, chunk)

    def counted(
        self, net: Network, theta_RP: Tensor, hyper: Hyperparameters, inputs: Tensor, targets: Tensor, chunk: int
    ) -> Tensor:
        """The counts of votes of every query, int64 (R, Q, C). They are private."""
        if self.votes is not None:
            return self._from_file().to(theta_RP.device).expand(len(theta_RP), -1, -1)
        teachers_RTP = self.trained(net, theta_RP, hyper, inputs, targets, chunk)
        return counted_votes(net, teachers_RTP, self._queries(inputs), chunk)

    def aggregated(self, votes_RQC: Tensor, hyper: Hyperparameters) -> Tensor:
        """Confident-GNMax: the label of every query, int64 (R, Q), or NOT_ANSWERED.

        Two values are let out: the largest counts, then the counts of the answered queries, zeros where none is.
        """
        keys_RS, answer_R = hyper.keys_RS, hyper.noise_multiplier_R
        runs, queries, classes = votes_RQC.shape
        step_R = torch.zeros(runs, dtype=torch.int64, device=votes_RQC.device)
        checked_RQ = self._checked(votes_RQC.amax(2).double(), self.selection_ratio * answer_R, keys_RS, step_R)
        passed_RQ = checked_RQ >= self.threshold
        chosen_RQ = passed_RQ & (passed_RQ.cumsum(1) <= self.labels)
        place_RL = (~chosen_RQ).long().argsort(dim=1, stable=True)[:, : self.labels]
        used_RL = chosen_RQ.gather(1, place_RL)
        counts_RLC = votes_RQC.gather(1, place_RL[:, :, None].expand(-1, -1, classes)) * used_RL[:, :, None]
        noisy_RK = gaussian_noise(counts_RLC.double().flatten(1), answer_R, keys_RS, step_R, first=queries)
        label_RL = noisy_RK.reshape(counts_RLC.shape).argmax(2)
        labels_RQ = torch.full((runs, queries), NOT_ANSWERED, dtype=torch.int64, device=votes_RQC.device)
        return labels_RQ.scatter(1, place_RL, torch.where(used_RL, label_RL, NOT_ANSWERED))

    def _checked(self, largest_RQ: Tensor, deviation_R: Tensor, keys_RS: Tensor, step_R: Tensor) -> Tensor:
        """The largest counts with the noise of the check."""
        return gaussian_noise(largest_RQ, deviation_R, keys_RS, step_R)

    # ---- what does not ----

    def _student(
        self, net: Network, state: State, hyper: Hyperparameters, labels_RQ: Tensor, examples: int, chunk: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradient (R, P) of the student on a batch drawn with replacement, its summed loss and size (R,)."""
        answered_RQ = labels_RQ >= 0
        count_R, size_R = answered_RQ.sum(1), (hyper.sampling_rate_R * examples).round().long().clamp_min(1)
        size_R = torch.where(count_R > 0, size_R, 0)
        places = max(1, int(size_R.max()))
        bits_RB = randomness.uniform_bits(hyper.keys_RS, randomness.SAMPLE, state.step_R, places)
        at_RB = torch.minimum(
            (bits_RB.double() * 2.0**-53 * count_R[:, None]).long(), (count_R - 1).clamp_min(0)[:, None]
        )
        index_RB = (~answered_RQ).long().argsort(dim=1, stable=True).gather(1, at_RB)
        weight_RB = torch.arange(places, device=size_R.device) < size_R[:, None]
        target_RB = labels_RQ.gather(1, index_RB).clamp_min(0)
        queries = self._queries(state.theta_RP)
        total_RP, loss_R = torch.zeros_like(state.theta_RP), torch.zeros_like(hyper.learning_rate_R)

        def summed(named: dict[str, Tensor], inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
            losses = nn.functional.cross_entropy(net.outputs(named, inputs), targets, reduction="none")
            return torch.where(weights, losses, torch.zeros_like(losses)).sum()

        shifts = self._shifts(hyper.keys_RS, state, net.size)
        for shifted_RP in shifts:
            named = net.split(state.theta_RP + shifted_RP)
            for start in range(0, places, chunk):
                of = slice(start, start + chunk)
                batch = queries[index_RB[:, of]], target_RB[:, of], weight_RB[:, of]
                part, loss = vmap(grad_and_value(summed))(named, *batch)
                total_RP, loss_R = total_RP + net.join(part) / len(shifts), loss_R + loss.double() / len(shifts)
        return total_RP / size_R.clamp_min(1)[:, None].to(total_RP.dtype), loss_R, size_R

    def _shifts(self, keys_RS: Tensor, state: State, size: int) -> list[Tensor]:
        """The K shifts of the parameters (R, P) of a step, of deviation σ_smooth; one of 0 without smoothing."""
        if self.smoothing_samples == 0:
            return [torch.zeros((), dtype=state.theta_RP.dtype, device=state.theta_RP.device)]
        draw = partial(randomness.normal, keys_RS, randomness.SMOOTHING, state.step_R, size)
        firsts = range(0, self.smoothing_samples * size, size)
        return [self.smoothing_deviation * draw(first=first, dtype=state.theta_RP.dtype) for first in firsts]

    def _queries(self, like: Tensor) -> Tensor:
        if self.public is None:
            raise DpbenchError("public: pate has no public inputs; expected those of `with_public` (training.loop)")
        return self.public[: self.queries].to(like.device, like.dtype)

    def _from_file(self) -> Tensor:
        assert self.votes is not None
        for name in ("path", "licence", "made_from"):
            if not getattr(self.votes, name):
                given = {"path": "votes_file"}.get(name, f"votes_{name}")
                raise DpbenchError(
                    f"{given}: missing; a file of votes needs its path, licence and what it was made from"
                )
        assert self.votes.path is not None
        if self.votes.sha256 is None:
            found = hash_of(Path(self.votes.path))
            raise DpbenchError(f"votes_sha256: missing; {self.votes.path} has {found}: say that in the spec")
        return read_votes(Path(self.votes.path), self.votes.sha256, self.teachers.count, self.queries)

    def _whole(self, noise_multiplier: float) -> Composition | None:
        return self.ledger(sampling_rate=1.0, noise_multiplier=noise_multiplier, steps=0)

    def _events(self, asking_R: Tensor, hyper: Hyperparameters, run: int) -> tuple[Event, ...]:
        """All events, in the step that asks; none later."""
        whole = self._whole(float(hyper.noise_multiplier_R[run])) if bool(asking_R[run]) else None
        return () if whole is None else tuple(event for event, count in whole.parts for _ in range(count))


def with_stages(
    *,
    teachers: int = 50,
    threshold: float = 30.0,
    selection_ratio: float = 2.0,
    public_examples: int = 100,
    queries: int | None = None,
    labels: int | None = None,
    above_teachers: bool = False,
    teacher_steps: int = 100,
    teacher_batch_size: int = 32,
    teacher_learning_rate: float = 0.1,
    halfway_factor: float = 1.0,
    smoothing_samples: int = 0,
    smoothing_deviation: float = 0.03,
    votes_file: str | None = None,
    votes_sha256: str | None = None,
    votes_licence: str | None = None,
    votes_made_from: str | None = None,
    update: str | dict[str, Any] = "sgd",
) -> Pate:
    """PATE with Confident-GNMax (Papernot et al. 2018): teachers vote on public inputs, a student learns the answers.

    `queries` is by default all public examples, `labels` all queries. Raises DpbenchError for parameters that are not
    valid; `Pate.check` tests what depends on the data or the plan.

    >>> with_stages(teachers=250, threshold=200, public_examples=1000, labels=300).queries
    1000
    """
    told = votes_file is not None or votes_sha256 is not None
    if not told and (votes_licence is not None or votes_made_from is not None):
        raise DpbenchError("votes_file: missing; expected the file whose licence and origin are given")
    asked = public_examples if queries is None else queries
    return Pate(
        optimizer=build("updates", update),
        teachers=Teachers(teachers, teacher_steps, teacher_batch_size, teacher_learning_rate),
        threshold=threshold,
        selection_ratio=selection_ratio,
        public_examples=public_examples,
        queries=asked,
        labels=asked if labels is None else labels,
        above_teachers=above_teachers,
        halfway_factor=halfway_factor,
        smoothing_samples=smoothing_samples,
        smoothing_deviation=smoothing_deviation,
        votes=VotesFile(votes_sha256, votes_file, votes_licence, votes_made_from) if told else None,
    )


# Takes the update's parameters beside its own: `optimizer` names the update.
mechanism = Factory("pate", with_stages, {"update": ANY}, str(with_stages.__doc__))
mechanism.ENGINE += ("votes_file", "votes_licence", "votes_made_from")  # the hash is in the key
