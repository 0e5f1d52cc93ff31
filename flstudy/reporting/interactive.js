"use strict";
// The interactive page: charts of the values in #study, drawn as SVG. Every text becomes a text node, never HTML.
const study = JSON.parse(document.getElementById("study").textContent);
const hidden = new Set(); // places of methods that the reader has hidden
const drawings = []; // one function per chart or table, called after every choice
const SIZE = { width: 1160, height: 430, left: 62, right: 16, top: 14, bottom: 44 };
const NEAR = 26; // pixels of the drawing within which a point is meant
const FEW = 300; // rows of trials that are shown at first
const FEW_EVENTS = 6; // that are told above the curves

const place = id => document.getElementById(id);
const shown = method => !hidden.has(method);
const methodName = method => study.methods[method].name;
const inkOf = method => study.methods[method].colour;

function make(tag, attributes = {}, ...children) {
  const drawn = ["svg", "g", "line", "path", "circle", "rect", "text"].includes(tag);
  const node = drawn ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value);
  }
  node.append(...children.map(child => (child instanceof Node ? child : document.createTextNode(String(child)))));
  return node;
}

function number(value, digits = 4) {
  if (typeof value !== "number") return value === null || value === undefined ? "–" : String(value);
  const size = Math.abs(value);
  if (value !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
  return String(Number(value.toPrecision(digits)));
}

// Scales: a value's place on the drawing, and the values at which marks stand.

function ticksBetween(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(factor => factor * power).find(one => one >= rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step / 1e6; at += step) found.push(Number(at.toPrecision(12)));
  return found;
}

function linearScale(low, high, from, to, count = 8) {
  if (!(high > low)) [low, high] = [low - 0.5, low + 0.5];
  const at = value => from + ((value - low) / (high - low)) * (to - from);
  return { at, ticks: ticksBetween(low, high, count).map(value => [value, number(value)]) };
}

function logScale(low, high, from, to) {
  const inner = linearScale(Math.log10(low), Math.log10(high), from, to);
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high) + 1e-9; power++) {
    if (power >= Math.log10(low) - 1e-9) ticks.push([10 ** power, number(10 ** power)]);
  }
  return { at: value => inner.at(Math.log10(value)), ticks: ticks.length > 1 ? ticks : [[low, number(low)], [high, number(high)]] };
}

function choiceScale(options, from, to) {
  const wide = (to - from) / options.length;
  const at = value => from + (options.findIndex(one => one === value) + 0.5) * wide;
  return { at, ticks: options.map(one => [one, String(one)]) };
}

function scaleOf(domain, from, to) {
  if (domain.options) return choiceScale(domain.options, from, to);
  return (domain.log ? logScale : linearScale)(domain.low, domain.high, from, to);
}

function extent(values) {
  const known = values.filter(Number.isFinite);
  return known.length ? [known.reduce((a, b) => Math.min(a, b)), known.reduce((a, b) => Math.max(a, b))] : [0, 1];
}

function frame(x, y, xlabel, ylabel) {
  const { width, height, left, right, top, bottom } = SIZE, floor = height - bottom;
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${ylabel} by ${xlabel}` });
  for (const [value, text] of y.ticks) {
    svg.append(make("line", { class: "grid", x1: left, x2: width - right, y1: y.at(value), y2: y.at(value) }));
    svg.append(make("text", { x: left - 8, y: y.at(value) + 4, "text-anchor": "end" }, text));
  }
  for (const [value, text] of x.ticks) {
    svg.append(make("line", { class: "grid", x1: x.at(value), x2: x.at(value), y1: top, y2: floor }));
    svg.append(make("text", { x: x.at(value), y: floor + 17, "text-anchor": "middle" }, text));
  }
  svg.append(make("line", { class: "axis", x1: left, x2: width - right, y1: floor, y2: floor }));
  svg.append(make("line", { class: "axis", x1: left, x2: left, y1: top, y2: floor }));
  svg.append(make("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, xlabel));
  const middle = (top + floor) / 2;
  svg.append(make("text", { x: 14, y: middle, "text-anchor": "middle", transform: `rotate(-90 14 ${middle})` }, ylabel));
  return svg;
}

// Where the pointer is, in the units of the drawing.
function pointer(svg, event) {
  const box = svg.getBoundingClientRect(), wide = svg.viewBox.baseVal;
  return [((event.clientX - box.left) / box.width) * wide.width, ((event.clientY - box.top) / box.height) * wide.height];
}

function showTip(event, heading, rows) {
  const tip = place("tip");
  tip.replaceChildren(make("b", {}, heading), ...rows.map(([ink, name, value, near]) => {
    const row = make("div", { class: near ? "row near" : "row" });
    if (ink) row.append(make("i", { style: `background: ${ink}` }));
    row.append(make("span", {}, name), make("span", {}, value));
    return row;
  }));
  tip.style.display = "block";
  const wide = tip.offsetWidth, high = tip.offsetHeight;
  tip.style.left = `${event.clientX + 18 + wide > innerWidth ? Math.max(4, event.clientX - wide - 18) : event.clientX + 18}px`;
  tip.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - high - 4))}px`;
}

