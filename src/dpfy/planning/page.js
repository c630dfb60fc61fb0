"use strict";
// Sliders in, two figures and a sentence out. TABLE holds the accountant's own noise multipliers at
// every combination of the sliders' stops (see table.py): nothing is accounted here.

function noiseAt(epsilon, delta, rate, epochs) {
  const place = (epsilon * TABLE.deltas.length + delta) * TABLE.rates.length + rate;
  return TABLE.noise[place * TABLE.epochs.length + epochs];
}

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

function read(name) { return Number(document.getElementById(name).value); }

// The positions of the sliders; a batch has at least one record.
function positions() {
  const records = Math.round(Math.pow(10, read("records"))), range = document.getElementById("batch");
  range.min = TABLE.rates.findIndex((rate) => rate * records >= 1);
  return {epsilon: read("epsilon"), delta: read("delta"), epochs: read("epochs"), rate: read("batch"), records};
}

function draw() {
  const at = positions(), records = at.records;
  const epsilon = TABLE.epsilons[at.epsilon], delta = TABLE.deltas[at.delta], epochs = TABLE.epochs[at.epochs];
  const rate = TABLE.rates[at.rate], batch = Math.floor(rate * records), steps = Math.max(1, Math.ceil(epochs / rate));
  const noise = noiseAt(at.epsilon, at.delta, at.rate, at.epochs);
  const say = (name, text) => { document.getElementById(name).textContent = text; };
  for (const [name, value] of Object.entries({epsilon, delta, epochs, records, batch}))
    say(name + "-value", name === "delta" ? value.toExponential() : shown(value));

  const contour = TABLE.rates.map((_, place) => noiseAt(at.epsilon, at.delta, place, at.epochs));
  const law = Math.exp(contour.reduce((sum, sigma, i) => sum + Math.log(sigma / Math.sqrt(TABLE.rates[i])), 0) / contour.length);
  figure(document.getElementById("contour"),
    [{kind: "exact", x: TABLE.rates, y: contour}, {kind: "law", x: TABLE.rates, y: TABLE.rates.map((q) => law * Math.sqrt(q))}],
    [{x: rate, y: noise}], {x: "sampling rate q", y: "noise multiplier σ"});
  say("contour-text", `σ over q for ε = ${shown(epsilon)} after ${shown(epochs)} epochs; dashed, σ = ${shown(law)}·√q.`);

  // Rates and epochs double from stop to stop: as many stops up in both, and the number of steps is the same.
  const same = TABLE.rates.map((q, place) => ({q, place, epochs: at.epochs + place - at.rate}))
    .filter((each) => each.epochs >= 0 && each.epochs < TABLE.epochs.length);
  const sizes = same.map((each) => each.q * records);
  const means = same.map((each) => noiseAt(at.epsilon, at.delta, each.place, each.epochs) / (each.q * records));
  const point = records * Math.min(1, Math.sqrt(epsilon / steps));
  figure(document.getElementById("batches"), [{kind: "exact", x: sizes, y: means}],
    [...(point >= sizes[0] && point <= sizes[sizes.length - 1] ? [{x: point}] : []), {x: rate * records, y: noise / (rate * records)}],
    {x: "batch size B", y: "noise in the mean gradient, σC/B, for C = 1"});
  say("batches-text", `σ/B over B for ${shown(steps)} steps; the dotted line, n·√(ε/T) = ${shown(point)}, is where `
    + "larger batches begin to bring less.");

  say("sentence", `Batches of ${shown(batch)} of ${shown(records)} records (q = ${shown(batch / records)}), ${shown(steps)} steps: `
    + `a noise multiplier of ${noise} is enough for (${shown(epsilon)}, ${delta.toExponential()}).`);
  say("command", `dpfy plan --records ${records} --batch-size ${batch} --steps ${steps} --epsilon ${epsilon} `
    + `--delta ${delta.toExponential()}`);
}

for (const range of document.querySelectorAll("input")) range.addEventListener("input", draw);
draw();
