"""Google's AdamWeightDecay, its parameter groups, and the learning rate of an iteration."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from lib.distill.settings import TrainingSettings

_NORM = re.compile(r"Norm\d*d?$")  # names of classes: LayerNorm, BatchNorm2d, RMSNorm, ...


class AdamWeightDecay(torch.optim.Optimizer):
    r"""Adam without bias correction, with weight decay inside the step.

    $$m \leftarrow \beta_1 m + (1 - \beta_1) g, \qquad
      v \leftarrow \beta_2 v + (1 - \beta_2) g^2, \qquad
      w \leftarrow w - \eta \left( \frac{m}{\sqrt v + \epsilon} + \lambda w \right)$$

    The means start at zero and stay too small for a while, v more so than m: the first step has
    size $(1 - \beta_1) / \sqrt{1 - \beta_2} = 3.16$ learning rates where torch's Adam has one.

    **Source**: Devlin et al. (2019), released code (`AdamWeightDecayOptimizer`); Yuan & Tao,
    Appendix E.1.

    Args:
        params: tensors, or groups of them as `parameter_groups` makes.
        lr: the learning rate >= 0; a trainer sets it anew at each iteration.
        betas: decay of m and of v, in [0, 1).
        eps: > 0.
        weight_decay: >= 0.

    Raises:
        ValueError: if a number is outside its range.

    Example:
        >>> weight = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        >>> optimiser = AdamWeightDecay([weight], lr=0.1, betas=(0.0, 0.75))
        >>> (-weight).sum().backward()
        >>> optimiser.step()  # m = -1, sqrt(v) = 1/2: a step of 2 learning rates
        >>> weight.data
        tensor([0.2000], dtype=torch.float64)
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters after checking its numbers."""
        whole = {**self.defaults, **param_group}
        _check_range("lr", whole["lr"], 0.0, math.inf)
        if not isinstance(whole["betas"], tuple | list) or len(whole["betas"]) != 2:
            raise ValueError(f"betas must be two numbers, got {whole['betas']!r}")
        for number, beta in enumerate(whole["betas"]):
            _check_range(f"betas[{number}]", beta, 0.0, 1.0)
        _check_range("eps", whole["eps"], 0.0, math.inf, open_low=True)
        _check_range("weight_decay", whole["weight_decay"], 0.0, math.inf)
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; parameters without a gradient stay as they are.

        Args:
            closure: computes the gradients and returns the loss, if given.

        Returns:
            What the closure returned, or None.

        Raises:
            ValueError: if a gradient is sparse.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if weights:
                self._update(weights, group)
        return loss

    def _update(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        """One step of a group, with one kernel for all its tensors where the device has one."""
        for weight in weights:
            if weight.grad.is_sparse:
                raise ValueError("gradients must be dense, got a sparse one; use sparse=False")
            if not self.state[weight]:
                self.state[weight] |= {
                    "mean": torch.zeros_like(weight),
                    "square": torch.zeros_like(weight),
                }
        gradients = [weight.grad for weight in weights]
        means, squares = ([self.state[w][name] for w in weights] for name in ("mean", "square"))
        first, second = group["betas"]
        torch._foreach_mul_(means, first)
        torch._foreach_add_(means, gradients, alpha=1 - first)
        torch._foreach_mul_(squares, second)
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - second)
        updates = torch._foreach_sqrt(squares)
        torch._foreach_add_(updates, group["eps"])
        updates = torch._foreach_div(means, updates)
        if group["weight_decay"] != 0:
            torch._foreach_add_(updates, weights, alpha=group["weight_decay"])
        torch._foreach_add_(weights, updates, alpha=-group["lr"])


def parameter_groups(
    model: nn.Module, weight_decay: float, exclude_bias_and_norm: bool
) -> list[dict[str, Any]]:
    """Return the trained parameters of a network, in one group or in two with and without decay.

    **Source**: Yuan & Tao, Appendix E.1: in the text protocol biases and the parameters of
    LayerNorm have no weight decay.

    Args:
        model: the network; parameters that require no gradient are left out.
        weight_decay: >= 0.
        exclude_bias_and_norm: True if biases and the parameters of normalisations have no decay.

    Returns:
        Groups for an optimiser, none of them empty, each parameter once, in the network's order.

    Raises:
        ValueError: if no parameter is trained, or weight_decay is outside its range.

    Example:
        >>> model = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))
        >>> groups = parameter_groups(model, 0.01, exclude_bias_and_norm=True)
        >>> [(group["weight_decay"], len(group["params"])) for group in groups]
        [(0.01, 1), (0.0, 3)]
    """
    _check_range("weight_decay", weight_decay, 0.0, math.inf)
    decayed: list[Tensor] = []
    free: list[Tensor] = []
    seen: set[int] = set()
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            if not weight.requires_grad or id(weight) in seen:
                continue
            seen.add(id(weight))
            excluded = exclude_bias_and_norm and (name.endswith("bias") or _is_norm(module))
            (free if excluded else decayed).append(weight)
    if not seen:
        raise ValueError(f"model must have a parameter that requires a gradient, got {model!r}")
    groups = [(decayed, weight_decay), (free, 0.0)]
    return [{"params": part, "weight_decay": decay} for part, decay in groups if part]


def learning_rate(settings: TrainingSettings, iteration: int) -> float:
    r"""Return the learning rate of an iteration.

    $$\eta_k = \eta \begin{cases} k / w, & k < w \\ 1 - k / n, & w \le k < n \end{cases}$$

    for "warmup-linear", with w iterations of warm-up out of n: the first step has rate zero, and at
    k = w the rate falls below $\eta$. For "constant" it is $\eta$.

    **Source**: Yuan & Tao, Appendix E.1, with w = 112 and n = 1,125.

    Args:
        settings: of the run; its schedule, learning rate, warm-up and iterations count.
        iteration: k in [0, n), counted from zero.

    Returns:
        The rate >= 0.

    Raises:
        ValueError: if the iteration is outside its range.

    Example:
        >>> ten = TrainingSettings("ce", 10, 42, 1.0, schedule="warmup-linear", warmup=2)
        >>> [learning_rate(ten, k) for k in (0, 1, 2, 5)]
        [0.0, 0.5, 0.8, 0.5]
    """
    if not isinstance(iteration, int) or not 0 <= iteration < settings.iterations:
        raise ValueError(
            f"iteration must be an integer in [0, {settings.iterations}), got {iteration!r}"
        )
    if settings.schedule == "constant":
        return settings.learning_rate
    if iteration < settings.warmup:
        return settings.learning_rate * (iteration / settings.warmup)
    return settings.learning_rate * (1 - iteration / settings.iterations)


def _is_norm(module: nn.Module) -> bool:
    """Whether a module normalises, by its name or that of a class that it comes from."""
    return any(_NORM.search(base.__name__) for base in type(module).__mro__)


def _check_range(
    name: str, value: float, low: float, high: float, *, open_low: bool = False
) -> None:
    """Raises unless low <= value < high, or low < value < high."""
    real = isinstance(value, numbers.Real)
    if not real or not (low < value < high if open_low else low <= value < high):
        bracket = "(" if open_low else "["
        raise ValueError(f"{name} must lie in {bracket}{low:g}, {high:g}), got {value!r}")
