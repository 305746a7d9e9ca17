"""Hessian-vector products by double back-propagation, and the sharpness of a loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lib.stability.checks import count, leaf_parameters, loss_functions, positive, real_float64
from lib.stability.lanczos import ConvergenceError, Eigenpairs, largest_eigenpairs

_NOISE = 0.1  # of the length of a warm start: enough to see an eigenvalue that overtook
Loss = Callable[[], Tensor] | Sequence[Callable[[], Tensor]]


class SharpnessError(RuntimeError):
    """No sharpness: the loss or a product is not finite, or the iteration did not converge."""


@dataclass(frozen=True, eq=False)
class Sharpness:
    r"""The largest eigenvalues of a Hessian, each with its certificate.

    Attributes:
        values: (k,) largest algebraic eigenvalues, descending, float64.
        vectors: (k, P) orthonormal eigenvectors, float64; pass them as `start` of the next call.
        residuals: (k,) $\lVert H v - \lambda v \rVert / |\lambda|$, each from a product of its own,
            made after the iteration; 0 where the numerator is.
        products: how many Hessian-vector products the call used, those of the residuals included.
    """

    values: Tensor
    vectors: Tensor
    residuals: Tensor
    products: int


class HessianOperator:
    """Products with the Hessian of a loss at the weights that its parameters hold now.

    For one function the graph of the gradient is built once and kept: a product is then one
    backward pass. For a sequence (micro-batches) the graph is built anew for each function and
    product, so that memory stays that of one micro-batch. Do not change the weights in between.
    """

    def __init__(self, loss: Loss, parameters: Iterable[Tensor]):
        self.functions = loss_functions(loss)
        self.parameters = leaf_parameters(parameters)
        self.sizes = [leaf.numel() for leaf in self.parameters]
        self.products = 0
        single = len(self.functions) == 1
        self.gradient = self._gradient(self.functions[0]) if single else None

    def _gradient(self, function: Callable[[], Tensor]) -> tuple[Tensor, ...]:
        """The gradient of one function, with its graph."""
        with torch.enable_grad():
            value = function()
            if not isinstance(value, Tensor) or value.numel() != 1:
                seen = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
                raise ValueError(f"loss must return a tensor with one number, got {seen}")
            if value.is_complex():
                raise ValueError(f"loss must be real, got {value.dtype}")
            if not value.requires_grad:
                raise ValueError("loss must depend on the parameters, got a value without a graph")
            if not bool(torch.isfinite(value)):
                raise SharpnessError(f"the loss is {value.item()}: stop before measuring sharpness")
            gradient = torch.autograd.grad(
                value.reshape(()), self.parameters, create_graph=True, allow_unused=True
            )
        if all(entry is None for entry in gradient):
            raise ValueError("loss must depend on the parameters, got one that uses none of them")
        pairs = zip(gradient, self.parameters, strict=True)
        return tuple(torch.zeros_like(leaf) if entry is None else entry for entry, leaf in pairs)

    def __call__(self, vector: Tensor) -> Tensor:
        """Return H v for v (P,), in float64."""
        self.products += 1
        parts = vector.to(self.parameters[0].dtype).split(self.sizes)
        parts = [part.view_as(leaf) for part, leaf in zip(parts, self.parameters, strict=True)]
        total = torch.zeros_like(vector, dtype=torch.float64)
        for function in self.functions:
            gradient = self._gradient(function) if self.gradient is None else self.gradient
            curved = [index for index, entry in enumerate(gradient) if entry.requires_grad]
            if not curved:
                continue
            image = torch.autograd.grad(
                [gradient[index] for index in curved],
                self.parameters,
                [parts[index] for index in curved],
                retain_graph=self.gradient is not None,
                allow_unused=True,
                materialize_grads=True,
            )
            total += torch.cat([entry.reshape(-1) for entry in image])
        return total


def hessian_vector_product(loss: Loss, parameters: Iterable[Tensor], vector: Tensor) -> Tensor:
    r"""Return the product of the Hessian of a loss with a vector.

    $$H v = \nabla_\theta \left\langle \nabla_\theta L(\theta), v \right\rangle$$

    **Source**: Pearlmutter (1994), fast exact multiplication by the Hessian; double
    back-propagation.

    Args:
        loss: a function () -> scalar that is differentiable in `parameters`, or a sequence of
            such functions whose sum is the loss.
        parameters: leaf tensors, P entries in total, float32 or float64; products are computed in
            that dtype.
        vector: (P,), in the order of the parameters' entries.

    Returns:
        (P,), in the dtype of the parameters.

    Raises:
        ValueError: if an argument does not fit, or the loss is no single number.
        SharpnessError: if the loss is NaN or infinite.

    Example:
        >>> x = torch.tensor([2.0, 3.0], requires_grad=True)
        >>> hessian_vector_product(lambda: x[0] ** 2 * x[1], [x], torch.tensor([1.0, 0.0]))
        tensor([6., 4.])
    """
    operator = HessianOperator(loss, parameters)
    leaf = operator.parameters[0]
    return operator(_flat_vector("vector", vector, operator)).to(leaf.dtype)


def dense_hessian(loss: Loss, parameters: Iterable[Tensor]) -> Tensor:
    r"""Return the Hessian of a loss as a matrix, for small networks.

    $$H_{ij} = \frac{\partial^2 L}{\partial \theta_i \, \partial \theta_j}$$

    Args:
        loss: as in `hessian_vector_product`.
        parameters: leaf tensors, P entries in total, at most 10,000.

    Returns:
        (P, P) float64, symmetric; P Hessian-vector products in the dtype of the parameters.

    Raises:
        ValueError: if an argument does not fit, or P > 10,000.
        SharpnessError: if the loss is NaN or infinite.

    Example:
        >>> x = torch.tensor([2.0, 3.0], requires_grad=True)
        >>> dense_hessian(lambda: x[0] ** 2 * x[1], [x])
        tensor([[6., 4.],
                [4., 0.]], dtype=torch.float64)
    """
    operator = HessianOperator(loss, parameters)
    size = sum(operator.sizes)
    if size > 10_000:
        raise ValueError(f"parameters must hold at most 10,000 entries, got {size}; use sharpness")
    basis = torch.eye(size, dtype=torch.float64, device=operator.parameters[0].device)
    rows = torch.stack([operator(row) for row in basis])
    return (rows + rows.T) / 2


def sharpness(
    loss: Loss,
    parameters: Iterable[Tensor],
    k: int = 1,
    tol: float = 1e-4,
    start: Tensor | None = None,
    max_products: int = 1000,
) -> Sharpness:
    r"""Return the k largest eigenvalues of the Hessian of a loss: algebraic, not by modulus.

    $$S(\theta) = \lambda_{\max}\left( \nabla^2 L(\theta) \right)$$

    An eigenvalue is right to about the square of its residual. Products are computed in the dtype
    of the parameters; for float64, convert the model and its data. Everything else runs in
    float64. Repeated calls give the same numbers.

    **Source**: Cohen et al. (2021) for the definition; thick-restart Lanczos (Wu and Simon, 2000)
    on Hessian-vector products.

    Args:
        loss: a function () -> scalar that is differentiable in `parameters`, or a sequence of
            such functions whose sum is the loss (micro-batches).
        parameters: leaf tensors, P entries in total, float32 or float64.
        k: how many eigenvalues, 1 <= k <= P.
        tol: largest relative residual, at least 32 times the precision of the parameters' dtype.
        start: (P,) a vector near the eigenvectors sought, or several as rows (m, P), which are
            added up, such as the `vectors` of an earlier call; None starts from a fixed random
            vector.
        max_products: how many Hessian-vector products the iteration may use; the residuals at the
            end take k more.

    Returns:
        The eigenvalues, eigenvectors, residuals and the number of products, as `Sharpness`.

    Raises:
        ValueError: if an argument does not fit.
        SharpnessError: if the loss or a product is NaN or infinite, if the products run out, or
            if a residual, measured again, is above 2 tol max(|lambda|, 32 u norm / tol), with u
            the precision and norm the largest modulus of an eigenvalue seen.

    Example:
        >>> x = torch.tensor([1.0, 1.0], dtype=torch.float64, requires_grad=True)
        >>> found = sharpness(lambda: (x[0] * x[1] - 1) ** 2 / 2, [x])
        >>> round(float(found.values[0]), 6)
        2.0
    """
    operator = HessianOperator(loss, parameters)
    count("k", k, 1, sum(operator.sizes))
    count("max_products", max_products)
    precision = torch.finfo(operator.parameters[0].dtype).eps
    if positive("tol", tol, 1.0) < 32 * precision:
        raise ValueError(
            f"tol must be at least {32 * precision:.2g} for {operator.parameters[0].dtype} "
            f"parameters, got {tol:g}; convert the model to float64 or raise tol"
        )
    begin = _start_vector(start, operator)
    try:
        pairs = largest_eigenpairs(operator, begin, k, tol, max_products, precision)
    except ConvergenceError as error:
        raise SharpnessError(str(error)) from None
    return _certify(operator, pairs, tol, precision)


def _flat_vector(name: str, vector: Tensor, operator: HessianOperator) -> Tensor:
    """A vector (P,) in float64 on the parameters' device."""
    size = sum(operator.sizes)
    checked = real_float64(name, vector)
    if checked.shape != (size,):
        raise ValueError(
            f"{name} must have shape ({size},), one number for each entry of parameters, "
            f"got {tuple(checked.shape)}"
        )
    return checked.to(operator.parameters[0].device)