const hideTip = () => { place("tip").style.display = "none"; };

function drop(label, options, onchange) {
  const select = make("select", { onchange: () => onchange(Number(select.value)) });
  options.forEach((text, index) => select.append(make("option", { value: index }, text)));
  return make("label", {}, `${label} `, select);
}

function redraw() {
  hideTip();
  drawings.forEach(draw => draw());
  study.methods.forEach((_, method) => place("legend").children[method].setAttribute("aria-pressed", shown(method)));
}

// The legend: a click hides or shows a method, a double click shows it alone.
study.methods.forEach((method, at) => {
  const line = { x1: 0, x2: 34, y1: 6, y2: 6, stroke: method.colour, "stroke-width": 3, "stroke-dasharray": method.dashes };
  const swatch = make("svg", { width: 34, height: 12, "aria-hidden": "true" }, make("line", line));
  const toggle = () => { if (!hidden.delete(at)) hidden.add(at); redraw(); };
  const alone = () => { study.methods.forEach((_, other) => (other === at ? hidden.delete(other) : hidden.add(other))); redraw(); };
  place("legend").append(make("button", { type: "button", onclick: toggle, ondblclick: alone }, swatch, method.name));
});
place("legend").append(make("button", { type: "button", onclick: () => { hidden.clear(); redraw(); } }, "Show all"));

// Curves, with the values under the pointer.
let chart = 0, bands = true;
if (study.charts.length) {
  place("curve-choice").append(drop("Show", study.charts.map(one => one.name), value => { chart = value; redraw(); }));
  const box = make("input", { type: "checkbox", checked: "", onchange: () => { bands = box.checked; redraw(); } });
  place("curve-choice").append(make("label", {}, box, " ± one standard deviation over seeds"));
  if (study.events.length) {
    const told = study.events.slice(0, FEW_EVENTS).map(event => `round ${event.round}: ${event.label}`);
    const more = study.events.length - told.length;
    place("curve-choice").append(make("span", { class: "lead" }, `Dashed lines: ${told.join("; ")}${more > 0 ? `; ${more} more` : ""}`));
  }
}

function pathOf(points, step) {
  let text = "", pen = "M";
  for (const [x, y] of points) {
    if (!Number.isFinite(y)) { pen = "M"; continue; }
    text += pen === "M" || !step ? `${pen}${x.toFixed(1)} ${y.toFixed(1)}` : `H${x.toFixed(1)}V${y.toFixed(1)}`;
    pen = "L";
  }
  return text;
}

