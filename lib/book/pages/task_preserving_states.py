"""Random students, teachers and labels on which the chapters of Part III try their statements."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor


def random_states(
    classes: int, count: int, generator: torch.Generator, kind: str = "mixed"
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Draw random students with a teacher and a label each.

    ``"mild"``
    : both have standard Gaussian logits.

    ``"sharp"``
    : Gaussian logits of deviation 5, and the student has up to 15 nats more log-odds for the label.

    ``"near"``
    : the teacher is the student plus Gaussian noise of deviation $10^{-3}$ to $10^{-1}$.

    ``"one-up"``
    : $r$ is uniform and $q$ moves mass to one competitor, taken from all others alike. Then $r - q$
      has one negative entry, the case in which the bounds on retained descent are attained.

    ``"one-down"``
    : the opposite, $q$ moves mass from one competitor to all others alike.

    ``"blocked"``
    : $p_j < t_j$ for every wrong class, by 1 % to 99 % of the largest $1 - \rho$ that allows it.

    ``"mixed"``
    : all of these in turn.

    Args:
        classes: K >= 3.
        count: N >= 0, number of states.
        generator: source of randomness; the states lie on its device.
        kind: one of the above.

    Returns:
        Logits of the students (N, K) and of the teachers (N, K), float64, finite; labels (N,)
        int64. The logits of each row carry a common random shift.

    Raises:
        ValueError: if classes is below 3, count negative, or kind unknown.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> student, teacher, labels = random_states(4, 6, generator, "blocked")
        >>> lower = student.softmax(-1) < teacher.softmax(-1)
        >>> lower.scatter(-1, labels[:, None], True).all().item()
        True
    """
    _check(classes, count, kind)
    if kind == "mixed":
        return _mixed(classes, count, generator)
    labels = torch.randint(classes, (count,), generator=generator, device=generator.device)
    student, teacher = _KINDS[kind](classes, count, generator)
    shifts = 3.0 * _normal((2, count, 1), generator)
    return _place(student, labels) + shifts[0], _place(teacher, labels) + shifts[1], labels


def state_logits(log_odds: Tensor, conditional: Tensor, labels: Tensor) -> Tensor:
    r"""Return the logits of a prediction from its log-odds and its conditional distribution.

    That is of $(\rho, (1 - \rho) r)$: the competitors get $\log r_j$, with log-sum-exp zero, and
    the label gets $\operatorname{logit} \rho$.

    Args:
        log_odds: (...) floating point.
        conditional: (..., K - 1) positive, sums to one; the wrong classes in ascending order.
        labels: (...) int64 in [0, K).

    Returns:
        (..., K) logits.

    Raises:
        ValueError: if fewer than 2 wrong classes are given.

    Example:
        >>> r = torch.tensor([0.7, 0.3], dtype=torch.float64)
        >>> nine = torch.tensor(9.0, dtype=torch.float64)
        >>> state_logits(nine.log(), r, torch.tensor(0)).softmax(-1)
        tensor([0.9000, 0.0700, 0.0300], dtype=torch.float64)
    """
    if conditional.shape[-1] < 2:
        raise ValueError(
            "conditional must have shape (..., K - 1) with K >= 3 classes, got "
            f"{tuple(conditional.shape)}"
        )
    shape = torch.broadcast_shapes(log_odds.shape, conditional.shape[:-1], labels.shape)
    first = torch.cat(
        [log_odds.expand(shape).unsqueeze(-1), conditional.log().expand(*shape, -1)], -1
    )
    return _place(first, labels.expand(shape))


def _place(first: Tensor, labels: Tensor) -> Tensor:
    """Move the label's entry from the front to its place; the others keep their order."""
    columns = torch.arange(first.shape[-1], device=first.device)
    at = labels.unsqueeze(-1)
    source = torch.where(columns == at, 0, columns + (columns < at))
    return first.gather(-1, source)


def _check(classes: int, count: int, kind: str) -> None:
    if not isinstance(classes, int) or classes < 3:
        raise ValueError(f"classes must be a whole number, 3 or more, got {classes!r}")
    if not isinstance(count, int) or count < 0:
        raise ValueError(f"count must be a whole number, 0 or more, got {count!r}")
    if kind != "mixed" and kind not in _KINDS:
        raise ValueError(f"kind must be 'mixed' or one of {sorted(_KINDS)}, got {kind!r}")


def _mixed(classes: int, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Equal shares of all kinds, as far as count allows, one after the other."""
    cuts = [count * place // len(_KINDS) for place in range(len(_KINDS) + 1)]
    shares = [high - low for low, high in itertools.pairwise(cuts)]
    parts = [
        random_states(classes, share, generator, kind)
        for kind, share in zip(_KINDS, shares, strict=True)
    ]
    student, teacher, labels = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    return student, teacher, labels


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    options = {"generator": generator, "device": generator.device, "dtype": torch.float64}
    return torch.randn(shape, **options)


def _uniform(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    options = {"generator": generator, "device": generator.device, "dtype": torch.float64}
    return torch.rand(shape, **options)


def _mild(classes: int, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    both = _normal((2, count, classes), generator)
    return both[0], both[1]


def _sharp(classes: int, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    student, teacher = 5.0 * _normal((2, count, classes), generator)
    student[:, 0] += 15.0 * _uniform((count,), generator)
    return student, teacher


def _near(classes: int, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    student, noise = _normal((2, count, classes), generator)
    return student, student + 10.0 ** (-1 - 2 * _uniform((count, 1), generator)) * noise


def _one_up(classes: int, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return _one_moves(classes, count, generator, up=True)


def _one_down(classes: int, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return _one_moves(classes, count, generator, up=False)


def _one_moves(
    classes: int, count: int, generator: torch.Generator, up: bool
) -> tuple[Tensor, Tensor]:
    """Uniform r; q moves up to 95 % of the movable mass to or from one competitor."""
    n = classes - 1
    one = torch.randint(n, (count,), generator=generator, device=generator.device)
    share = 0.95 * _uniform((count, 1), generator)
    moved = share * (n - 1) / n if up else -share / n
    uniform = torch.full((count, n), 1 / n, dtype=torch.float64, device=generator.device)
    chosen = torch.nn.functional.one_hot(one, n).to(torch.float64)
    target = uniform + moved * (chosen - (1 - chosen) / (n - 1))
    log_odds = 2.0 * _normal((2, count, 1), generator)
    return torch.cat([log_odds[0], uniform.log()], -1), torch.cat([log_odds[1], target.log()], -1)


def _blocked(classes: int, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """1 - rho is a share of (1 - tau) min q / r."""
    teacher = 1.5 * _normal((count, classes), generator)
    log_r = _normal((count, classes - 1), generator).log_softmax(-1)
    room = (teacher.log_softmax(-1)[:, 1:] - log_r).amin(-1)
    log_rest = room + (0.01 + 0.98 * _uniform((count,), generator)).log()
    log_odds = torch.log1p(-log_rest.exp()) - log_rest
    return torch.cat([log_odds.unsqueeze(-1), log_r], -1), teacher


_KINDS: dict[str, Callable[[int, int, torch.Generator], tuple[Tensor, Tensor]]] = {
    "mild": _mild,
    "sharp": _sharp,
    "near": _near,
    "one-up": _one_up,
    "one-down": _one_down,
    "blocked": _blocked,
}