def _start_vector(start: Tensor | None, operator: HessianOperator) -> Tensor:
    """The given start with a little noise, so that no eigenvector is out of reach; or noise."""
    noise = torch.randn(
        sum(operator.sizes), generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).to(operator.parameters[0].device)
    if start is None:
        return noise
    if isinstance(start, Tensor) and start.ndim == 2:
        start = start.sum(0)
    vector = _flat_vector("start", start, operator)
    length = float(vector.norm())
    if length == 0:
        raise ValueError("start must not be the zero vector; pass None for a random start")
    return vector / length + _NOISE * noise / noise.norm()


def _certify(
    operator: HessianOperator, pairs: Eigenpairs, tol: float, precision: float
) -> Sharpness:
    """Ritz values and residuals from fresh products with the vectors; refused when too large."""
    images = torch.stack([operator(vector) for vector in pairs.vectors])
    small = pairs.vectors @ images.T
    values, rotation = torch.linalg.eigh((small + small.T) / 2)
    values, rotation = values.flip(0), rotation.flip(1).T
    vectors, images = rotation @ pairs.vectors, rotation @ images
    lengths = (images - values[:, None] * vectors).norm(dim=1)
    allowed = torch.clamp(tol * values.abs(), min=32 * precision * pairs.norm)
    if not bool((lengths <= 2 * allowed).all()):
        raise SharpnessError(
            f"the residuals {lengths.tolist()} of the eigenvalues {values.tolist()} are more than "
            f"twice what tol={tol:g} allows; raise tol or use float64"
        )
    residuals = torch.where(lengths == 0, lengths, lengths / values.abs())
    return Sharpness(values, vectors, residuals, operator.products)