function drawCurves() {
  const own = study.charts[chart];
  if (!own) return;
  const lines = own.lines.filter(line => shown(line.method));
  const spread = line => line.deviation && bands;
  const ends = lines.flatMap(line => line.y.flatMap((y, i) => (y === null ? [] : spread(line) ? [y - line.deviation[i], y + line.deviation[i]] : [y])));
  const [left, right] = extent(lines.flatMap(line => line.x)), [low, high] = extent(ends), room = (high - low) * 0.03;
  const x = linearScale(left, right, SIZE.left, SIZE.width - SIZE.right, 12);
  const y = linearScale(low - room, high + room, SIZE.height - SIZE.bottom, SIZE.top);
  const svg = frame(x, y, own.xlabel, own.name);
  if (own.events) {
    for (const event of study.events) {
      svg.append(make("line", { class: "event", x1: x.at(event.round), x2: x.at(event.round), y1: SIZE.top, y2: SIZE.height - SIZE.bottom }));
    }
  }
  const drawn = lines.map(line => {
    const ink = inkOf(line.method), group = make("g", { "data-method": methodName(line.method) });
    if (spread(line)) {
      const upper = line.x.map((at, i) => [x.at(at), line.y[i] === null ? NaN : y.at(line.y[i] + line.deviation[i])]);
      const lower = line.x.map((at, i) => [x.at(at), line.y[i] === null ? NaN : y.at(line.y[i] - line.deviation[i])]);
      const around = [...upper, ...lower.reverse()].filter(([, height]) => Number.isFinite(height));
      group.append(make("path", { d: `${pathOf(around)}Z`, fill: ink, opacity: 0.13 }));
    }
    const points = line.x.map((at, i) => [x.at(at), line.y[i] === null ? NaN : y.at(line.y[i])]);
    const look = { fill: "none", stroke: ink, "stroke-width": 2, "stroke-dasharray": study.methods[line.method].dashes };
    group.append(make("path", { d: pathOf(points, own.step), ...look }));
    svg.append(group);
    return { line, group, points };
  });
  const cursor = make("line", { class: "cursor", y1: SIZE.top, y2: SIZE.height - SIZE.bottom, visibility: "hidden" });
  svg.append(cursor);
  svg.addEventListener("pointermove", event => {
    const [px, py] = pointer(svg, event);
    const rows = drawn.map(one => {
      let at = 0; // the line's point at, or nearest to, the pointer
      one.points.forEach(([px2], i) => { if (Math.abs(px2 - px) < Math.abs(one.points[at][0] - px)) at = i; });
      return { ...one, at, off: Math.abs(one.points[at][1] - py) };
    }).filter(one => Math.abs(one.points[one.at][0] - px) < 60);
    if (!rows.length || px < SIZE.left) return leave();
    const near = rows.reduce((a, b) => (b.off < a.off || Number.isNaN(a.off) ? b : a));
    const where = near.line.x[near.at];
    cursor.setAttribute("x1", x.at(where)); cursor.setAttribute("x2", x.at(where)); cursor.setAttribute("visibility", "visible");
    drawn.forEach(one => one.group.classList.toggle("faded", one.group !== near.group));
    rows.sort((a, b) => (b.line.y[b.at] ?? -Infinity) - (a.line.y[a.at] ?? -Infinity));
    const lived = own.events ? study.events.filter(one => one.round <= where).pop() : null;
    const since = lived ? `, ${lived.label} at ${lived.round}` : "";
    showTip(event, `${own.xlabel} ${number(where)}${since}`, rows.map(({ line, at }) => {
      const apart = line.deviation ? ` ± ${number(line.deviation[at], 2)}` : "";
      const elsewhere = line.x[at] === where ? "" : ` (at ${number(line.x[at])})`;
      return [inkOf(line.method), methodName(line.method), number(line.y[at]) + apart + elsewhere, line === near.line];
    }));
  });
  const leave = () => { hideTip(); cursor.setAttribute("visibility", "hidden"); drawn.forEach(one => one.group.classList.remove("faded")); };
  svg.addEventListener("pointerleave", leave);
  place("curves").replaceChildren(svg);
}

// Trials: a row of study.trials is [number, method, status, rounds, value, whole, values of the keys].
const trials = study.trials.map(([id, method, status, rounds, value, whole, given]) => ({ id, method, status, rounds, value, whole, given }));
const parameter = (trial, key) => trial.given[key];
let across = -1, followed = 0; // the key on the scatter's axis, -1 for the trial's number; the method of the parallel axes

