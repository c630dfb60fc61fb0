"use strict";
// Noise that is certainly enough, by Rényi divergences of whole orders between which log-moments are convex.
// Poisson samples, Gaussian noise, neighbours by adding or removing one record (Mironov et al. 2019, §3.3);
// converted as in Canonne, Kamath & Steinke 2020, Proposition 12.

const ORDERS = (() => {
  const orders = [1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9];
  for (let order = 2; order < 8; order += 0.25) orders.push(order);
  for (let order = 8; order <= 1024; order = Math.max(order + 1, Math.round(order * 1.06))) orders.push(order);
  return orders;
})();
const LOG_FACTORIALS = [0];
for (let k = 1; k <= 1100; k++) LOG_FACTORIALS.push(LOG_FACTORIALS[k - 1] + Math.log(k));

function logMoment(order, rate, noise) {
  if (order === 1) return 0;
  const half = 1 / (2 * noise * noise);
  if (rate === 1) return order * (order - 1) * half;
  const logIn = Math.log(rate), logOut = Math.log1p(-rate);
  let largest = -Infinity;
  const terms = new Float64Array(order + 1);
  for (let k = 0; k <= order; k++) {
    terms[k] = LOG_FACTORIALS[order] - LOG_FACTORIALS[k] - LOG_FACTORIALS[order - k]
      + k * logIn + (order - k) * logOut + k * (k - 1) * half;
    if (terms[k] > largest) largest = terms[k];
  }
  let sum = 0;
  for (let k = 0; k <= order; k++) sum += Math.exp(terms[k] - largest);
  return Math.max(0, largest + Math.log(sum)) + 1e-14 * order;  // what rounding may have taken away
}

function epsilonOf(rate, noise, steps, delta) {
  const moments = new Map(), logDelta = Math.log(delta);
  const moment = (order) => {
    if (!moments.has(order)) moments.set(order, logMoment(order, rate, noise));
    return moments.get(order);
  };
  let best = Infinity, rises = 0;
  for (const order of ORDERS) {
    const below = Math.floor(order), part = order - below;
    const log = part ? (1 - part) * moment(below) + part * moment(below + 1) : moment(order);
    const value = steps * log / (order - 1) + Math.log1p(-1 / order) - (logDelta + Math.log(order)) / (order - 1);
    rises = value < best ? 0 : rises + 1;
    best = Math.min(best, value);
    if (rises > 4) break;
  }
  return Math.max(0, best);
}

function noiseFor(epsilon, delta, rate, steps, near = 1) {
  let high = near, low = near;
  while (epsilonOf(rate, high, steps, delta) > epsilon) { low = high; high *= 2; }
  while (low === high || epsilonOf(rate, low, steps, delta) <= epsilon) { high = low; low /= 2; if (low < 1e-3) break; }
  while (high / low > 1.0005) {
    const middle = Math.sqrt(low * high);
    if (epsilonOf(rate, middle, steps, delta) <= epsilon) high = middle; else low = middle;
  }
  return high;
}

function stepsOf(epochs, rate) { return Math.max(1, Math.ceil(epochs / rate - 1e-9)); }

function geometric(low, high, count) {
  return Array.from({length: count}, (_, i) => low * Math.pow(high / low, i / (count - 1)));
}

function noiseOverRate(epsilon, delta, epochs, rates) {
  let near = 1;
  return rates.map((rate) => { near = noiseFor(epsilon, delta, rate, stepsOf(epochs, rate), near); return near; });
}

function noiseOverBatch(epsilon, delta, records, steps, sizes) {
  let near = 1;
  return sizes.map((size) => {
    near = noiseFor(epsilon, delta, Math.min(1, size / records), steps, near);
    return near / size;
  });
}

function rootLaw(rates, noise) {
  return Math.exp(noise.reduce((sum, sigma, i) => sum + Math.log(sigma / Math.sqrt(rates[i])), 0) / noise.length);
}

if (typeof module !== "undefined") module.exports = {epsilonOf, noiseFor, noiseOverRate, noiseOverBatch, rootLaw};

// The page: sliders in, two figures and a sentence out.

const WIDTH = 520, HEIGHT = 320, LEFT = 58, RIGHT = 14, TOP = 14, BOTTOM = 44;

function shown(value, digits = 3) {
  if (value >= 1000 && value < 1e7) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(digits)));
}

function axis(values) {
  const low = Math.log10(Math.min(...values)), high = Math.log10(Math.max(...values)), margin = 0.04 * (high - low) + 0.02;
  return {low: low - margin, high: high + margin, at: (v) => (Math.log10(v) - low + margin) / (high - low + 2 * margin)};
}

function ticks(scale) {
  const marks = [], wide = scale.high - scale.low > 2.5;
  for (let power = Math.floor(scale.low); power <= scale.high; power++)
    for (const step of wide ? [1] : [1, 2, 5]) {
      const value = step * Math.pow(10, power);
      if (Math.log10(value) >= scale.low && Math.log10(value) <= scale.high) marks.push(value);
    }
  return marks;
}

