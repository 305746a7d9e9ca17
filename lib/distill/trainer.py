"""One optimiser step of any method: the same examples, order and dropout for all of them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from lib.distill.auxiliary import LayerFeatures
from lib.distill.distributed import current_processes
from lib.distill.dropout import seeded_noise
from lib.distill.example_checks import check_index
from lib.distill.examples import Examples
from lib.distill.label import label_loss
from lib.distill.optimisers import AdamWeightDecay, learning_rate, parameter_groups
from lib.distill.order import batch_at, micro_batches
from lib.distill.parts import Part, PartLosses
from lib.distill.precision import exact_float32, first_scale, is_finite
from lib.distill.run_state import collect_state, restore_state
from lib.distill.settings import TrainingSettings
from lib.distill.streams import stream_seed
from lib.distill.two_pass import OneGradient, TwoGradients
from lib.tpkd import conditional_kl, is_blocked


class TrainingError(RuntimeError):
    """A run cannot go on; the message names the method and the step."""


class Trainer:
    r"""A student, its optimiser, and the step that moves them.

    A step takes the batch of its iteration, passes it through the student in parts, sums the
    gradients of

    $$\sum_m \frac{b_m}{B} L_m$$

    with $L_m$ the mean over the $b_m$ of B examples in part m, clips, sets the learning rate, and
    steps. Order, views and dropout depend on the seed and the iteration alone, so that every method
    sees the same, and a state needs no random numbers.

    **Source**: Yuan & Tao, Appendix E.1 and E.6.

    Args:
        student: inputs -> (b, K); moved to the device and trained in place. For "dhkd" see
            `split_head`.
        examples: n of them in V views.
        settings: of the run.
        teacher: (V, n, K), or (n, K) for one view, logits of the teacher, -inf allowed, but not for
            all classes besides the label; None for a method without one.
        device: where to train; None for where the student is.
        auxiliary: the second head of "dhkd", features -> (b, K); None for a new one.
        features: the layers that "dto-kd" compares if `feature_weight` is above 0.
        frozen: (V, n, K), logits of the student before training, for "dp-u" and "dp-s"; None to
            compute them.

    Raises:
        ValueError: if an argument does not fit the method, the examples or the precision.

    Example:
        >>> from lib.distill.examples import TensorExamples
        >>> examples = TensorExamples(torch.eye(3), torch.tensor([0, 1, 2]))
        >>> student = nn.Linear(3, 3, bias=False)
        >>> _ = nn.init.zeros_(student.weight)
        >>> trainer = Trainer(student, examples, TrainingSettings("ce", 1, 42, 0.1, batch_size=3))
        >>> round(trainer.step(0)["loss"], 4)  # log 3
        1.0986
    """

    def __init__(
        self,
        student: nn.Module,
        examples: Examples,
        settings: TrainingSettings,
        *,
        teacher: Tensor | None = None,
        device: torch.device | str | None = None,
        auxiliary: nn.Module | None = None,
        features: LayerFeatures | None = None,
        frozen: Tensor | None = None,
    ) -> None:
        self.settings, self.processes = settings, current_processes()
        place = next(student.parameters(), torch.empty(0)).device
        self.device = place if device is None else torch.device(device)
        self._check_precision()
        self.parts = PartLosses(
            student,
            examples,
            settings,
            self.device,
            teacher=teacher,
            auxiliary=auxiliary,
            features=features,
            frozen=frozen,
        )
        self.student, self.examples = self.parts.student, examples
        self.scale = first_scale(settings.precision)
        self._prepare_optimiser()
        for module in self.parts.modules().values():
            self.processes.spread(list(module.state_dict().values()))

    def step(self, iteration: int, measured: bool = False) -> dict:
        """Do one step on the batch of an iteration.

        Args:
            iteration: k in [0, iterations).
            measured: also return what is measured of the batch.

        Returns:
            `loss` and `gradient_norm` (before clipping) at the weights before the step,
            `learning_rate`, `epoch`; if measured, `cross_entropy` and, with a teacher,
            `conditional_kl` and `blocked`. `loss` of TPKD and its controls means nothing. None
            where float16 overflowed and the step was skipped.

        Raises:
            TrainingError: if the loss, the gradient or the conditional KL is not finite or too
                large; the weights are those before the step.
        """
        size, seed = self.settings.batch_size, self.settings.seed
        batch = batch_at(len(self.examples.labels), self.examples.views, size, iteration, seed)
        return {"epoch": batch.epoch} | self._take(batch.index, batch.view, iteration, measured)

    def step_on(self, index: Tensor, view: Tensor, iteration: int, measured: bool = False) -> dict:
        """Do the step of an iteration on a batch that is given.

        Args:
            index: (B,) int64, which examples.
            view: (B,) int64, in which views.
            iteration: k, which decides learning rate, warm-up and dropout.
            measured: as for `step`.

        Returns:
            As `step`, without the epoch.

        Raises:
            ValueError: if index or view does not fit.
            TrainingError: as `step`.
        """
        check_index(index, view, len(self.examples.labels), self.examples.views)
        return self._take(index, view, iteration, measured)

    def _take(self, index: Tensor, view: Tensor, iteration: int, measured: bool) -> dict:
        """Do a step on a batch that fits."""
        if not self.student.training:
            self.student.train()
        rate = learning_rate(self.settings, iteration)
        self.gradient.clear()
        with exact_float32(self.device):
            losses, seen = self._accumulate(index, view, iteration, measured)
        pieces = self.gradient.tensors()
        self.processes.add([*pieces, losses])
        if self.scale is not None:
            torch._foreach_mul_(pieces, 1 / self.scale.value)
        *values, norm = torch.cat([losses, get_total_norm(pieces).to(losses).view(1)]).tolist()
        measures = self._measure(seen, len(index)) if measured else {}
        self._guard(iteration, values, norm, measures)
        found = {"loss": sum(values), "learning_rate": rate, "gradient_norm": None} | measures
        if not is_finite(norm):
            self.scale.update(finite=False)
            return found
        if self.gradient.finish(values):
            norm = float(get_total_norm(self._gradients()))
        self._update(rate, norm)
        return found | {"gradient_norm": norm}

    def state(self) -> dict[str, Tensor]:
        """Return copies of everything that a step changes, by name: weights, buffers, optimiser."""
        return collect_state(self.parts.modules(), self.optimiser, self.parameters, self.scale)

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take up a run where a state left it.

        The logits of the student before training, of "dp-u" and "dp-s", are those that this
        trainer began with.

        Args:
            state: as `state` returns it, of a trainer of the same form.

        Raises:
            ValueError: if names or shapes are not those of this trainer.
        """
        restore_state(state, self.parts.modules(), self.optimiser, self.parameters, self.scale)

    def predict(self, examples: Examples, view: int = 0) -> Tensor:
        """Return the student's logits (n, K) for examples, as it stands and without dropout."""
        self.agree()
        return self.parts.predict(examples, view)

    def agree(self) -> None:
        """Give every process the buffers of the first, as statistics of a normalisation."""
        self.processes.spread(list(self.student.buffers()))

    def check_weights(self, iteration: int) -> None:
        """Raise TrainingError unless every weight is finite, after so many steps."""
        finite = [weight.detach().isfinite().all() for weight in self.parameters]
        if not bool(torch.stack(finite).all()):
            raise self.failure(iteration, "a weight is not finite")

    def failure(self, iteration: int, reason: str) -> TrainingError:
        """Return the error that ends the run after so many steps."""
        settings = self.settings
        rate = learning_rate(settings, min(iteration, settings.iterations - 1))
        return TrainingError(
            f"{settings.method} cannot go on at step {iteration}: {reason} (learning rate "
            f"{rate:g}, seed {settings.seed}); try a smaller learning rate"
        )

    def _check_precision(self) -> None:
        if self.settings.precision == "amp-float16" and self.device.type == "cpu":
            raise ValueError(
                "precision must be 'float32', 'float64' or 'amp-bfloat16' on a CPU, got "
                "'amp-float16'"
            )
        parts = math.ceil(self.settings.batch_size / self.settings.micro_batch)
        if parts < self.processes.size:
            raise ValueError(
                f"micro_batch must split a batch of {self.settings.batch_size} into at least "
                f"{self.processes.size} parts, one for each process, got "
                f"{self.settings.micro_batch}"
            )

    def _prepare_optimiser(self) -> None:
        settings, modules = self.settings, self.parts.modules()
        adam = settings.optimiser == "adam-weight-decay"
        groups = [
            group
            for module in modules.values()
            for group in parameter_groups(module, settings.decay, exclude_bias_and_norm=adam)
        ]
        if adam:
            self.optimiser = AdamWeightDecay(groups, settings.learning_rate)
        else:
            rate, momentum = settings.learning_rate, settings.momentum
            self.optimiser = torch.optim.SGD(groups, rate, momentum, foreach=True)
        trained = [[p for p in m.parameters() if p.requires_grad] for m in modules.values()]
        self.parameters = [parameter for module in trained for parameter in module]
        self.gradient: OneGradient | TwoGradients = OneGradient(self.parameters)
        if settings.objective.backward_passes == 2:
            outside = trained[1] if self.parts.feature_loss is not None else []
            inside = trained[0] if outside else self.parameters
            self.gradient = TwoGradients(settings.method, self.parts.options, inside, outside)

    def _accumulate(
        self, index: Tensor, view: Tensor, iteration: int, measured: bool
    ) -> tuple[Tensor, list[Part]]:
        """Sum gradients and losses of this process's parts; keep the parts if they are measured.

        A part's losses are means; they count as much as it has examples, the distance of hidden
        states as much as it has tokens.
        """
        settings, lengths = self.settings, self.examples.lengths
        tokens = int(lengths[index].sum()) if self.parts.feature_loss is not None else 1
        total, seen = None, []
        places = micro_batches(index, view, lengths, settings.micro_batch)
        with seeded_noise(self.device) as seed:
            for number, place in self.processes.share(places):
                seed(stream_seed(settings.seed, "dropout", iteration, number))
                part = self.parts.evaluate(index[place], view[place], iteration)
                losses = part.losses
                if len(place) != len(index):
                    losses = [loss * (len(place) / len(index)) for loss in losses]
                if part.feature is not None:
                    share = int(lengths[index[place]].sum()) / tokens
                    losses[1] = losses[1] + settings.feature_weight * share * part.feature
                self._add(losses)
                values = torch.stack([loss.detach() for loss in losses])
                total = values if total is None else total + values
                seen += [part] if measured else []
        return total, seen

    def _add(self, losses: list[Tensor]) -> None:
        if self.scale is not None:
            losses = [loss * self.scale.value for loss in losses]
        self.gradient.add(losses)

    def _measure(self, seen: list[Part], count: int) -> dict[str, float]:
        """Means over the whole batch, of all processes."""
        sums = torch.stack([_sums(part) for part in seen]).sum(0)
        self.processes.add([sums])
        names = ("cross_entropy", "conditional_kl", "blocked")
        return dict(zip(names, (sums / count).tolist(), strict=False))

    def _guard(self, iteration: int, losses: list[float], norm: float, measures: dict) -> None:
        """Stop before weights are touched by what is not finite, or by a conditional KL too far."""
        limit, scale = self.settings.largest_kl, self.scale
        kl = measures.get("conditional_kl", 0.0)
        if not is_finite(*losses):
            reason = f"the loss is {sum(losses)}"
        elif not is_finite(norm) and (scale is None or scale.exhausted):
            reason = f"the norm of the gradient is {norm}"
        elif not kl <= limit:
            reason = f"the conditional KL is {kl:g}, above largest_kl={limit:g}"
        else:
            return
        raise self.failure(iteration, reason)

    def _gradients(self) -> list[Tensor]:
        return [p.grad for p in self.parameters if p.grad is not None]

    def _update(self, rate: float, norm: float) -> None:
        clip = self.settings.clip
        if clip is not None and norm > clip:
            torch._foreach_mul_(self._gradients(), clip / norm)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.optimiser.step()
        if self.scale is not None:
            self.scale.update(finite=True)


@torch.no_grad()
def _sums(part: Part) -> Tensor:
    """Sums over a part of cross-entropy and, with a teacher, conditional KL and blocked."""
    logits, labels = part.logits, part.labels
    found = [label_loss(logits.double(), labels).sum()]
    if part.teacher is not None:
        arguments = (logits, part.teacher, labels)
        finite = bool(logits.isfinite().all())
        kl = conditional_kl(*arguments).double().sum() if finite else found[0].new_tensor(math.nan)
        blocked = is_blocked(*arguments).double().sum() if finite else kl
        found += [kl, blocked]
    return torch.stack(found)
