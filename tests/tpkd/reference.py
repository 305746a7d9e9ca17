"""The definitions of the paper in 60-digit decimals, one example at a time: slow and literal.

Logits are lists of floats, which decimals hold exactly. A logit of -inf is a probability of zero.
"""

from __future__ import annotations

import math
from decimal import Context, Decimal, localcontext

CONTEXT = Context(prec=60, Emin=-999_999_999, Emax=999_999_999)
INFINITY = Decimal("Infinity")
_FLAT = Decimal(-100_000_000)  # exp below is zero for every purpose here


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
    """Logarithms of the probabilities; the largest is taken off first, so that none exceeds 0."""
    top = max(values)
    rest = _log_sum([v - top for v in values])
    return [v - top - rest for v in values]


@exactly
def log_odds(logits, label):
    values = others(logits, label)
    top = max(values)
    return Decimal(logits[label]) - top - _log_sum([v - top for v in values])


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
    small = _exp(-abs(x))
    rest = small - small * small / 2 if small < Decimal(10) ** -25 else (1 + small).ln()
    return max(x, Decimal(0)) + rest


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
    return -_softplus(log_odds(teacher, label)) - transfer_cost(teacher, student, label)


@exactly
def blocked_log_odds_limit(student, teacher, label):
    """The log-odds at that mass: log (e^D - 1 + e^D tau / (1 - tau))."""
    ratio = transfer_cost(teacher, student, label)
    if ratio == INFINITY:
        return ratio
    return ratio + _log_sum([_log(1 - _exp(-ratio)), log_odds(teacher, label)])


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


def _optimum(log_r, log_q, budget):
    """Bisection for the multiplier of Eq. A.9; the caps alone where those leave mass over."""
    cost = max(b - a for a, b in zip(log_r, log_q, strict=True))
    if math.isinf(budget) or Decimal(budget) >= cost:
        return log_q
    caps = [a + Decimal(budget) for a in log_r]
    wanted = [j for j, b in enumerate(log_q) if b > -INFINITY]
    unwanted = [j for j, b in enumerate(log_q) if b == -INFINITY]
    taken = _log_sum([caps[j] for j in wanted])
    if unwanted and taken <= 0:
        over = _log(1 - _exp(taken)) - _log_sum([log_r[j] for j in unwanted])
        return [caps[j] if j in wanted else log_r[j] + over for j in range(len(caps))]

    def solution(log_multiplier):
        return [min(cap, b - log_multiplier) for cap, b in zip(caps, log_q, strict=True)]

    low, high = min(log_q[j] - caps[j] for j in wanted) - 1, Decimal(0)
    while high - low > Decimal(10) ** -25 * max(1, abs(low)):
        middle = (low + high) / 2
        low, high = (middle, high) if _log_sum(solution(middle)) > 0 else (low, middle)
    return solution(high)


@exactly
def transfer_frontier(student, teacher, label, budget):
    log_r, log_q = log_softmax(others(student, label)), log_softmax(others(teacher, label))
    return _divergence(log_q, _optimum(log_r, log_q, budget))


@exactly
def blocking_slack(student, teacher, label):
    """The smallest log t_j - log p_j, which is >= 0 where full imitation is blocked."""
    p = log_softmax([Decimal(z) for z in student])
    t = log_softmax([Decimal(w) for w in teacher])
    return min(b - a for j, (a, b) in enumerate(zip(p, t, strict=True)) if j != label)


@exactly
def is_blocked(student, teacher, label):
    return blocking_slack(student, teacher, label) >= -(Decimal(10) ** -40)


@exactly
def frontier_optimum(student, teacher, label, budget):
    """The optimum of `transfer_frontier`, with the excess in proportion to r where q is zero."""
    log_r, log_q = log_softmax(others(student, label)), log_softmax(others(teacher, label))
    optimum = _optimum(log_r, log_q, budget)
    return [*optimum[:label], -INFINITY, *optimum[label:]]


@exactly
def project(vector, label):
    """The projection on the safe cone, by trying every number of raised entries."""
    values = [Decimal(x) for x in vector]
    order = sorted(x for j, x in enumerate(values) if j != label)
    for k in range(len(values)):
        level = (values[label] + sum(order[:k], Decimal(0))) / (k + 1)
        if (k == 0 or order[k - 1] <= level) and (k == len(order) or order[k] >= level):
            break
    return [level if j == label else max(x, level) for j, x in enumerate(values)]


@exactly
def directions(student, teacher, label, weight=0.5):
    """Every field of `lib.tpkd.Directions`, and p - t, by name."""
    p = [_exp(x) for x in log_softmax([Decimal(z) for z in student])]
    t = [_exp(x) for x in log_softmax([Decimal(z) for z in teacher])]
    r, q = ([_exp(x) for x in conditional_log_probs(z, label)] for z in (student, teacher))
    h = [x - (j == label) for j, x in enumerate(p)]
    u = [a - b for a, b in zip(r, q, strict=True)]
    d = project(u, label)
    compensation = -d[label]
    return {
        "label": h,
        "conditional": u,
        "corrected": d,
        "update": [a + Decimal(weight) * b for a, b in zip(h, d, strict=True)],
        "compensation": compensation,
        "clipped_teacher": [min(a, b + compensation) for a, b in zip(q, r, strict=True)],
        "gap": [a - b for a, b in zip(p, t, strict=True)],
    }


@exactly
def safe_imitation(student, teacher, label):
    """The closest safe prediction, by trying every number of kept margins, largest t / p first."""
    log_p = log_softmax([Decimal(z) for z in student])
    log_t = log_softmax([Decimal(z) for z in teacher])
    other = [j for j in range(len(log_p)) if j != label]
    other.sort(key=lambda j: log_p[j] - log_t[j])
    best = Decimal(0)
    for k in range(len(other) + 1):
        kept = [label, *other[:k]]
        best = max(best, _log_sum([log_t[j] for j in kept]) - _log_sum([log_p[j] for j in kept]))
    return [
        p + best if j == label else min(t, p + best)
        for j, (p, t) in enumerate(zip(log_p, log_t, strict=True))
    ]