function figure(target, lines, points, labels) {
  const x = axis(lines[0].x), y = axis(lines.flatMap((line) => line.y));
  const px = (v) => LEFT + x.at(v) * (WIDTH - LEFT - RIGHT), py = (v) => HEIGHT - BOTTOM - y.at(v) * (HEIGHT - TOP - BOTTOM);
  const parts = [];
  for (const v of ticks(x)) parts.push(`<line class="grid" x1="${px(v)}" x2="${px(v)}" y1="${TOP}" y2="${HEIGHT - BOTTOM}"/>`
    + `<text x="${px(v)}" y="${HEIGHT - BOTTOM + 16}" text-anchor="middle">${shown(v)}</text>`);
  for (const v of ticks(y)) parts.push(`<line class="grid" x1="${LEFT}" x2="${WIDTH - RIGHT}" y1="${py(v)}" y2="${py(v)}"/>`
    + `<text x="${LEFT - 6}" y="${py(v) + 4}" text-anchor="end">${shown(v)}</text>`);
  for (const line of lines) parts.push(`<polyline class="${line.kind}" points="`
    + line.x.map((v, i) => `${px(v).toFixed(1)},${py(line.y[i]).toFixed(1)}`).join(" ") + `"/>`);
  for (const point of points) parts.push(point.y === undefined
    ? `<line class="mark" x1="${px(point.x)}" x2="${px(point.x)}" y1="${TOP}" y2="${HEIGHT - BOTTOM}"/>`
    : `<circle class="here" cx="${px(point.x)}" cy="${py(point.y)}" r="5"/>`);
  parts.push(`<text x="${(LEFT + WIDTH - RIGHT) / 2}" y="${HEIGHT - 8}" text-anchor="middle">${labels.x}</text>`);
  parts.push(`<text transform="translate(13 ${(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" text-anchor="middle">${labels.y}</text>`);
  target.innerHTML = parts.join("");
}

function read(name) { return Math.pow(10, Number(document.getElementById(name).value)); }

function settings() {
  const records = Math.round(read("records")), range = document.getElementById("batch");
  range.max = Math.log10(records);
  const batch = Math.max(1, Math.min(records, Math.round(read("batch"))));
  return {epsilon: Number(read("epsilon").toPrecision(3)), delta: Number(read("delta").toPrecision(2)),
    epochs: Number(read("epochs").toPrecision(3)), records, batch};
}

function draw() {
  const {epsilon, delta, epochs, records, batch} = settings();
  const rate = batch / records, steps = stepsOf(epochs, rate), noise = noiseFor(epsilon, delta, rate, steps);
  const say = (name, text) => { document.getElementById(name).textContent = text; };
  for (const [name, value] of Object.entries({epsilon, delta, epochs, records, batch}))
    say(name + "-value", name === "delta" ? value.toExponential() : shown(value));

  const rates = geometric(Math.max(1e-3, 1 / records), 1, 25), contour = noiseOverRate(epsilon, delta, epochs, rates);
  const law = rootLaw(rates, contour);
  figure(document.getElementById("contour"),
    [{kind: "exact", x: rates, y: contour}, {kind: "law", x: rates, y: rates.map((q) => law * Math.sqrt(q))}],
    rate >= rates[0] ? [{x: rate, y: noise}] : [], {x: "sampling rate q", y: "noise multiplier σ"});
  say("contour-text", `σ over q for ε = ${shown(epsilon)} after ${shown(epochs)} epochs; dashed, σ = ${shown(law)}·√q.`);

  const sizes = geometric(Math.max(1, records * 1e-5), records, 25);
  const means = noiseOverBatch(epsilon, delta, records, steps, sizes);
  const point = records * Math.min(1, Math.sqrt(epsilon / steps));
  figure(document.getElementById("batches"), [{kind: "exact", x: sizes, y: means}],
    [...(point >= sizes[0] ? [{x: point}] : []), ...(batch >= sizes[0] ? [{x: batch, y: noise / batch}] : [])],
    {x: "batch size B", y: "noise in the mean gradient, σC/B, for C = 1"});
  say("batches-text", `σ/B over B for ${shown(steps)} steps; the dotted line, n·√(ε/T) = ${shown(point)}, is where `
    + "larger batches begin to bring less.");

  say("sentence", `Batches of ${shown(batch)} of ${shown(records)} records (q = ${shown(rate)}), ${shown(steps)} steps: `
    + `a noise multiplier of ${noise.toPrecision(4)} is enough for (${shown(epsilon)}, ${delta.toExponential()}).`);
  say("command", `dpfy plan --records ${records} --batch-size ${batch} --epochs ${epochs} --epsilon ${epsilon} `
    + `--delta ${delta.toExponential()}`);
}

if (typeof document !== "undefined") {
  for (const range of document.querySelectorAll("input")) range.addEventListener("input", draw);
  draw();
}
