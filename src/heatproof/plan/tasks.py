"""The tasks of a plan, and their records: each has the scores of one method on one shard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass

from heatproof.data.base import Data
from heatproof.data.catalog import Batch, load_batch
from heatproof.data.grids import Grids
from heatproof.data.reference import Reference
from heatproof.errors import NotApplicable, join_limited
from heatproof.methods import Expression
from heatproof.models.model import Model
from heatproof.plan.question import Question
from heatproof.protocols import Protocol, ViewKey
from heatproof.runs.format import ModelView, TaskContent
from heatproof.scoring.evaluation import Evaluation
from heatproof.text import counted

KEY_DIGITS = 24  # of the SHA-256 that is the key of a record
NO_KEY = "0" * KEY_DIGITS  # of a record that is not stored


@dataclass(frozen=True, slots=True)
class Record:
    """The scores of one (model view, protocol setting, method, shard).

    Attributes:
        key: A hash of everything that changes the scores.
        evaluation: What is evaluated, the same in all shards.
    """

    key: str
    evaluation: Evaluation

    @property
    def protocol(self) -> Protocol:
        """The protocol with its settings."""
        return self.evaluation.protocol

    @property
    def expression(self) -> Expression:
        """The method."""
        return self.evaluation.expression

    @property
    def not_applicable(self) -> str:
        """Why there are no scores; empty if there are."""
        return self.evaluation.not_applicable

    @property
    def unrecognizable(self) -> bool:
        """Whether it runs user code that cannot be read, so that an edit would go unnoticed."""
        return self.evaluation.unrecognizable


class Records(Iterable[Record]):
    """The records of a shard, which are made when they are asked for.

    A plan can have millions of them: a shard has only the keys, as digits, and shares the rest.

    Args:
        evaluations: What is evaluated.
        keys: The key of each record.
    """

    __slots__ = ("_keys", "evaluations")

    def __init__(self, evaluations: tuple[Evaluation, ...], keys: Iterable[str]):
        self.evaluations = evaluations
        self._keys = "".join(keys)

    @property
    def keys(self) -> list[str]:
        """The keys of the records, in order."""
        return [self._keys[i : i + KEY_DIGITS] for i in range(0, len(self._keys), KEY_DIGITS)]

    def __len__(self) -> int:
        return len(self.evaluations)

    def __iter__(self) -> Iterator[Record]:
        return map(Record, self.keys, self.evaluations)

    def without(self, keys: Set[str]) -> Records:
        """Return the records whose keys are not among some."""
        if not keys:
            return self
        return self.where(lambda record: record.key not in keys)

    def where(self, wanted: Callable[[Record], bool]) -> Records:
        """Return the records that a function is true of."""
        left = [record for record in self if wanted(record)]
        return Records(tuple(r.evaluation for r in left), (r.key for r in left))


@dataclass(frozen=True, repr=False)
class Task:
    """One (model view, shard) with all its records, which share passes.

    Attributes:
        name: Also the name of the task's files.
        model_name: The model's name in the rows, which is the same for all its views.
        view: Which view of the model it is.
        model: The model of that view.
        data: The data of that view.
        indices: The samples of the shard.
        records: What is evaluated.
        reference: Images that are not evaluated, for what is prepared beforehand; None if nothing
            needs them.
        content: What identifies the samples, the model and the methods.
    """

    name: str
    model_name: str
    view: ViewKey
    model: Model
    data: Data
    indices: range
    records: Records
    reference: Reference | None = None
    content: TaskContent = TaskContent()  # noqa: RUF009 (frozen)

    def __repr__(self) -> str:
        samples = f"samples {self.indices.start} to {self.indices.stop - 1}"
        records = counted(len(self.records), "record")
        return f"Task({self.name}: {self.subject.title}, {samples}, {records})"

    @property
    def subject(self) -> ModelView:
        """The model and the view that are evaluated."""
        return ModelView(self.model_name, self.view)

    @property
    def applicable(self) -> list[Record]:
        """The records that have scores."""
        return [record for record in self.records if not record.not_applicable]

    @property
    def protocols(self) -> dict[str, Protocol]:
        """The protocols that evaluate it, by their canonical names."""
        distinct = {id(e.protocol): e.protocol for e in self.records.evaluations}
        return {protocol.canonical: protocol for protocol in distinct.values()}

    def load(self) -> Batch:
        """Return the samples, with parts if a protocol needs them."""
        with_parts = any("parts" in record.protocol.needs for record in self.applicable)
        return load_batch(self.data, self.indices, self.model, with_parts)


@dataclass(frozen=True)
class Plan:
    """All tasks of a run.

    Attributes:
        tasks: In the order in which they run.
        seed: Seed for all noise.
        batch_size: Images in one pass.
        keep_maps: For how many samples of each model images and maps are stored.
        question: What the run is to decide; None if it has a fixed number of samples.
    """

    tasks: tuple[Task, ...]
    seed: int
    batch_size: int
    keep_maps: int
    question: Question | None = None

    def check_applicable(self) -> None:
        """Check that there is something to evaluate.

        Raises:
            NotApplicable: If no method and protocol go with a model and its data; the message says
                why.
        """
        reasons = {e.not_applicable for task in self.tasks for e in task.records.evaluations}
        if "" not in reasons:
            raise NotApplicable(f"there is nothing to evaluate: {join_limited(sorted(reasons))}")

    def rows_per_pass(self, task: Task) -> int:
        """Return the samples in one pass of a task: a grid of 2×2 images counts as four images.

        The memory of a pass then depends on ``batch_size`` alone, not on the size of grids.
        """
        if task.model.batch_dependent:
            return 1
        images = task.data.side**2 if isinstance(task.data, Grids) else 1
        most = self.question.step if self.question else len(task.data.ids)  # no round is padded
        return max(1, min(self.batch_size // images, len(task.data.ids), most))
