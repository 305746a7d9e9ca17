"""First-order stationary points of the bridge problems, which deep networks converge to.

For p = 2 / L < 1 the problem min sum |c_d|^p such that the margins are at least one is not convex:
one certifies stationarity, one does not "solve" it. The functions here judge a predictor, tell
which of its small coefficients will stay small, and polish a trained predictor to many digits.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from lib.implicit.checks import choice, count, nonzero_predictor, positive, signed_examples
from lib.implicit.groups import choose_groups
from lib.implicit.polish import newton_polish
from lib.implicit.spectrum import DOMAINS, multiplicity, spectrum

_NEWTON_SUPPORT = 1e-9  # multipliers below this share of the largest are left out of the polish


def stationarity(
    predictor: Tensor,
    inputs: Tensor,
    labels: Tensor,
    power: float,
    domain: str,
    slack: float = 5e-2,
) -> Tensor:
    r"""Return how far a predictor is from a first-order stationary point of a bridge problem.

    With c the entries (domain "signal") or Fourier coefficients ("fourier") of the predictor scaled
    to smallest margin one, and multipliers $\alpha_n \ge 0$ on the examples of margin at most
    1 + slack chosen to minimise it,

    $$\rho = \frac{\| ( z_d\, \bar c_d - |c_d|^p )_d \|_2}{\| (|c_d|^p)_d \|_2}, \qquad
      z = \sum_n \alpha_n a_n \text{ (or its transform)}$$

    It is free of scale and zero exactly at the stationary points, where z_d = |c_d|^{p-2} c_d on
    the support and z_d is anything elsewhere. For p = 2, dense networks, it is
    $\| \beta - \sum_n \alpha_n a_n \| / \|\beta\|$, which sees the inactive coordinates too.

    **Source**: first-order conditions of Gunasekar et al. (2018), Theorem 2a and the lemma on
    diagonal networks, p = 2 / L.

    Args:
        predictor: (..., D), separates the examples.
        inputs: (N, D), rows are examples.
        labels: (N,), -1 or +1.
        power: p in (0, 2]; 2 / L for depth L.
        domain: "signal" or "fourier".
        slack: how far above the smallest margin, as a fraction of it, an example may lie and still
            count as a support vector. In training the margins of support vectors differ by a few
            units, which are some percent of margins of a hundred.

    Returns:
        (...), float64, >= 0.

    Raises:
        ValueError: if an argument does not fit, or the predictor does not separate the examples.

    Example:
        >>> inputs, labels = torch.tensor([[3.0, 4.0]]), torch.tensor([1])
        >>> stationarity(torch.tensor([0.0, 1.0]), inputs, labels, 2 / 3, "signal")
        tensor(0., dtype=torch.float64)
    """
    problem = _Problem(inputs, labels, power, domain, slack)
    predictor = nonzero_predictor(predictor, problem.rows.shape[-1])
    flat = predictor.reshape(-1, predictor.shape[-1])
    values = [problem.multipliers(problem.at_margin_one(one))[1] for one in flat]
    return predictor.new_tensor(values).reshape(predictor.shape[:-1])


def stability_numbers(
    predictor: Tensor,
    inputs: Tensor,
    labels: Tensor,
    depth: int,
    domain: str,
    slack: float = 5e-2,
) -> Tensor:
    r"""Return, for every coefficient, whether it grows or dies out relative to the active ones.

    $$\kappa_d = |z_d|\, |c_d|^{(L-2)/L}$$

    at smallest margin one, with the multipliers of `stationarity`. In a network of balanced layers
    the logarithm of coefficient d grows at a rate proportional to it. On active coefficients of a
    stationary point it is 1; a small coefficient with a number below 1 dies out, above 1 it will
    take over, however small the residual is. For L = 2 it is |z_d|, which optimality bounds by 1.

    **Source**: linearised gradient flow; not in the paper.

    Args:
        predictor: (..., D), separates the examples.
        inputs: (N, D), rows are examples.
        labels: (N,), -1 or +1.
        depth: L >= 2.
        domain: "signal" for diagonal or "fourier" for convolutional networks.
        slack: see `stationarity`.

    Returns:
        (..., D), or (..., D // 2 + 1) for "fourier"; float64.

    Raises:
        ValueError: if an argument does not fit, or the predictor does not separate the examples.

    Example:
        >>> inputs, labels = torch.tensor([[3.0, 4.0]]), torch.tensor([1])
        >>> stability_numbers(torch.tensor([0.0, 1.0]), inputs, labels, 2, "signal")
        tensor([0.7500, 1.0000], dtype=torch.float64)
    """
    depth = count("depth", depth, 2)
    problem = _Problem(inputs, labels, 2 / depth, domain, slack)
    predictor = nonzero_predictor(predictor, problem.rows.shape[-1])
    numbers = []
    for one in predictor.reshape(-1, predictor.shape[-1]):
        one = problem.at_margin_one(one)
        dual = problem.multipliers(one, bridge=True)[0] @ problem.rows
        size = problem.coefficients(one).abs() ** ((depth - 2) / depth)
        numbers.append(problem.coefficients(dual).abs() * size)
    return torch.stack(numbers).reshape(*predictor.shape[:-1], -1)


def polish_stationary(
    predictor: Tensor,
    inputs: Tensor,
    labels: Tensor,
    power: float,
    domain: str,
    slack: float = 5e-2,
    support: float = 1e-3,
) -> Tensor:
    r"""Return the stationary point next to a trained predictor, at smallest margin one.

    Newton's method on the first-order conditions, with the coefficients below `support` set to
    zero and the examples with positive multipliers at margin one.

    **Source**: as `stationarity`.

    Args:
        predictor: (D,), near a stationary point.
        inputs: (N, D), rows are examples.
        labels: (N,), -1 or +1.
        power: p in (0, 2); 2 / L for depth L.
        domain: "signal" or "fourier".
        slack: see `stationarity`.
        support: coefficients below this fraction of the largest count as zero.

    Returns:
        (D,), float64.

    Raises:
        ValueError: if an argument does not fit, or the predictor does not separate the examples.
        RuntimeError: if Newton's method finds no stationary point with residual 1e-8 near by.

    Example:
        >>> inputs, labels = torch.tensor([[3.0, 4.0]]), torch.tensor([1])
        >>> polish_stationary(torch.tensor([1e-4, 1.0]), inputs, labels, 2 / 3, "signal")
        tensor([0.0000, 0.2500], dtype=torch.float64)
    """
    problem = _Problem(inputs, labels, power, domain, slack)
    predictor = nonzero_predictor(predictor, problem.rows.shape[-1])
    if predictor.ndim != 1:
        raise ValueError(f"predictor must have shape (D,), got {tuple(predictor.shape)}")
    start = problem.at_margin_one(predictor)
    multipliers = problem.multipliers(start, bridge=True)[0].cpu().numpy()
    size = problem.coefficients(start).abs().cpu().numpy()
    groups = choose_groups(len(start), domain, np.flatnonzero(size > support * size.max()))
    active = multipliers > _NEWTON_SUPPORT * multipliers.max()
    coordinates, _ = newton_polish(
        groups,
        problem.rows.cpu().numpy()[active],
        groups.coordinates(start.cpu().numpy()),
        multipliers[active],
        power,
    )
    found = torch.from_numpy(groups.vector(coordinates)).to(start.device)
    if bool((problem.rows @ found > 0).all()):
        found = problem.at_margin_one(found)
        if problem.multipliers(found, slack=1e-9)[1] <= 1e-8:
            return found
    raise RuntimeError(
        "no stationary point was found next to the predictor; train longer, or choose another "
        f"support (now {support:g}) or slack (now {slack:g})"
    )


class _Problem:
    """A bridge problem with a rule for which examples count as support vectors."""

    def __init__(
        self, inputs: Tensor, labels: Tensor, power: float, domain: str, slack: float
    ) -> None:
        self.rows = signed_examples(inputs, labels)
        if self.rows.ndim != 2:
            raise ValueError(
                f"inputs must have shape (N, D), got {tuple(self.rows.shape)}; judge predictors of "
                "one data set at a time"
            )
        self.power = positive("power", power, high=2)
        self.domain = choice("domain", domain, DOMAINS)
        self.slack = positive("slack", slack)

    def at_margin_one(self, predictor: Tensor) -> Tensor:
        """The predictor scaled to smallest margin one."""
        smallest = (self.rows @ predictor).min()
        if not smallest > 0:
            raise ValueError(
                "predictor must give every example a positive margin, got smallest margin "
                f"{float(smallest):.3g}; train longer or check the labels"
            )
        return predictor / smallest

    def coefficients(self, vectors: Tensor) -> Tensor:
        """Entries or half spectra, whichever the penalty is on."""
        return vectors if self.domain == "signal" else spectrum(vectors)

    def multipliers(
        self, predictor: Tensor, slack: float | None = None, bridge: bool = False
    ) -> tuple[Tensor, float]:
        """Best multipliers (N,) of a predictor at margin one, and the residual they leave.

        `bridge` asks for the form with z_d conj(c_d) for p = 2, too.
        """
        support = self.rows @ predictor <= 1 + (self.slack if slack is None else slack)
        if self.power == 2 and not bridge:
            matrix, target = self.rows[support].mT, predictor
        else:
            matrix, target = self._bridge_system(predictor, self.rows[support])
        found, residual = nnls(matrix.cpu().numpy(), target.cpu().numpy())
        multipliers = torch.zeros(len(self.rows), dtype=torch.float64, device=predictor.device)
        multipliers[support] = torch.from_numpy(found).to(predictor.device)
        return multipliers, residual / float(torch.linalg.vector_norm(target))

    def _bridge_system(self, predictor: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Matrix and right-hand side of z_d conj(c_d) = |c_d|^p, real and imaginary parts."""
        c = self.coefficients(predictor)
        products = self.coefficients(rows) * c.conj()
        goal = c.abs() ** self.power
        if self.domain == "signal":
            return products.mT, goal
        weight = multiplicity(len(predictor), predictor.device).sqrt()
        matrix = torch.cat([products.real * weight, products.imag * weight], -1)
        return matrix.mT, torch.cat([goal * weight, torch.zeros_like(goal)])
