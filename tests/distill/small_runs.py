"""Small tasks and networks that the tests of training share, and a plain loop to compare with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lib.distill.examples import TensorExamples, TokenExamples
from lib.distill.order import batch_at
from lib.distill.settings import TrainingSettings
from lib.distill.trainer import Trainer

CLASSES = 4
WIDTH = 5
TWO_PASSES = ("dhkd", "dto-kd")
METHODS_LINEAR_HEAD = {"dhkd": {"auxiliary_head": "linear"}}  # no statistics of a part


def task(
    seed: int = 0, n: int = 60, views: int | None = None, dtype: torch.dtype = torch.float64
) -> tuple[TensorExamples, Tensor]:
    """Examples of four noisy classes, and the logits (V, n, K) of a teacher that mostly agrees."""
    generator = torch.Generator().manual_seed(seed)
    shape = (n, WIDTH) if views is None else (views, n, WIDTH)
    values = torch.randn(shape, generator=generator, dtype=dtype)
    rule = torch.randn(WIDTH, CLASSES, generator=generator, dtype=dtype)
    noise = torch.randn(*shape[:-1], CLASSES, generator=generator, dtype=dtype)
    logits = values @ rule + noise
    labels = (logits if views is None else logits[0]).argmax(-1)
    labels[::7] = (labels[::7] + 1) % CLASSES
    examples = TensorExamples(values, labels, views)
    return examples, (2 * logits).reshape(-1, n, CLASSES)


def texts(seed: int = 0, n: int = 40, classes: int = CLASSES) -> tuple[TokenExamples, Tensor]:
    """Texts of 1 to 9 tokens out of 20, and a teacher's logits (1, n, K)."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 10, (n,), generator=generator)
    tokens = torch.randint(1, 20, (n, 9), generator=generator)
    labels = torch.randint(classes, (n,), generator=generator)
    return TokenExamples(tokens, lengths, labels), torch.randn(1, n, classes, generator=generator)


def network(seed: int = 1, dropout: float = 0.0, dtype: torch.dtype = torch.float64) -> nn.Module:
    """A perceptron with one hidden layer, whose last layer is linear."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Linear(WIDTH, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, CLASSES)]
        return nn.Sequential(*layers).to(dtype)


def settings(method: str, iterations: int = 12, **changes: object) -> TrainingSettings:
    """A float64 run with batches of 20."""
    values = {"seed": 42, "learning_rate": 0.1, "batch_size": 20, "micro_batch": 20}
    values |= {"precision": "float64", "log_every": 5} | METHODS_LINEAR_HEAD.get(method, {})
    return TrainingSettings(method, iterations, **(values | changes))


def weights(model: nn.Module) -> Tensor:
    """All parameters as one vector."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def trained(method, model, examples, teacher, **changes):
    """The weights after a run, and the trainer."""
    trainer = Trainer(model, examples, settings(method, **changes), teacher=teacher)
    for iteration in range(trainer.settings.iterations):
        trainer.step(iteration)
    return weights(model), trainer


@dataclass
class PlainLoop:
    """Training as anyone would write it: whole batches, torch.optim.SGD, a gradient in the logits.

    Attributes:
        model: trained in place.
        examples: of which batches are taken.
        teacher: (V, n, K).
        values: settings of the run.
    """

    model: nn.Module
    examples: TensorExamples
    teacher: Tensor
    values: TrainingSettings

    def run(self, backward) -> Tensor:
        """Train; `backward(logits, teacher, labels, iteration)` fills the gradients."""
        values = self.values
        optimiser = torch.optim.SGD(
            self.model.parameters(),
            values.learning_rate,
            values.momentum,
            weight_decay=values.decay,
        )
        n, views = len(self.examples.labels), self.examples.views
        for iteration in range(values.iterations):
            index, view, _ = batch_at(n, views, values.batch_size, iteration, values.seed)
            inputs = self.examples.values[view, index]
            optimiser.zero_grad()
            labels, teacher = self.examples.labels[index], self.teacher[view, index]
            backward(self.model(inputs), teacher, labels, iteration)
            optimiser.step()
        return weights(self.model)
