// What the picture "the safe region" shows: from a state to the attributes and texts of its parts. Pure functions.
// A state is {student, teacher, s} with probabilities of three classes, and optionally the width of the corner.
(function (root) {
  "use strict";

  const maths = typeof require === "function" ? require("./safe-region-maths.js") : root.safeRegionMaths;

  const SETTINGS = {
    "figure-1": { student: [0.9, 0.07, 0.03], teacher: [0.4, 0.25, 0.35] },
    "not-blocked": { student: [0.5, 0.35, 0.15], teacher: [0.6, 0.1, 0.3] },
    "same-ratio": { student: [0.8, 0.12, 0.08], teacher: [0.5, 0.3, 0.2] },
    sure: { student: [0.999, 0.0007, 0.0003], teacher: [0.4, 0.25, 0.35] },
  };
  const WIDTHS = [1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0005, 0.0002];
  const TRIANGLE = { left: 44, right: 344, top: 30, bottom: 289.8 };
  const PLOT = { left: 40, right: 330, top: 14, bottom: 176, samples: 50, most: 5 };
  const NOTHING = 1e-12;   // a loss or a price below it is zero up to rounding

  const start = () => ({ ...SETTINGS["figure-1"], s: 0.5 });

  // ---- numbers as texts ----------------------------------------------------------------------------

  function probability(value) {
    const small = Math.max(Math.min(value, 1 - value), 1e-9);
    return value.toFixed(Math.min(6, Math.max(3, 1 - Math.floor(Math.log10(small * 1.000001)))));
  }
  const triple = (p) => `(${p.map(probability).join(", ")})`;
  const signed = (value) => `${value < -5e-4 ? "\u2212" : "+"}${Math.abs(value).toFixed(3)}`;
  const loss = (value) => Math.max(value, 0).toFixed(value > NOTHING && value < 0.0095 ? 5 : 3);
  const plain = (value) => `${value < -5e-4 ? "\u2212" : ""}${Math.abs(value).toFixed(3)}`;

  // ---- triangle ------------------------------------------------------------------------------------

  const cornerWidth = (p) => WIDTHS.findLast((width) => p[1] + p[2] <= 0.65 * width) ?? 1;

  function toPoint([a, b, c]) {
    const { left, right, top, bottom } = TRIANGLE;
    return [left * b + right * c + ((left + right) / 2) * a, top * a + bottom * (b + c)];
  }
  function fromPoint([x, y]) {
    const { left, right, top, bottom } = TRIANGLE;
    const a = (bottom - y) / (bottom - top);
    const c = (x - left) / (right - left) - a / 2;
    return [a, 1 - a - c, c];
  }

  const written = (points) => points.map((point) => point.map((v) => v.toFixed(2)).join(",")).join(" ");
  const moved = (point) => ({ transform: `translate(${point.map((v) => v.toFixed(2)).join(" ")})` });

  function marker(position, visible = true) {
    return { ...moved(toPoint(position)), visibility: visible ? "visible" : "hidden" };
  }

  function lineAlong(q, place) {
    const bottom = [0, ...q];
    const [[x1, y1], [x2, y2]] = [[1, 0, 0], place(bottom)].map(toPoint);
    return { x1: x1.toFixed(2), y1: y1.toFixed(2), x2: x2.toFixed(2), y2: y2.toFixed(2) };
  }

  // The parts that both triangles share; `place` turns a prediction into coordinates of that triangle
  function triangleParts(name, { student, teacher }, place, inside) {
    const q = maths.split(teacher).conditional;
    const path = Array.from({ length: 41 }, (_, i) => maths.safePath(student, teacher, i / 40));
    const safe = maths.clipBelow(maths.safeCorners(student).map(place));
    return {
      [`${name}.safe`]: { points: written(safe.map(toPoint)) },
      [`${name}.ray`]: lineAlong(q, name === "whole" ? place : () => [0, ...q]),
      [`${name}.path`]: { points: written(path.map((p) => toPoint(place(p)))) },
      [`${name}.student`]: marker(place(student), inside(student)),
      [`${name}.teacher`]: marker(place(teacher), inside(teacher)),
    };
  }

  // The points that only the magnified triangle shows
  function cornerPoints({ student, teacher, s }, place, inside) {
    const end = maths.transferEnd(student, teacher);
    const labelOnly = maths.labelOnlyOptimum(student, teacher);
    return {
      "corner.end": marker(place(end), inside(end)),
      "corner.label-only": marker(place(labelOnly), inside(labelOnly)),
      "corner.now": marker(place(maths.safePath(student, teacher, s))),
    };
  }

  // Names of the points: the student's on one side, the others on the side of the teacher's ray
  function pointNames({ student, teacher }) {
    const [r, q] = [student, teacher].map((p) => maths.split(p).conditional[1]);
    const side = q >= r ? 1 : -1;
    const beside = (direction) => ({ x: String(16 * direction), "text-anchor": direction > 0 ? "start" : "end" });
    return {
      "whole.student-name": beside(-side),
      "whole.teacher-name": beside(side),
      "corner.student-name": beside(-side),
      "corner.end-name": beside(side),
      "corner.label-only-name": beside(side),
    };
  }

  function cornerLevels(width) {
    const parts = {};
    for (const quarter of [1, 2, 3, 4]) {
      const level = 1 - (width * quarter) / 4;
      parts[`corner.level-${quarter}`] = { text: String(Number(level.toFixed(6))) };
    }
    return parts;
  }

  function triangles(state) {
    const width = state.corner ?? cornerWidth(state.student);
    const into = (p) => maths.intoCorner(p, width);
    const inside = (p) => into(p)[0] >= -1e-9;
    const [x] = toPoint([0, ...maths.split(state.teacher).conditional]);
    const level = String(Number((1 - width).toFixed(6)));
    return {
      ...triangleParts("whole", state, (p) => p, () => true),
      ...triangleParts("corner", state, into, inside),
      ...cornerPoints(state, into, inside),
      ...pointNames(state),
      ...cornerLevels(width),
      "whole.corner": {
        points: written([[1, 0, 0], [1 - width, width, 0], [1 - width, 0, width]].map(toPoint)),
        visibility: width === 1 ? "hidden" : "visible",
      },
      "corner.below": { x: x.toFixed(2), visibility: inside(state.teacher) ? "hidden" : "visible" },
      "corner.title": {
        text: width === 1 ? "The same triangle" : `Its top, from ${level} up, \u00d7\u202f${Math.round(1 / width)}`,
      },
    };
  }

  // ---- losses along the path -----------------------------------------------------------------------

  function relativeLosses({ student, teacher }, s) {
    const first = maths.losses(student, teacher);
    const now = maths.losses(maths.safePath(student, teacher, s), teacher);
    const ratio = (name) => (first[name] > NOTHING ? Math.max(now[name], 0) / first[name] : null);
    return Object.fromEntries(Object.keys(first).map((name) => [name, { first: first[name], now: now[name], ratio: ratio(name) }]));
  }

  function plot(state) {
    const { left, right, top, bottom, samples, most } = PLOT;
    const grid = Array.from({ length: samples + 1 }, (_, i) => i / samples);
    const curves = grid.map((s) => relativeLosses(state, s));
    const highest = Math.max(1, ...curves.map((point) => point.full.ratio ?? 0));
    const limit = [1.25, 1.5, 2, 3].find((value) => highest <= 0.98 * value) ?? most;
    const x = (s) => left + (right - left) * s;
    const y = (ratio) => bottom - ((bottom - top) * Math.min(ratio, limit * 1.2)) / limit;
    const parts = {
      "plot.now": { x1: x(state.s).toFixed(2), x2: x(state.s).toFixed(2) },
      "plot.one": { y1: y(1).toFixed(2), y2: y(1).toFixed(2) },
      "plot.one-name": { y: (y(1) + 4).toFixed(2) },
      "plot.top-name": { text: String(limit) },
    };
    const current = relativeLosses(state, state.s);
    for (const name of ["label", "conditional", "full"]) {
      const drawn = current[name].ratio !== null;
      const points = drawn ? grid.map((s, i) => [x(s), y(curves[i][name].ratio)]) : [];
      const shown = drawn && current[name].ratio <= limit;
      parts[`plot.${name}`] = { points: written(points) };
      parts[`plot.${name}-now`] = {
        ...moved([x(state.s), shown ? y(current[name].ratio) : bottom]), visibility: shown ? "visible" : "hidden",
      };
      parts[`loss.${name}-first`] = { text: loss(current[name].first) };
      parts[`loss.${name}-now`] = { text: loss(current[name].now) };
      parts[`loss.${name}-ratio`] = { text: drawn ? `${current[name].ratio.toFixed(3)}` : "is 0" };
    }
    return parts;
  }

  // ---- words and table -----------------------------------------------------------------------------

  const andList = (classes) => `class${classes.length > 1 ? "es" : ""} ${classes.join(" and ")}`;
  const failing = (flags) => flags.flatMap((holds, j) => (holds ? [] : [j + 2]));

  function imitation({ student, teacher }) {
    const holds = maths.comparisons(student, teacher);
    const parts = {};
    holds.forEach((held, j) => {
      parts[`words.p${j + 2}`] = { text: probability(student[j + 1]) };
      parts[`words.sign${j + 2}`] = { text: held ? "\u2264" : ">" };
      parts[`words.t${j + 2}`] = { text: probability(teacher[j + 1]) };
      parts[`words.holds${j + 2}`] = { text: held ? "holds" : "fails" };
    });
    const failed = failing(holds);
    parts["words.verdict"] = { text: failed.length ? "Full imitation is not blocked." : "Full imitation is blocked." };
    parts["words.reason"] = {
      text: failed.length
        ? `The comparison fails for ${andList(failed)}: the student gives more there than the teacher. A small step down there is safe and brings the student closer.`
        : "Both comparisons hold, so no safe prediction is closer to the teacher in full KL than the student\u2019s own.",
    };
    return parts;
  }

  function price({ student, teacher }) {
    const cost = maths.transferCost(student, teacher);
    const ratios = maths.ratios(student, teacher);
    const setter = ratios[0] > ratios[1] ? 2 : 3;
    const [from, to] = [student[0], maths.minimumConfidence(student, teacher)].map(probability);
    return {
      "words.cost": { text: cost.toFixed(3) },
      "words.least": { text: to },
      "words.price": {
        text: cost < NOTHING
          ? "The student has the teacher\u2019s ratio already (r = q): nothing to learn, nothing to pay, and the path is one point."
          : `Class ${setter} sets the price. To take over the teacher\u2019s ratio safely, class 1 must rise from ${from} to at least ${to}.`,
      },
    };
  }

  function labelOnly({ student, teacher }) {
    const optimum = maths.labelOnlyOptimum(student, teacher);
    const before = maths.margins(student);
    const change = maths.margins(optimum).map((margin, j) => margin - before[j]);
    const lost = failing(change.map((value) => value >= -1e-9));
    const amounts = lost.map((j) => Math.abs(change[j - 2]).toFixed(3)).join(" and ");
    return {
      "words.label-only": { text: triple(optimum) },
      "words.label-only-safe": {
        text: lost.length ? `Not safe: the margin of ${andList(lost)} falls by ${amounts}.` : "Safe here: no margin falls.",
      },
    };
  }

  function table({ student, teacher, s }) {
    const now = maths.safePath(student, teacher, s);
    const rows = { p: student, t: teacher, now };
    const conditional = Object.fromEntries(Object.entries(rows).map(([name, p]) => [name, maths.split(p).conditional]));
    const first = maths.margins(student);
    const margins = maths.margins(now);
    const parts = { "table.s": { text: s.toFixed(2) }, "table.now1": { text: probability(now[0]) } };
    parts["table.p1"] = { text: probability(student[0]) };
    parts["table.t1"] = { text: probability(teacher[0]) };
    [0, 1].forEach((j) => {
      for (const [name, p] of Object.entries(rows)) parts[`table.${name}${j + 2}`] = { text: probability(p[j + 1]) };
      parts[`table.r${j + 2}`] = { text: probability(conditional.p[j]) };
      parts[`table.q${j + 2}`] = { text: probability(conditional.t[j]) };
      parts[`table.rs${j + 2}`] = { text: probability(conditional.now[j]) };
      parts[`table.margin${j + 2}`] = { text: plain(first[j]) };
      parts[`table.margins${j + 2}`] = { text: plain(margins[j]) };
      parts[`table.gain${j + 2}`] = { text: signed(margins[j] - first[j]) };
    });
    return parts;
  }

  const picture = (state) => ({
    ...triangles(state), ...plot(state), ...imitation(state), ...price(state), ...labelOnly(state), ...table(state),
  });

  // What a handle says, and one sentence about the whole
  const spoken = (p) => p.map((value, j) => `class ${j + 1}: ${probability(value)}`).join(", ");
  function summary(state) {
    const parts = picture(state);
    return `${parts["words.verdict"].text} Price ${parts["words.cost"].text} nats, least confidence ${parts["words.least"].text}.`;
  }

  const api = { SETTINGS, start, picture, summary, spoken, fromPoint, toPoint, cornerWidth, probability };
  if (typeof module === "object" && module.exports) module.exports = api;
  else root.safeRegionPicture = api;
})(globalThis);
