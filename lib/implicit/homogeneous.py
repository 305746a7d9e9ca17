"""Any homogeneous parametrisation of linear predictors, differentiated automatically."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import hessian, jacrev, vmap

from lib.implicit.checks import count, positive, real
from lib.implicit.networks import Linearisation

_MULTIPLES = 8  # how many weights per input are tried when the number of weights is not given
_TOLERANCE = 1e-9


@dataclass(frozen=True)
class HomogeneousNetwork:
    r"""A predictor that is a homogeneous function of one weight vector.

    $$\beta = P(w), \qquad P(c\, w) = c^{\nu} P(w) \text{ for } c > 0$$

    **Source**: Gunasekar et al. (2018), Section 4 (homogeneous polynomial parametrisations).

    Attributes:
        map: takes one float64 vector (p,) to one vector (D,); written in torch operations that
            `torch.func` can differentiate and batch. It is tested for homogeneity.
        degree: $\nu \ge 1$.
        parameters: p; None for the smallest of D, 2 D, ..., 8 D that the map takes to (D,).
        hessian_bound: takes weights (..., p) to a bound (...) on the curvature of a margin of an
            example of unit norm; None to compute it from second derivatives (p of some hundreds
            at most).

    Example:
        >>> network = HomogeneousNetwork(lambda w: w[:2] ** 2 - w[2:] ** 2, 2)
        >>> network.predictor(torch.tensor([3.0, 0.0, 0.0, 2.0]))
        tensor([ 9., -4.])
    """

    map: Callable[[Tensor], Tensor]
    degree: int
    parameters: int | None = None
    hessian_bound: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "degree", count("degree", self.degree))
        if self.parameters is not None:
            object.__setattr__(self, "parameters", count("parameters", self.parameters))

    def initialise(
        self,
        dimension: int,
        generator: torch.Generator,
        scale: float,
        batch: tuple[int, ...] = (),
    ) -> Tensor:
        """Draw independent Gaussian weights of mean 0 and standard deviation `scale`.

        Args:
            dimension: D, the dimension of the inputs.
            generator: source of randomness; its device is the weights' device.
            scale: standard deviation of every entry, > 0.
            batch: shape of a batch of independent starts.

        Returns:
            (*batch, p), float64.

        Raises:
            ValueError: if an argument is out of range, or the map is not homogeneous of this
                degree or does not return D numbers.

        Example:
            >>> network = HomogeneousNetwork(lambda w: w[:3] ** 3 - w[3:] ** 3, 3)
            >>> network.initialise(3, torch.Generator(), 0.1, batch=(5,)).shape
            torch.Size([5, 6])
        """
        scale = positive("scale", scale)
        size = self._size(count("dimension", dimension), generator.device)
        options = {"generator": generator, "device": generator.device, "dtype": torch.float64}
        weights = torch.randn(*batch, size, **options)
        self.validate(weights, dimension)
        return scale * weights

    def validate(self, weights: Tensor, dimension: int) -> Tensor:
        r"""Return weights in float64, or raise ValueError.

        Args:
            weights: (..., p).
            dimension: D, the dimension of the inputs.

        Returns:
            (..., p), float64.

        Raises:
            ValueError: if a value is not finite, or the map is not homogeneous of this degree or
                does not return D numbers.

        Example:
            >>> network = HomogeneousNetwork(lambda w: w + 1, 1)
            >>> network.validate(torch.ones(2), 2)
            Traceback (most recent call last):
            ValueError: map must satisfy map(c w) = c^1 map(w) for c > 0, but misses it by 33 %
            at c = 0.6; use another degree or map
        """
        weights = real("weights", weights)
        one = weights.flatten(0, -2)[0] if weights.ndim > 1 else weights
        value = self.map(one)
        if tuple(value.shape) != (dimension,):
            raise ValueError(
                f"map must return shape ({dimension},) to match the inputs, got "
                f"{tuple(value.shape)} for weights of shape {tuple(one.shape)}"
            )
        for factor in (0.6, 1.7):
            expected = factor**self.degree * value
            error = float((self.map(factor * one) - expected).abs().max())
            size = float(expected.abs().max())
            if not error <= _TOLERANCE * size:
                miss = f"{100 * error / size:.2g} %" if size else f"{error:.2g}"
                raise ValueError(
                    f"map must satisfy map(c w) = c^{self.degree} map(w) for c > 0, but misses it "
                    f"by {miss} at c = {factor}; use another degree or map"
                )
        return weights

    def linearise(self, weights: Tensor) -> Linearisation:
        """Return the predictor and its derivative, from the Jacobian."""
        predictor = self.predictor(weights)
        jacobian = _batched(jacrev(self.map), weights)

        def pushforward(change: Tensor) -> Tensor:
            return (jacobian @ change.unsqueeze(-1)).squeeze(-1)

        def adjoint(vector: Tensor) -> Tensor:
            return (vector.unsqueeze(-2) @ jacobian).squeeze(-2)

        def gram(rows: Tensor) -> Tensor:
            gradients = rows @ jacobian
            return gradients @ gradients.mT

        return Linearisation(predictor, pushforward, adjoint, gram)

    def predictor(self, weights: Tensor) -> Tensor:
        """Return P(w), (..., D)."""
        return _batched(self.map, weights)

    def pushforward(self, weights: Tensor, change: Tensor) -> Tensor:
        """Return the derivative P'(w) u along a change of the weights, (..., D)."""
        return self.linearise(weights).pushforward(change)

    def adjoint(self, weights: Tensor, vector: Tensor) -> Tensor:
        """Return P'(w)^T z, (..., p), for a vector z of shape (..., D)."""
        return self.linearise(weights).adjoint(vector)

    def gram(self, weights: Tensor, rows: Tensor) -> Tensor:
        """Return A P'(w) P'(w)^T A^T for rows (..., N, D) of A, (..., N, N)."""
        return self.linearise(weights).gram(rows)

    def curvature(self, weights: Tensor) -> Tensor:
        r"""Return a bound on the curvature of the margin of an example of unit norm.

        $$\Big\| \sum_d x_d H_d \Big\| \le \|x\|\, \Big\| \sum_d H_d^2 \Big\|^{1/2}, \qquad
          H_d = \nabla^2 P_d(w)$$

        or what `hessian_bound` says.

        Args:
            weights: (..., p).

        Returns:
            (...).

        Example:
            >>> network = HomogeneousNetwork(lambda w: w[:1] ** 2 - w[1:] ** 2, 2)
            >>> network.curvature(torch.ones(2))
            tensor(2.)
        """
        if self.hessian_bound is not None:
            return self.hessian_bound(weights)
        second = _batched(hessian(self.map), weights)
        return torch.linalg.eigvalsh((second @ second).sum(-3))[..., -1].clamp(min=0).sqrt()

    def penalty(self, predictor: Tensor) -> Tensor:
        """Raise ValueError: no formula holds for every homogeneous map."""
        raise ValueError(
            "no closed form of min |w|^2 such that P(w) = predictor is known for a general map; "
            "use DenseNetwork, DiagonalNetwork or ConvolutionalNetwork, or compute it for your map"
        )

    def _size(self, dimension: int, device: torch.device) -> int:
        """The number of weights: what was given, or the smallest multiple of D that fits."""
        if self.parameters is not None:
            return self.parameters
        failure = None
        for size in range(dimension, (_MULTIPLES + 1) * dimension, dimension):
            try:
                value = self.map(torch.ones(size, dtype=torch.float64, device=device))
                if tuple(value.shape) == (dimension,):
                    return size
            except (RuntimeError, ValueError, IndexError) as error:
                failure = error
        raise ValueError(
            f"map takes none of D, 2 D, ..., {_MULTIPLES} D weights to D = {dimension} numbers; "
            "say how many it needs with HomogeneousNetwork(map, degree, parameters=...)"
        ) from failure


def _batched(function: Callable[[Tensor], Tensor], weights: Tensor) -> Tensor:
    """Apply a function of one weight vector over the leading dimensions."""
    if weights.ndim == 1:
        return function(weights)
    result = vmap(function)(weights.flatten(0, -2))
    return result.unflatten(0, weights.shape[:-1])
