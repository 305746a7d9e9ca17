"""The losses of a method for a part of a batch: student, teacher, and what stands beside them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lib.distill.auxiliary import FeatureLoss, LayerFeatures, auxiliary_head, split_head
from lib.distill.batch import Batch
from lib.distill.evaluation import evaluation_mode, predict
from lib.distill.example_checks import check_tensor
from lib.distill.examples import Examples
from lib.distill.precision import computing, exact_float32
from lib.distill.settings import TrainingSettings
from lib.tpkd.checks import check_labels, prepare


class Part(NamedTuple):
    """What a part of a batch gave.

    Attributes:
        losses: the mean losses over its examples, one or two, with gradient.
        feature: the mean distance of hidden states over its tokens, or None.
        logits: (b, K) float32 or float64, without gradient.
        teacher: (b, K), or None without a teacher.
        labels: (b,).
    """

    losses: list[Tensor]
    feature: Tensor | None
    logits: Tensor
    teacher: Tensor | None
    labels: Tensor


class PartLosses:
    """Student, examples and teacher, and the losses that a method makes of them.

    Args:
        student: inputs -> (b, K); moved to the device and put into training mode.
        examples: n of them in V views.
        settings: of the run.
        device: where to compute.
        teacher: (V, n, K) or (n, K), or None.
        auxiliary: the second head of "dhkd", or None for a new one.
        features: the layers that "dto-kd" compares, or None.
        frozen: (V, n, K), logits of the student before training, or None to compute them.

    Raises:
        ValueError: if an argument does not fit the method or the examples.
    """

    def __init__(
        self,
        student: nn.Module,
        examples: Examples,
        settings: TrainingSettings,
        device: torch.device,
        *,
        teacher: Tensor | None,
        auxiliary: nn.Module | None,
        features: LayerFeatures | None,
        frozen: Tensor | None,
    ) -> None:
        self.examples, self.settings, self.device = examples, settings, device
        self.objective = settings.objective
        self.options = settings.resolved_options(len(examples.labels))
        self.dtype = torch.float64 if settings.precision == "float64" else torch.float32
        self.student = self._moved(student)
        self.teacher = self._table("teacher", teacher, self.objective.needs_teacher)
        if self.objective.needs_frozen and frozen is None:
            views = range(examples.views)
            frozen = torch.stack([self.predict(examples, view) for view in views])
        self.frozen = self._table("frozen", frozen, self.objective.needs_frozen)
        self.feature_loss: FeatureLoss | None = None
        self.auxiliary = self._beside(auxiliary, features)
        self._checked_outputs = False

    def modules(self) -> dict[str, nn.Module]:
        """Return what is trained, by name."""
        beside = {} if self.auxiliary is None else {"auxiliary": self.auxiliary}
        return {"student": self.student} | beside

    def predict(self, examples: Examples, view: int = 0) -> Tensor:
        """Return the student's logits (n, K) for examples, as it stands and without dropout."""
        model = _Widened(self.student) if self.dtype == torch.float64 else self.student
        with exact_float32(self.device):
            return predict(model, examples, view)

    def check_set(self, name: str, examples: Examples, teacher: Tensor | None) -> None:
        """Raise ValueError unless examples can be measured at the end, as one of them shows now.

        Args:
            name: "test" or "observation", for the message.
            examples: n of them, measured in view 0.
            teacher: (n, K) or (V, n, K), or None.
        """
        first = torch.zeros(1, dtype=torch.int64)
        with _read_by_student(name), evaluation_mode(self.student), torch.no_grad():
            classes = self.student(*self._inputs(first, first, examples)).shape[-1]
        labels = examples.labels
        if int(labels.max()) >= classes:
            raise ValueError(
                f"labels of {name} must lie in [0, {classes}) for {classes} classes, got values to "
                f"{int(labels.max())}"
            )
        if teacher is None:
            return
        whole = teacher.unsqueeze(0) if teacher.ndim == 2 else teacher
        if whole.ndim != 3 or whole.shape[1:] != (len(labels), classes) or not len(whole):
            raise ValueError(
                f"{name}_teacher must have shape ({len(labels)}, {classes}) or (V, {len(labels)}, "
                f"{classes}), got {tuple(teacher.shape)}"
            )
        zeros = (f"{name}_teacher",)
        prepare(labels.to(whole.device), zeros=zeros, compute=None, **{zeros[0]: whole[0]})

    def evaluate(self, index: Tensor, view: Tensor, iteration: int) -> Part:
        """Return the losses for examples (b,) in views (b,), and the outputs.

        The losses are those of `objective_losses`, without its checks of every value: teacher and
        labels have passed them, and what is not finite shows in loss and gradient.
        """
        labels = self.examples.labels[index].to(self.device, non_blocking=True)
        teacher, frozen = (self._rows(table, index, view) for table in (self.teacher, self.frozen))
        inputs = self._inputs(index, view)
        if self._checked_outputs:
            logits, auxiliary, feature = self._forward(inputs)
        else:
            with _read_by_student("examples"):
                logits, auxiliary, feature = self._forward(inputs)
            self._check_outputs(logits, len(index))
        batch = Batch(logits, labels, teacher, frozen, auxiliary, logits.shape)
        losses = [loss.mean() for loss in self.objective.losses(batch, self.options, iteration)]
        return Part(losses, feature, logits.detach(), teacher, labels)

    def _forward(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Logits, those of the second head, and the distance of hidden states."""
        auxiliary = feature = None
        with computing(self.settings.precision, self.device):
            if self.feature_loss is not None:
                logits, feature = self.feature_loss(self.student, inputs)
            elif self.auxiliary is not None:
                found = self._features(*inputs)
                logits, auxiliary = self._head(found), self.auxiliary(found).to(self.dtype)
            else:
                logits = self.student(*inputs)
        return logits.to(self.dtype), auxiliary, feature

    def _inputs(
        self, index: Tensor, view: Tensor, examples: Examples | None = None
    ) -> tuple[Tensor, ...]:
        inputs = (examples or self.examples).inputs(index, view)
        inputs = (x.to(self.device, non_blocking=True) for x in inputs)
        if self.dtype == torch.float64:
            return tuple(x.double() if x.is_floating_point() else x for x in inputs)
        return tuple(inputs)

    def _rows(self, table: Tensor | None, index: Tensor, view: Tensor) -> Tensor | None:
        if table is None:
            return None
        return table[view, index].to(self.device, self.dtype, non_blocking=True)

    def _moved(self, module: nn.Module) -> nn.Module:
        dtype = torch.float64 if self.dtype == torch.float64 else None
        return module.to(self.device, dtype).train()

    def _check_outputs(self, logits: Tensor, count: int) -> None:
        """Once, before the first loss: the student's logits fit labels and teacher."""
        if logits.ndim != 2 or len(logits) != count or logits.shape[1] < 3:
            raise ValueError(
                f"student must return logits ({count}, K) with K >= 3, got {tuple(logits.shape)}"
            )
        classes = logits.shape[1]
        check_labels(self.examples.labels, classes)
        for name, table in (("teacher", self.teacher), ("frozen", self.frozen)):
            if table is not None and table.shape[-1] != classes:
                raise ValueError(
                    f"{name} must have the student's {classes} classes, got {table.shape[-1]}"
                )
        self._checked_outputs = True

    def _table(self, name: str, logits: Tensor | None, needed: bool) -> Tensor | None:
        """Logits for every view of every example, after the checks that no step repeats."""
        if logits is None:
            if needed:
                raise ValueError(f"{name} must be given for {self.settings.method!r}, got None")
            return None
        check_tensor(name, logits)
        labels, views = self.examples.labels, self.examples.views
        whole = logits.unsqueeze(0) if logits.ndim == 2 else logits
        if whole.ndim != 3 or whole.shape[:2] != (views, len(labels)):
            raise ValueError(
                f"{name} must have shape ({views}, {len(labels)}, K), for {views} views of "
                f"{len(labels)} examples, got {tuple(logits.shape)}"
            )
        finite = name == "frozen" or self.options.get("variant") == "norm"
        zeros = () if finite else (name,)
        prepare(labels.to(whole.device), zeros=zeros, compute=None, **{name: whole})
        return whole

    def _beside(
        self, auxiliary: nn.Module | None, features: LayerFeatures | None
    ) -> nn.Module | None:
        """What is trained beside the student, if the method has such a thing."""
        settings = self.settings
        if self.objective.needs_auxiliary:
            self._features, self._head = split_head(self.student)
            width, classes = self._head.in_features, self._head.out_features
            if auxiliary is None:
                auxiliary = auxiliary_head(width, classes, settings.auxiliary_head, settings.seed)
            return self._moved(auxiliary)
        if auxiliary is not None:
            raise ValueError(f"auxiliary must be None for {settings.method!r}, got one")
        if not settings.feature_weight:
            return None
        if features is None or self.examples.lengths is None:
            raise ValueError(
                "feature_weight must be 0 unless features and examples with lengths are given, got "
                f"{settings.feature_weight}"
            )
        first = torch.zeros(1, dtype=torch.int64)
        inputs = self._inputs(first, first)
        self.feature_loss = FeatureLoss(self.student, features, inputs, settings.seed)
        return self.feature_loss.projections


@contextmanager
def _read_by_student(name: str) -> Iterator[None]:
    """Tell what the network cannot read by the name of the argument that it came in."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (IndexError, RuntimeError, TypeError) as error:
        raise ValueError(f"{name} must be what the student reads, but it fails: {error}") from error


class _Widened(nn.Module):
    """A float64 network that takes inputs in float32."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.model(*(x.double() if x.is_floating_point() else x for x in inputs))
