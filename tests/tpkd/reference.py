"""The definitions of the paper in 60-digit decimals, one example at a time: slow and literal.

Logits are lists of floats, which decimals hold exactly. A logit of -inf is a probability of zero.
"""

from __future__ import annotations

import math
from decimal import Context, Decimal, localcontext

CONTEXT = Context(prec=60, Emin=-999_999_999, Emax=999_999_999)
INFINITY = Decimal("Infinity")
_FLAT = Decimal(-1_000_000)  # exp below is zero for every purpose here


def exactly(function):
    """Run a function in 60-digit decimals."""

    def wrapped(*arguments):
        with localcontext(CONTEXT):
            return function(*arguments)

    return wrapped


def _exp(x: Decimal) -> Decimal:
    return Decimal(0) if x < _FLAT else x.exp()


def _log(x: Decimal) -> Decimal:
    return -INFINITY if x == 0 else x.ln()


def _log_sum(values: list[Decimal]) -> Decimal:
    top = max(values, default=-INFINITY)
    if top == -INFINITY:
        return top
    return top + sum((_exp(v - top) for v in values), Decimal(0)).ln()


def others(logits: list[float], label: int) -> list[Decimal]:
    """The logits of the other classes."""
    return [Decimal(z) for j, z in enumerate(logits) if j != label]


def log_softmax(values: list[Decimal]) -> list[Decimal]:
    """Logarithms of the probabilities."""
    total = _log_sum(values)
    return [v - total for v in values]


@exactly
def log_odds(logits, label):
    return Decimal(logits[label]) - _log_sum(others(logits, label))


@exactly
def margins(logits, label):
    return [Decimal(logits[label]) - Decimal(z) for z in logits]


@exactly
def conditional_log_probs(logits, label):
    values = log_softmax(others(logits, label))
    return [*values[:label], -INFINITY, *values[label:]]


def _divergence(log_q, log_x):
    return sum(
        (_exp(a) * (a - b) for a, b in zip(log_q, log_x, strict=True) if a > -INFINITY), Decimal(0)
    )


@exactly
def conditional_kl(student, teacher, label):
    return _divergence(log_softmax(others(teacher, label)), log_softmax(others(student, label)))


@exactly
def full_kl(student, teacher):
    return _divergence(
        log_softmax([Decimal(w) for w in teacher]), log_softmax([Decimal(z) for z in student])
    )


def _softplus(x: Decimal) -> Decimal:
    return max(x, Decimal(0)) + (1 + _exp(-abs(x))).ln() if x.is_finite() else max(x, Decimal(0))


def _binary(target: Decimal, own: Decimal) -> Decimal:
    first, second = ((-_softplus(-a), -_softplus(a)) for a in (target, own))
    return _divergence(first, second)


@exactly
def bernoulli_kl(student, teacher, label):
    return _binary(log_odds(teacher, label), log_odds(student, label))


@exactly
def label_only_kl(student, teacher, label):
    target = log_odds(teacher, label)
    return _binary(target, max(target, log_odds(student, label)))


@exactly
def weighted_label_loss(logits, label, weights):
    terms = [
        _log(Decimal(weight)) + Decimal(z) - Decimal(logits[label])
        for j, (z, weight) in enumerate(zip(logits, weights, strict=True))
        if j != label and weight > 0
    ]
    return _softplus(_log_sum(terms))


@exactly
def is_blocked(student, teacher, label):
    p = log_softmax([Decimal(z) for z in student])
    t = log_softmax([Decimal(w) for w in teacher])
    slack = [b - a for j, (a, b) in enumerate(zip(p, t, strict=True)) if j != label]
    return min(slack) >= Decimal(10) ** -40 * max(map(abs, p)) * -1


@exactly
def transfer_cost(student, teacher, label):
    log_r, log_q = log_softmax(others(student, label)), log_softmax(others(teacher, label))
    return max(b - a for a, b in zip(log_r, log_q, strict=True))


@exactly
def minimum_log_odds(student, teacher, label):
    return log_odds(student, label) + transfer_cost(student, teacher, label)


def sigmoid(x: Decimal) -> Decimal:
    """1 / (1 + e^-x)."""
    with localcontext(CONTEXT):
        return _exp(-_softplus(-x))


@exactly
def blocked_mass(student, teacher, label):
    """The largest mass off the label that is blocked, (1 - tau) min q / r, as a logarithm."""
    log_r, log_q = log_softmax(others(student, label)), log_softmax(others(teacher, label))
    least = min(b - a for a, b in zip(log_r, log_q, strict=True))
    return -_softplus(log_odds(teacher, label)) + least


def _assemble(odds, log_conditional, label):
    rest = [-_softplus(odds) + value for value in log_conditional]
    return [*rest[:label], -_softplus(-odds), *rest[label:]]


@exactly
def label_only_optimum(student, teacher, label):
    odds = max(log_odds(student, label), log_odds(teacher, label))
    return _assemble(odds, log_softmax(others(teacher, label)), label)


@exactly
def safe_path(student, teacher, label, s):
    s = Decimal(s)
    log_r, log_q = log_softmax(others(student, label)), log_softmax(others(teacher, label))
    parts = [_log(1 - s), _log(s)]

    def mix(a, b):
        return _log_sum([parts[0] + a, parts[1] + b])

    rise = mix(Decimal(0), transfer_cost(student, teacher, label))
    mixed = [mix(a, b) for a, b in zip(log_r, log_q, strict=True)]
    return _assemble(log_odds(student, label) + rise, mixed, label)


@exactly
def transfer_frontier(student, teacher, label, budget):
    """V(B): bisection for the multiplier of Eq. A.9; the caps alone where those leave mass over."""
    log_r, log_q = log_softmax(others(student, label)), log_softmax(others(teacher, label))
    cost = max(b - a for a, b in zip(log_r, log_q, strict=True))
    if math.isinf(budget) or Decimal(budget) >= cost:
        return Decimal(0)
    caps = [a + Decimal(budget) for a in log_r]
    wanted = [j for j, b in enumerate(log_q) if b > -INFINITY]

    def solution(log_multiplier):
        return [min(caps[j], log_q[j] - log_multiplier) for j in wanted]

    if _log_sum([caps[j] for j in wanted]) <= 0:
        optimum = [caps[j] for j in wanted]
    else:
        low, high = min(log_q[j] - caps[j] for j in wanted) - 1, Decimal(0)
        for _ in range(220):
            middle = (low + high) / 2
            low, high = (middle, high) if _log_sum(solution(middle)) > 0 else (low, middle)
            if high - low < Decimal(10) ** -45 * max(1, abs(low)):
                break
        optimum = solution(high)
    return _divergence([log_q[j] for j in wanted], optimum)