function tipOfTrial(event, trial) {
  const rows = study.keys.map((key, at) => ["", key.name, trial.given[at]]).filter(([, , value]) => value !== null && value !== undefined);
  const told = [["", study.objective, number(trial.value)], ["", "status", `${trial.status}, ${trial.rounds} rounds`]];
  showTip(event, `Trial ${trial.id}, ${methodName(trial.method)}`, [...told, ...rows.map(([ink, key, value]) => [ink, key, number(value)])]);
}

function heightScale(some, from, to) {
  const whole = some.filter(trial => trial.whole).map(trial => trial.value);
  const [low, high] = extent(whole.length ? whole : some.map(trial => trial.value)), room = (high - low) * 0.05;
  return { low: low - room, high: high + room, scale: linearScale(low - room, high + room, from, to) };
}

function drawScatter() {
  const some = trials.filter(trial => shown(trial.method) && Number.isFinite(trial.value) && (across < 0 || parameter(trial, across) != null));
  const { low, high, scale: y } = heightScale(some, SIZE.height - SIZE.bottom, SIZE.top);
  const seen = some.filter(trial => trial.value >= low && trial.value <= high); // who stopped early may lie far outside
  const ends = [SIZE.left + 12, SIZE.width - SIZE.right - 12];
  const x = across < 0 ? linearScale(...extent(trials.map(trial => trial.id)), ...ends) : scaleOf(study.keys[across], ...ends);
  const svg = frame(x, y, across < 0 ? "Trial" : study.keys[across].name, study.objective);
  const points = seen.map(trial => {
    const at = [x.at(across < 0 ? trial.id : parameter(trial, across)), y.at(trial.value)];
    const look = trial.whole ? { fill: inkOf(trial.method), "fill-opacity": 0.75 } : { fill: "none", stroke: inkOf(trial.method) };
    const dot = make("circle", { cx: at[0], cy: at[1], r: 4.5, "data-trial": trial.id, "data-method": methodName(trial.method), ...look });
    svg.append(dot);
    return { trial, at, dot };
  }).filter(({ at }) => at.every(Number.isFinite));
  svg.addEventListener("pointermove", event => {
    const [px, py] = pointer(svg, event);
    let best = null, least = NEAR;
    for (const one of points) {
      one.dot.setAttribute("r", 4.5);
      const apart = Math.hypot(one.at[0] - px, one.at[1] - py);
      if (apart < least) [best, least] = [one, apart];
    }
    if (!best) return hideTip();
    best.dot.setAttribute("r", 7.5);
    tipOfTrial(event, best.trial);
  });
  svg.addEventListener("pointerleave", hideTip);
  place("scatter").replaceChildren(svg);
}

function keysOf(some) {
  return study.keys.map((_, at) => at).filter(at => new Set(some.map(trial => String(trial.given[at] ?? ""))).size > 1);
}

