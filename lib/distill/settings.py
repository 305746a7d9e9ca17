"""What decides a training run, and what comes out of it."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from lib.distill.methods import OBJECTIVES, Objective
from lib.distill.options import resolve_options

OPTIMISERS = ("sgd", "adam-weight-decay")
SCHEDULES = ("constant", "warmup-linear")
PRECISIONS = ("float32", "float64", "amp-float16", "amp-bfloat16")
HEADS = ("nonlinear", "linear")
_FROM_DATA = "steps_per_epoch"  # an option that the number of examples decides


@dataclass(frozen=True)
class TrainingSettings:
    r"""Everything that decides a run apart from the network, the examples and the teacher.

    **Source**: Yuan & Tao, Appendix E.1. Defaults are those of a small run; the guard
    `largest_kl`, the logging and the checkpoints are ours.

    Args:
        method: one of `OBJECTIVES`.
        iterations: optimiser steps, >= 1.
        seed: integer >= 0, of every random stream: order, views, dropout, auxiliary modules.
        learning_rate: base rate, > 0.
        batch_size: examples of one optimiser step, >= 1.
        micro_batch: examples that pass the network at once, >= 1; the gradient is that of the
            whole batch.
        optimiser: "sgd" or "adam-weight-decay".
        momentum: of "sgd", in [0, 1).
        weight_decay: >= 0; None for the method's own in the vision protocol.
        schedule: "constant" or "warmup-linear".
        warmup: steps of rising rate, in [0, iterations].
        clip: largest norm of the whole gradient, > 0, or None.
        precision: "float32", "float64", "amp-float16" or "amp-bfloat16".
        options: of the method, see `OBJECTIVES[method].options`; DKD's `steps_per_epoch` comes from
            the examples unless it is given.
        auxiliary_head: of DHKD, "nonlinear" or "linear".
        feature_weight: of the hidden states in DTO-KD's distillation loss, >= 0; 0 for logits only.
        log_every: steps between two lines of the log, >= 1.
        checkpoint_every: steps between two checkpoints, >= 1; changes no result.
        observe_every: steps between two measurements of the observation set, or the numbers of
            steps after which to measure; None for the end only.
        largest_kl: conditional KL of a batch, in nats, above which a run is stopped, > 0.

    Raises:
        ValueError: if a field does not fit; it names the field, what was given and what is allowed.

    Example:
        >>> settings = TrainingSettings("kl-dist", 100, 42, 0.01, weight_decay=None)
        >>> settings.decay
        0.0001
    """

    method: str
    iterations: int
    seed: int
    learning_rate: float
    batch_size: int = 64
    micro_batch: int = 64
    optimiser: str = "sgd"
    momentum: float = 0.9
    weight_decay: float | None = 1e-3
    schedule: str = "constant"
    warmup: int = 0
    clip: float | None = None
    precision: str = "float32"
    options: Mapping[str, float | bool | str] = field(default_factory=dict)
    auxiliary_head: str = "nonlinear"
    feature_weight: float = 0.0
    log_every: int = 50
    checkpoint_every: int = 200
    observe_every: int | tuple[int, ...] | None = None
    largest_kl: float = 1e4

    def __post_init__(self) -> None:
        words = {
            "method": tuple(OBJECTIVES),
            "optimiser": OPTIMISERS,
            "schedule": SCHEDULES,
            "precision": PRECISIONS,
            "auxiliary_head": HEADS,
        }
        for name, allowed in words.items():
            self._put(name, _word(name, getattr(self, name), allowed))
        for name in ("iterations", "batch_size", "micro_batch", "log_every", "checkpoint_every"):
            self._put(name, _whole(name, getattr(self, name), 1))
        self._put("seed", _whole("seed", self.seed, 0))
        self._put("warmup", _whole("warmup", self.warmup, 0, self.iterations))
        for name in ("learning_rate", "largest_kl"):
            self._put(name, _real(name, getattr(self, name), above=True))
        self._put("momentum", _real("momentum", self.momentum, below=1.0))
        self._put("feature_weight", _real("feature_weight", self.feature_weight))
        if self.weight_decay is not None:
            self._put("weight_decay", _real("weight_decay", self.weight_decay))
        if self.clip is not None:
            self._put("clip", _real("clip", self.clip, above=True))
        self._put("observe_every", _moments(self.observe_every, self.iterations))
        if not isinstance(self.options, Mapping):
            raise ValueError(
                f"options must be a mapping from names to values, got {self.options!r}"
            )
        self._put("options", dict(self.options))
        resolve_options(self.method, self.objective.rules, self.options)
        if self.feature_weight and self.method != "dto-kd":
            raise ValueError(
                f"feature_weight must be 0 for {self.method!r}, got {self.feature_weight}: only "
                "'dto-kd' distils hidden states"
            )

    @property
    def objective(self) -> Objective:
        """The method."""
        return OBJECTIVES[self.method]

    @property
    def decay(self) -> float:
        """The weight decay: the one given, or the method's own."""
        if self.weight_decay is None:
            return self.objective.vision_weight_decay
        return self.weight_decay

    def resolved_options(self, examples: int) -> dict[str, float | bool | str]:
        """Return a value for every option of the method.

        Args:
            examples: n, of an epoch.

        Returns:
            The options given, and defaults; DKD's steps per epoch are n / batch_size unless given.

        Example:
            >>> TrainingSettings("dkd", 8, 0, 0.1).resolved_options(18_000)["steps_per_epoch"]
            281.25
        """
        found = resolve_options(self.method, self.objective.rules, self.options)
        if _FROM_DATA in found and _FROM_DATA not in self.options:
            found[_FROM_DATA] = examples / self.batch_size
        return found

    def observes(self, iteration: int) -> bool:
        """Say whether the observation set is measured after that many steps."""
        if iteration == self.iterations:
            return True
        if isinstance(self.observe_every, tuple):
            return iteration in self.observe_every
        return self.observe_every is not None and iteration % self.observe_every == 0

    def fingerprint(self) -> dict:
        """Return everything that decides weights or log, as JSON can hold it.

        Example:
            >>> TrainingSettings("ce", 5, 42, 0.1).fingerprint()["learning_rate"]
            0.1
        """
        found = {name: getattr(self, name) for name in self.__dataclass_fields__}
        del found["checkpoint_every"]
        options = resolve_options(self.method, self.objective.rules, self.options)
        if _FROM_DATA in options and _FROM_DATA not in self.options:
            del options[_FROM_DATA]
        moments = self.observe_every
        return found | {
            "weight_decay": self.decay,
            "options": options,
            "observe_every": list(moments) if isinstance(moments, tuple) else moments,
        }

    def _put(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


@dataclass(frozen=True)
class TrainingResult:
    """What a run ended with.

    Attributes:
        settings: of the run.
        measures: of the test examples after the last step, which was fixed in advance; empty
            without test examples.
        test_logits: (n, K) of the test examples after the last step, or None.
        log: one row for every measured step; `iteration` counts the steps taken before it.
        seconds: of training, over all resumptions.
        weights_digest: SHA-256 of the student's weights and buffers after the last step.
        snapshots: states by the number of steps taken, as `Trainer.state` returns them.
    """

    settings: TrainingSettings
    measures: dict
    test_logits: Tensor | None
    log: list[dict]
    seconds: float
    weights_digest: str
    snapshots: dict[int, dict[str, Tensor]] = field(default_factory=dict)


def _word(name: str, value: object, allowed: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
    return value


def _whole(name: str, value: object, low: int, high: int | None = None) -> int:
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not whole or value < low or (high is not None and value > high):
        limit = f">= {low}" if high is None else f"in [{low}, {high}]"
        raise ValueError(f"{name} must be an integer {limit}, got {value!r}")
    return int(value)


def _real(name: str, value: object, above: bool = False, below: float = math.inf) -> float:
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not real or not math.isfinite(value) or value < 0 or (above and value == 0):
        raise ValueError(f"{name} must be finite and {'> 0' if above else '>= 0'}, got {value!r}")
    if value >= below:
        raise ValueError(f"{name} must be below {below:g}, got {value!r}")
    return float(value)


def _moments(value: object, iterations: int) -> int | tuple[int, ...] | None:
    if value is None:
        return None
    if isinstance(value, tuple | list):
        return tuple(sorted({_whole("observe_every", one, 0, iterations) for one in value}))
    return _whole("observe_every", value, 1)
