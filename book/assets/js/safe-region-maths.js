// The mathematics of the picture "the safe region" (Yuan & Tao, sections 3 and 4, appendices A.3 to A.6).
// Pure functions on arrays of probabilities; the right class stands first, all entries are above 0.
(function (root) {
  "use strict";

  const sum = (values) => values.reduce((total, value) => total + value, 0);
  const maximum = (values) => values.reduce((a, b) => Math.max(a, b));

  // p = (rho, (1 - rho) r): wrong = 1 - rho is summed over the wrong classes, so it stays exact near rho = 1
  function split(p) {
    const others = p.slice(1);
    const wrong = sum(others);
    return { confidence: p[0], wrong, conditional: others.map((value) => value / wrong) };
  }

  // M_j = log(p_y / p_j) for the wrong classes
  const margins = (p) => p.slice(1).map((value) => Math.log(p[0] / value));

  // Eq. 2: no margin smaller than that of p, up to rounding
  function isSafe(candidate, p, tolerance = 0) {
    const before = margins(p);
    return margins(candidate).every((margin, j) => margin >= before[j] - tolerance);
  }

  // Theorem 1: the comparisons p_j <= t_j of the wrong classes; full imitation is blocked when all of them hold
  const comparisons = (p, t) => p.slice(1).map((value, j) => value <= t[j + 1]);
  const isBlocked = (p, t) => comparisons(p, t).every(Boolean);

  // q_j / r_j
  function ratios(p, t) {
    const r = split(p).conditional;
    return split(t).conditional.map((value, j) => value / r[j]);
  }

  // R_inf; it is at least 1, and rounding must not take it below
  const transferRatio = (p, t) => Math.max(1, maximum(ratios(p, t)));

  // D_inf(q || r) in nats
  const transferCost = (p, t) => Math.log(transferRatio(p, t));

  // p with confidence such that logit(a) = logit(rho) + log(factor), and the given conditional distribution
  function withOdds(p, factor, conditional) {
    const { confidence, wrong } = split(p);
    const total = wrong + confidence * factor;
    return [(confidence * factor) / total, ...conditional.map((value) => (wrong / total) * value)];
  }

  // Theorem 2, Eq. 4
  const minimumConfidence = (p, t) => transferEnd(p, t)[0];
  const transferEnd = (p, t) => withOdds(p, transferRatio(p, t), split(t).conditional);

  // Eq. A.3
  function safePath(p, t, s) {
    const r = split(p).conditional;
    const conditional = split(t).conditional.map((value, j) => (1 - s) * r[j] + s * value);
    return withOdds(p, 1 - s + s * transferRatio(p, t), conditional);
  }

  // Eq. A.7: the best imitation when only cross-entropy is protected
  function labelOnlyOptimum(p, t) {
    if (t[0] >= p[0]) return t.slice();
    const { wrong } = split(p);
    return [p[0], ...split(t).conditional.map((value) => wrong * value)];
  }

  const kl = (a, b) => sum(a.map((value, j) => value * Math.log(value / b[j])));

  // label CE, KL(q || r) and KL(t || p)
  function losses(p, t) {
    return {
      label: -Math.log(p[0]),
      conditional: kl(split(t).conditional, split(p).conditional),
      full: kl(t, p),
    };
  }

  // ---- three classes in a triangle ---------------------------------------------------------------

  // Corners of S(p): the right class, the two ends on its sides, and p itself
  function safeCorners(p) {
    const left = p[0] + p[1];
    const right = p[0] + p[2];
    return [[1, 0, 0], [p[0] / left, p[1] / left, 0], p.slice(), [p[0] / right, 0, p[2] / right]];
  }

  // Coordinates inside the corner "right class at least 1 - width", whose own corners are again (1,0,0), ...
  const intoCorner = (p, width) => [1 - (p[1] + p[2]) / width, p[1] / width, p[2] / width];
  const outOfCorner = (b, width) => [1 - width * (b[1] + b[2]), width * b[1], width * b[2]];

  // The part of a polygon with first coordinate at least 0 (Sutherland & Hodgman, one edge)
  function clipBelow(corners) {
    return corners.flatMap((corner, i) => {
      const next = corners[(i + 1) % corners.length];
      const kept = corner[0] >= 0 ? [corner] : [];
      if (corner[0] >= 0 === next[0] >= 0) return kept;
      const share = corner[0] / (corner[0] - next[0]);
      return [...kept, corner.map((value, k) => value + share * (next[k] - value))];
    });
  }

  // The nearest point with all coordinates at least `floor`, after rounding to multiples of `grid`
  function intoTriangle(p, floor, grid) {
    const kept = p.map((value) => Math.max(value - floor, 0));
    const total = sum(kept);
    const inside = kept.map((value) => floor + ((1 - 3 * floor) * value) / total);
    const others = inside.slice(1).map((value) => Math.max(floor, Math.round(value / grid) * grid));
    return [1 - sum(others), ...others];
  }

  // One press of a key: log-odds of the right class, and of class 3 against class 2
  function nudge(p, up, right) {
    const bounded = (value, limit) => Math.min(limit, Math.max(-limit, value));
    const { confidence, wrong } = split(p);
    const odds = bounded(Math.log(confidence / wrong) + up, Math.log(9999));
    const share = bounded(Math.log(p[2] / p[1]) + right, Math.log(999));
    const fallen = 1 / (1 + Math.exp(odds));
    return [1 / (1 + Math.exp(-odds)), fallen / (1 + Math.exp(share)), fallen / (1 + Math.exp(-share))];
  }

  const maths = {
    split, margins, isSafe, comparisons, isBlocked, ratios, transferRatio, transferCost,
    minimumConfidence, transferEnd, safePath, labelOnlyOptimum, kl, losses,
    safeCorners, intoCorner, outOfCorner, clipBelow, intoTriangle, nudge,
  };
  if (typeof module === "object" && module.exports) module.exports = maths;
  else root.safeRegionMaths = maths;
})(globalThis);