function drawParallel() {
  const some = trials.filter(trial => trial.method === followed && trial.whole);
  const keys = keysOf(some).filter(at => some.every(trial => trial.given[at] != null));
  if (some.length < 2 || !keys.length) {
    place("parallel").replaceChildren(make("p", { class: "lead" }, "Too few trials that did all rounds."));
    return;
  }
  const { width, height, top, bottom } = SIZE, floor = height - bottom - 10;
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Parallel coordinates" });
  const at = column => 70 + (column / keys.length) * (width - 190);
  const goal = heightScale(some, floor, top + 10).scale;
  const scales = [...keys.map(key => scaleOf(study.keys[key], floor, top + 10)), goal];
  const lines = some.map(trial => {
    const heights = [...keys.map((key, column) => scales[column].at(trial.given[key])), goal.at(trial.value)];
    const points = heights.map((high, column) => [at(column), high]);
    const path = make("path", { d: pathOf(points), fill: "none", stroke: inkOf(followed), "data-trial": trial.id });
    return { trial, points, path };
  }).filter(({ points }) => points.every(([, high]) => Number.isFinite(high)));
  const sign = study.higher ? 1 : -1;
  lines.sort((a, b) => sign * (a.trial.value - b.trial.value)); // the best on top
  const look = (line, index) => {
    line.path.setAttribute("stroke-width", index === lines.length - 1 ? 3.5 : 1.5);
    line.path.setAttribute("opacity", 0.15 + 0.75 * (index / Math.max(lines.length - 1, 1)) ** 2);
  };
  lines.forEach((line, index) => { look(line, index); svg.append(line.path); });
  scales.forEach((scale, column) => {
    svg.append(make("line", { class: "axis", x1: at(column), x2: at(column), y1: top + 10, y2: floor }));
    for (const [value, text] of scale.ticks) svg.append(make("text", { x: at(column) + 6, y: scale.at(value) + 4 }, text));
    const name = column < keys.length ? study.keys[keys[column]].name : study.objective;
    svg.append(make("text", { x: at(column), y: height - 16, "text-anchor": "middle" }, name));
  });
  svg.addEventListener("pointermove", event => {
    const [px, py] = pointer(svg, event);
    let best = null, least = NEAR;
    for (const line of lines) {
      for (let i = 1; i < line.points.length; i++) {
        const [[x1, y1], [x2, y2]] = [line.points[i - 1], line.points[i]];
        if (px < x1 - 8 || px > x2 + 8) continue;
        const apart = Math.abs(y1 + ((px - x1) / (x2 - x1)) * (y2 - y1) - py);
        if (apart < least) [best, least] = [line, apart];
      }
    }
    lines.forEach(look);
    if (!best) return hideTip();
    best.path.setAttribute("stroke-width", 5); best.path.setAttribute("opacity", 1);
    tipOfTrial(event, best.trial);
  });
  svg.addEventListener("pointerleave", () => { hideTip(); lines.forEach(look); });
  place("parallel").replaceChildren(svg);
}

// The table of trials, sorted by a column's name; only keys that vary among the methods shown.
let order = null, upward = true, whole = false;
function drawTable() {
  const some = trials.filter(trial => shown(trial.method));
  const keys = keysOf(some);
  const columns = [
    ["Trial", trial => trial.id], ["Method", trial => methodName(trial.method)], ["Status", trial => trial.status],
    ["Rounds", trial => trial.rounds], [study.objective, trial => trial.value],
    ...keys.map(key => [study.keys[key].name, trial => trial.given[key]]),
  ];
  const wordy = name => (name === "Method" || name === "Status" ? "word" : "");
  const by = columns.find(([name]) => name === order);
  if (by) {
    const empty = value => value === null || value === undefined;
    some.sort((one, other) => {
      const [a, b] = [by[1](one), by[1](other)];
      if (empty(a) || empty(b)) return Number(empty(a)) - Number(empty(b)); // what has no value goes last
      const less = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
      return upward ? less : -less;
    });
  }
  const heads = columns.map(([name]) => {
    const sort = () => { upward = order === name ? !upward : true; order = name; drawTable(); };
    const sorted = name === order ? { "aria-sort": upward ? "ascending" : "descending" } : {};
    return make("th", { scope: "col", class: wordy(name), ...sorted }, make("button", { type: "button", onclick: sort }, name));
  });
  const rows = (whole ? some : some.slice(0, FEW)).map(trial => make("tr", {}, ...columns.map(([name, value]) => make("td", { class: wordy(name) }, number(value(trial))))));
  const table = make("table", {}, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows));
  const more = make("button", { type: "button", onclick: () => { whole = true; drawTable(); } }, `Show all ${some.length} rows`);
  place("trials").replaceChildren(table, ...(rows.length < some.length ? [more] : []));
}

if (trials.length) {
  const keys = ["the trial's number", ...study.keys.map(key => key.name)];
  place("trial-choice").append(drop("By", keys, value => { across = value - 1; redraw(); }));
  place("trial-choice").append(make("span", { class: "lead" }, "Filled: all rounds done. Hollow: stopped early or failed; far worse ones are left out."));
  place("parallel-choice").append(drop("Parallel coordinates of", study.methods.map(method => method.name), value => { followed = value; redraw(); }));
  place("parallel-choice").append(make("span", { class: "lead" }, "A line is a trial that did all rounds; the stronger the better."));
  drawings.push(drawScatter, drawParallel, drawTable);
}
drawings.push(drawCurves);
redraw();
