"""Linear networks: different parametrisations of the same predictors x -> <beta, x>.

A network is a map P from weights to a predictor beta = P(w), homogeneous of degree L in the
weights. Depth L counts every weight layer, the output layer too. Weights are a tuple of L tensors,
first layer first, each with the same leading batch dimensions: independent starts cost one tensor
operation. An unbatched tensor (L, D) is read as its L rows. Every network offers

- `predictor(weights)`: P(w);
- `pushforward(weights, change)` and `adjoint(weights, vector)`: P'(w) u and P'(w)^T z;
- `gram(weights, rows)`: A P'(w) P'(w)^T A^T, the inner products of the margins' gradients;
- `curvature(weights)`: a bound on how strongly a margin of an example of unit norm can curve;
- `penalty(predictor)`: the smallest |w|^2 that gives this predictor, where a formula is known;
- `linearise(weights)`: the first three at given weights, which share most of their work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from lib.implicit.checks import count, positive, real
from lib.implicit.spectrum import multiplicity, signal, spectrum

Layers = Sequence[Tensor]


def leave_one_out_products(factors: Layers) -> list[Tensor]:
    r"""Return, for every factor, the elementwise product of all the others.

    $$\prod_{k \ne l} f_k, \qquad l = 1, \dots, L$$

    Args:
        factors: L tensors of one shape; zeros are allowed.

    Returns:
        L tensors of the same shape.

    Example:
        >>> leave_one_out_products([torch.tensor(2.0), torch.tensor(3.0), torch.tensor(0.0)])
        [tensor(0.), tensor(0.), tensor(6.)]
    """
    before = [torch.ones_like(factors[0])]
    after = [torch.ones_like(factors[0])]
    for first, last in zip(factors[:-1], reversed(factors[1:]), strict=True):
        before.append(before[-1] * first)
        after.append(after[-1] * last)
    return [left * right for left, right in zip(before, reversed(after), strict=True)]


def squared_norm(weights: Layers) -> Tensor:
    """Return the sum of squares of all layers' entries, (...), given one vector or matrix each.

    Args:
        weights: layers; the last has shape (..., d), the others (..., d) or (..., d, d').

    Returns:
        (...), the batch dimensions of the last layer.

    Example:
        >>> squared_norm([torch.ones(3), torch.ones(3)])
        tensor(6.)
    """
    batch = weights[-1].ndim - 1
    return sum((layer.flatten(batch) ** 2).sum(-1) for layer in weights)


@dataclass(frozen=True)
class Linearisation:
    """A network at given weights w, and its derivative there.

    Attributes:
        predictor: P(w), (..., D).
        pushforward: takes a change u of the weights to P'(w) u, (..., D).
        adjoint: takes a vector z, (..., D), to P'(w)^T z, of the weights' shapes.
        gram: takes rows (..., N, D) of A to A P'(w) P'(w)^T A^T, (..., N, N).
    """

    predictor: Tensor
    pushforward: Callable[[object], Tensor]
    adjoint: Callable[[Tensor], object]
    gram: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class _LayeredNetwork:
    """What networks of L layers share.

    Attributes:
        depth: L >= 1, the number of weight layers including the output layer.
    """

    depth: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "depth", count("depth", self.depth))

    @property
    def degree(self) -> int:
        """The degree of homogeneity, P(c w) = c^L P(w)."""
        return self.depth

    def shapes(self, dimension: int) -> list[tuple[int, ...]]:
        """The layers' shapes without batch dimensions, for inputs of a given dimension."""
        return [(count("dimension", dimension),)] * self.depth

    def initialise(
        self,
        dimension: int,
        generator: torch.Generator,
        scale: float,
        batch: tuple[int, ...] = (),
    ) -> tuple[Tensor, ...]:
        """Draw independent Gaussian weights of mean 0 and standard deviation `scale`.

        Args:
            dimension: D, the dimension of the inputs.
            generator: source of randomness; its device is the weights' device.
            scale: standard deviation of every entry, > 0.
            batch: shape of a batch of independent starts.

        Returns:
            L tensors of shape (*batch, ...), float64.

        Raises:
            ValueError: if dimension < 1 or scale <= 0.

        Example:
            >>> w = DiagonalNetwork(2).initialise(3, torch.Generator(), 0.1, batch=(5,))
            >>> len(w), w[0].shape
            (2, torch.Size([5, 3]))
        """
        scale = positive("scale", scale)
        options = {"generator": generator, "device": generator.device, "dtype": torch.float64}
        return tuple(
            scale * torch.randn(*batch, *shape, **options) for shape in self.shapes(dimension)
        )

    def validate(self, weights: Layers, dimension: int) -> tuple[Tensor, ...]:
        """Return weights in float64 as a tuple of layers, or raise ValueError.

        Args:
            weights: a sequence of L layers.
            dimension: D, the dimension of the inputs.

        Returns:
            L float64 tensors.

        Raises:
            ValueError: if there are not L layers, or a shape or value does not fit.

        Example:
            >>> DiagonalNetwork(2).validate(torch.ones(3, 4), 4)
            Traceback (most recent call last):
            ValueError: weights must hold 2 layers for depth 2, got 3
        """
        layers = self._layers(weights)
        layers = tuple(real(f"weights[{i}]", layer) for i, layer in enumerate(layers))
        batch = layers[-1].shape[:-1]
        for i, (layer, shape) in enumerate(zip(layers, self.shapes(dimension), strict=True)):
            if tuple(layer.shape) != (*batch, *shape):
                raise ValueError(
                    f"weights[{i}] must have shape {(*batch, *shape)} for inputs of dimension "
                    f"{dimension}, got {tuple(layer.shape)}"
                )
        return layers

    def linearise(self, weights: Layers) -> Linearisation:
        """Return the predictor and its derivative at given weights."""
        raise NotImplementedError

    def predictor(self, weights: Layers) -> Tensor:
        """Return P(w), (..., D)."""
        return self.linearise(weights).predictor

    def pushforward(self, weights: Layers, change: Layers) -> Tensor:
        """Return the derivative P'(w) u along a change of the weights, (..., D)."""
        return self.linearise(weights).pushforward(change)

    def adjoint(self, weights: Layers, vector: Tensor) -> tuple[Tensor, ...]:
        """Return P'(w)^T z, a change of the weights, for a vector z of shape (..., D)."""
        return self.linearise(weights).adjoint(vector)

    def gram(self, weights: Layers, rows: Tensor) -> Tensor:
        """Return A P'(w) P'(w)^T A^T for rows (..., N, D) of A, (..., N, N)."""
        return self.linearise(weights).gram(rows)

    def curvature(self, weights: Layers) -> Tensor:
        r"""Return a bound on the curvature of the margin of an example of unit norm.

        $$\| \nabla^2_w \langle x, P(w) \rangle \| \le (L - 1)\, \|w\|^{L-2}\, \|x\|$$

        Args:
            weights: the layers.

        Returns:
            (...).

        Example:
            >>> DiagonalNetwork(3).curvature(torch.ones(3, 3))
            tensor(6.)
        """
        layers = self._layers(weights)
        if self.depth == 1:
            return torch.zeros_like(layers[0][..., 0])
        return (self.depth - 1) * squared_norm(layers) ** ((self.depth - 2) / 2)

    def _layers(self, weights: Layers) -> tuple[Tensor, ...]:
        layers = tuple(weights)
        if len(layers) != self.depth:
            raise ValueError(
                f"weights must hold {self.depth} layers for depth {self.depth}, got {len(layers)}"
            )
        return layers


@dataclass(frozen=True)
class DenseNetwork(_LayeredNetwork):
    r"""A fully connected linear network.

    $$P(w) = W_1 W_2 \cdots W_{L-1} w_L$$

    with $W_1$ of shape (D, d_1), $W_l$ of shape (d_{l-1}, d_l) and $w_L$ of shape (d_{L-1},).

    **Source**: Gunasekar et al. (2018), Section 2.

    Attributes:
        depth: L >= 1, the number of weight layers.
        width: the width of every hidden layer; None for D.

    Example:
        >>> DenseNetwork(2).predictor([torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.ones(2)])
        tensor([3., 7.])
    """

    width: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width is not None:
            object.__setattr__(self, "width", count("width", self.width))

    def shapes(self, dimension: int) -> list[tuple[int, ...]]:
        """The layers' shapes without batch dimensions, for inputs of a given dimension."""
        width = self.width or count("dimension", dimension)
        sizes = [count("dimension", dimension)] + [width] * (self.depth - 1)
        return [*pairwise(sizes), (sizes[-1],)]

    def linearise(self, weights: Layers) -> Linearisation:
        """Return the predictor and its derivative; the adjoint is a product of vectors per layer.

        The gradient in layer l is (W_1 ... W_{l-1})^T z (W_{l+1} ... w_L)^T.
        """
        layers = self._layers(weights)
        right = [layers[-1]]  # W_l ... w_L for l = L, ..., 1, then reversed
        for layer in reversed(layers[:-1]):
            right.append(_apply(layer, right[-1]))
        right.reverse()
        hidden = list(zip(layers[:-1], right[1:], strict=True))

        def pushforward(change: Layers) -> Tensor:
            result = change[-1]
            for (layer, after), step in zip(
                reversed(hidden), reversed(tuple(change)[:-1]), strict=True
            ):
                result = _apply(layer, result) + _apply(step, after)
            return result

        def adjoint(vector: Tensor) -> tuple[Tensor, ...]:
            gradient = []
            for layer, after in hidden:
                gradient.append(vector.unsqueeze(-1) * after.unsqueeze(-2))
                vector = _apply(layer.mT, vector)
            return (*gradient, vector)

        def gram(rows: Tensor) -> Tensor:
            total = 0
            for layer, after in hidden:
                total = total + (rows @ rows.mT) * (after**2).sum(-1)[..., None, None]
                rows = rows @ layer
            return total + rows @ rows.mT

        return Linearisation(right[0], pushforward, adjoint, gram)

    def penalty(self, predictor: Tensor) -> Tensor:
        r"""Return the smallest |w|^2 of weights with a given predictor.

        $$R_P(\beta) = L\, \|\beta\|_2^{2/L}$$

        reached at balanced layers of rank one.
        """
        norm = torch.linalg.vector_norm(real("predictor", predictor), dim=-1)
        return self.depth * norm ** (2 / self.depth)


@dataclass(frozen=True)
class DiagonalNetwork(_LayeredNetwork):
    r"""A network of diagonal layers: the predictor is an elementwise product.

    $$P(w) = w_1 \odot w_2 \odot \cdots \odot w_L$$

    **Source**: Gunasekar et al. (2018), Section 5.

    Attributes:
        depth: L >= 1, the number of weight layers.

    Example:
        >>> DiagonalNetwork(2).predictor(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        tensor([3., 8.])
    """

    def linearise(self, weights: Layers) -> Linearisation:
        """Return the predictor and its derivative; the adjoint multiplies z by the other layers."""
        layers = self._layers(weights)
        others = torch.stack(leave_one_out_products(layers))

        def pushforward(change: Layers) -> Tensor:
            return sum(other * step for other, step in zip(others, change, strict=True))

        def adjoint(vector: Tensor) -> tuple[Tensor, ...]:
            return (others * vector).unbind()

        def gram(rows: Tensor) -> Tensor:
            return (rows * (others**2).sum(0).unsqueeze(-2)) @ rows.mT

        return Linearisation(others[0] * layers[0], pushforward, adjoint, gram)

    def penalty(self, predictor: Tensor) -> Tensor:
        r"""Return the smallest |w|^2 of weights with a given predictor.

        $$R_P(\beta) = L \sum_d |\beta_d|^{2/L}$$

        reached where all layers have the same modulus in every coordinate.
        """
        return self.depth * (real("predictor", predictor).abs() ** (2 / self.depth)).sum(-1)


@dataclass(frozen=True)
class ConvolutionalNetwork(_LayeredNetwork):
    r"""A full-width circular convolutional network: L - 1 convolutions and a dense output layer.

    Each convolution is a cross-correlation over the whole width,

    $$h_l[d] = \frac{1}{\sqrt D} \sum_{k=0}^{D-1} w_l[k]\, h_{l-1}[(d + k) \bmod D],
      \qquad h_0 = x,$$

    and the output is $\langle w_L, h_{L-1} \rangle$. In the unitary Fourier transform the predictor
    is an elementwise product, with no constants,

    $$\hat\beta = \hat w_1 \odot \hat w_2 \odot \cdots \odot \hat w_L .$$

    **Source**: Gunasekar et al. (2018), Section 2.

    Attributes:
        depth: L >= 1, the number of weight layers, the output layer included.

    Example:
        >>> layers = torch.tensor([[1.0, 2.0, 0.0, -1.0], [3.0, 0.0, 1.0, 2.0]])
        >>> ConvolutionalNetwork(2).predictor(layers)
        tensor([ 3.5000,  2.5000, -0.5000,  0.5000])
    """

    def linearise(self, weights: Layers) -> Linearisation:
        """Return the predictor and its derivative; in Fourier coefficients it is a diagonal net.

        The adjoint multiplies the coefficients of z by the conjugates of the other spectra.
        """
        layers = self._layers(weights)
        dimension = layers[0].shape[-1]
        spectra = spectrum(torch.stack(layers))
        others = torch.stack(leave_one_out_products(spectra.unbind()))

        def pushforward(change: Layers) -> Tensor:
            return signal((others * spectrum(torch.stack(tuple(change)))).sum(0), dimension)

        def adjoint(vector: Tensor) -> tuple[Tensor, ...]:
            return signal(others.conj() * spectrum(vector), dimension).unbind()

        def gram(rows: Tensor) -> Tensor:
            energy = (torch.view_as_real(others) ** 2).sum((0, -1))
            energy = energy * multiplicity(dimension, rows.device)
            parts = torch.view_as_real(spectrum(rows))
            return (parts * energy[..., None, :, None]).flatten(-2) @ parts.flatten(-2).mT

        return Linearisation(signal(others[0] * spectra[0], dimension), pushforward, adjoint, gram)

    def penalty(self, predictor: Tensor) -> Tensor:
        r"""Return the smallest |w|^2 of weights with a given predictor.

        $$R_P(\beta) = L \sum_{d=0}^{D-1} |\hat\beta_d|^{2/L}$$

        reached where all layers' spectra have the same modulus in every coefficient.
        """
        predictor = real("predictor", predictor)
        twice = multiplicity(predictor.shape[-1], predictor.device)
        return self.depth * (twice * spectrum(predictor).abs() ** (2 / self.depth)).sum(-1)


def _apply(matrix: Tensor, vector: Tensor) -> Tensor:
    """Matrix times vector over the last dimensions."""
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)
