"""What the chapter "Optimisation bias" computes: digits, their teacher, and a risk in advance."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lib.book import claims
from lib.datasets import digit_pair, load_mnist, split_indices
from lib.linear import fit_logistic_teacher, student_limit
from lib.linear.geometry import data_span, project


@dataclass(frozen=True)
class DigitTask:
    """Zeros against ones, and a teacher that has seen other digits than the student will.

    Attributes:
        teacher: (784,) weights of a logistic regression.
        pool: (m, 784) training digits that the teacher has not seen.
        held_out: (k, 784) test digits.
        accuracy: share of the test digits that the teacher gets right.
        source: ``"official"`` or ``"embedded"``.
    """

    teacher: Tensor
    pool: Tensor
    held_out: Tensor
    accuracy: float
    source: str


def digit_task(source: str, penalty: float, generator: torch.Generator) -> DigitTask:
    """Load zeros and ones, fit the teacher on half of the training digits, keep the other half.

    Notes the data for the page's record.

    **Source**: Phuong & Lampert, Section 5.2.

    Args:
        source: ``"official"`` or ``"embedded"``, see `lib.datasets.load_mnist`.
        penalty: of the logistic regression, > 0.
        generator: source of the split; a CPU generator.

    Returns:
        The `DigitTask`.

    Raises:
        ValueError: for an unknown source or a penalty that is not positive.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> task = digit_task("embedded", 1e-2, generator)  # doctest: +ELLIPSIS
        MNIST train: ...
        >>> tuple(task.pool.shape), tuple(task.held_out.shape)
        ((400, 784), (200, 784))
    """
    train, test = (load_mnist(split, source=source, digits=(0, 1)) for split in ("train", "test"))
    for images in (train, test):
        for name, digest in images.sha256.items():
            claims.use_data(name, images.source, digest)
    inputs, labels = digit_pair(train, 0, 1)
    half = len(labels) // 2
    seen, unseen = split_indices(labels, [half, len(labels) - half], generator)
    teacher = fit_logistic_teacher(inputs[seen], labels[seen], penalty)
    held_out, truth = digit_pair(test, 0, 1)
    accuracy = ((held_out @ teacher >= 0) == (truth == 1)).double().mean()
    return DigitTask(teacher, inputs[unseen], held_out, float(accuracy), train.source)


def draw_sets(pool: Tensor, n: int, n_sets: int, generator: torch.Generator) -> Tensor:
    """Draw transfer sets from a pool, each without repetition.

    Args:
        pool: (m, d).
        n: examples in a set, in [1, m].
        n_sets: number of sets, >= 1.
        generator: source of the draw.

    Returns:
        (n_sets, n, d).

    Raises:
        ValueError: if the pool is too small.

    Example:
        >>> draw_sets(torch.eye(3), 3, 1, torch.Generator().manual_seed(0)).sum()
        tensor(3.)
    """
    if not 1 <= n <= len(pool):
        raise ValueError(f"n must be between 1 and {len(pool)}, the size of the pool, got {n}")
    order = torch.stack([torch.randperm(len(pool), generator=generator) for _ in range(n_sets)])
    return pool[order[:, :n]]


def predicted_risk(inputs: Tensor, teacher: Tensor, held_out: Tensor, deltas: Tensor) -> Tensor:
    r"""Return the mean risk of the perturbed students over their random direction q.

    With the relative margin of a held-out input and the number D of directions off the data span,

    $$\rho(x) = \frac{\operatorname{sign}(w_*^\top x)\; \hat w^\top x}{|\hat w|\, |P_\perp x|},
      \qquad E_q R(w_\delta) \approx \operatorname{mean}_x\,
      \Phi\Big(-\frac{\sqrt{D}\, \rho(x)}{|\delta|}\Big)$$

    The coordinate of a random unit vector in D dimensions is taken as normal with variance 1/D.

    **Source**: ours; the students are those of Phuong & Lampert, Section 5.2.

    Args:
        inputs: (n, d) float64, one transfer set, of rank below d.
        teacher: (d,) float64.
        held_out: (m, d) float64.
        deltas: (k,); at 0 it is the risk of the distilled student.

    Returns:
        (k,) float64, in [0, 1].

    Example:
        On the teacher's boundary of the student, any push decides by chance.

        >>> x, w = torch.eye(1, 3).double(), torch.tensor([1.0, 0.5, 0.0]).double()
        >>> held_out = torch.tensor([[0.0, 1.0, 0.0]]).double()
        >>> predicted_risk(x, w, held_out, torch.tensor([5.0]))
        tensor([0.5000], dtype=torch.float64)
    """
    student, span = student_limit(inputs, teacher), data_span(inputs)
    outside = (held_out - held_out @ span.basis @ span.basis.mT).norm(dim=-1)
    signs = torch.where(held_out @ teacher >= 0, 1.0, -1.0)
    margins = signs * (held_out @ student) / student.norm()
    free = inputs.shape[-1] - int(span.rank)
    noise = deltas.abs().unsqueeze(-1) * outside / math.sqrt(free)
    wrong_now = ((held_out @ student >= 0) != (signs > 0)).double()
    pushed = torch.special.ndtr(-margins / noise.clamp(min=1e-300))
    return torch.where(noise > 0, pushed, wrong_now).mean(-1)


def follow_data(inputs: Tensor, pool: Tensor, generator: torch.Generator) -> Tensor:
    """Return unit vectors off the data span that look like the data: mixtures of other images.

    A Gaussian mixture of the pool's images, of which the part in the span of each transfer set is
    taken away; invisible to the loss like the Gaussian vector of the paper, but not white.

    Args:
        inputs: (n_sets, n, d) float64, transfer sets.
        pool: (m, d) float64, images to mix.
        generator: source of the mixture.

    Returns:
        (n_sets, d) float64, of unit norm, orthogonal to the rows of each set.

    Example:
        >>> x, pool = torch.eye(1, 3)[None].double(), torch.tensor([[5.0, 0.0, 2.0]]).double()
        >>> follow_data(x, pool, torch.Generator().manual_seed(0)).abs()
        tensor([[0., 0., 1.]], dtype=torch.float64)
    """
    options = {"generator": generator, "dtype": torch.float64}
    mixture = torch.randn(len(inputs), len(pool), **options) @ pool
    span = data_span(inputs)
    for _ in range(2):  # the second pass removes what rounding left of the span
        mixture = mixture - project(span, mixture)
    return mixture / mixture.norm(dim=-1, keepdim=True)
