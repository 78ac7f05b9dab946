"use strict";
// Draws what `criproxy page` gives it: {state, status, why, history}. Saved pages have it inside, live ones ask for it.

const SVG = "http://www.w3.org/2000/svg";
const EVERY_MS = 2000;
const HOUR_S = 3600, DAY_S = 86400;
const SEVERITY = ["open", "tried", "squeezed", "closed", "evicting"];
const KINDS = { squeeze: "squeeze", closing: "closed", opening: "open again", rung: "rung", leaving: "a pod left" };
const RESOURCES = {
  cpu: { title: "CPU", unit: "cores", text: (x) => x.toFixed(2) + " cores" },
  memory: { title: "Memory", unit: "bytes", text: (x) => (x / 2 ** 30).toFixed(2) + " GiB" },
};
const LAYERS = {
  online: "online pods and the system", box: "offline pods (the box)", free: "free",
  prediction: "what online should not exceed", limit: "the box's limit", kept: "above this, kubelet evicts pods",
};

let data = null, span = "hour", next = 0, asking = false;
const cursors = {};

// --- elements ---

function element(name, properties, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties || {})) {
    if (key === "text") made.textContent = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

function shape(name, properties, title) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(properties)) made.setAttribute(key, value);
  if (title) {
    const words = document.createElementNS(SVG, "title");
    words.textContent = title;
    made.append(words);
  }
  return made;
}

const by = (id) => document.getElementById(id);
const clock = (s) => new Date(s * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: span === "hour" ? "2-digit" : undefined, hourCycle: "h23" });
const moment = (s) => new Date(s * 1000).toLocaleString([], { hourCycle: "h23" });

function words(resource, value) {
  if (value === null || value === undefined) return "not known";
  return typeof value === "string" ? value : RESOURCES[resource].text(value);
}

// The value as the status has it goes along, for who reads it by program.
function cell(text, value) {
  const made = element("td", { text });
  if (value !== undefined) made.setAttribute("data-value", JSON.stringify(value));
  return made;
}

function table(caption, heads, rows, className) {
  const head = element("tr", {}, ...heads.map((text) => element("th", { scope: "col", text })));
  const made = element("table", className ? { class: className } : {}, element("caption", { text: caption }), element("thead", {}, head));
  made.append(element("tbody", {}, ...rows.map((cells) => element("tr", {}, ...cells))));
  const scroll = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, made);
  return scroll;
}

// --- history ---

function merged(old, fresh) {
  if (!old) return fresh;
  const blocks = {};
  for (const [name, most] of [["seconds", HOUR_S], ["minutes", DAY_S / 60]]) {
    const before = old[name], after = fresh[name];
    const offset = Math.round((after.first_s - before.first_s) / before.step_s);
    const grown = Object.keys(RESOURCES).map((r) => [r, joined(before[r], after[r], offset, most)]);
    const length = lengthOf(before), now = offset + lengthOf(after);
    if (offset < 0 || offset > length + 1) return null; // a clock was set, or the machine slept: all is asked for anew
    const dropped = Math.max(0, Math.max(length, now) - most);
    blocks[name] = { first_s: before.first_s + dropped * before.step_s, step_s: before.step_s, ...Object.fromEntries(grown) };
  }
  const newest = old.marks.length ? old.marks[old.marks.length - 1].t_s : -Infinity;
  const marks = old.marks.concat(fresh.marks.filter((one) => one.t_s > newest));
  return { now_s: fresh.now_s, scales: fresh.scales, ...blocks, marks };
}

function lengthOf(block) {
  const online = block.cpu.online;
  return (online.mean || online).length;
}

function joined(before, after, offset, most) {
  if (Array.isArray(before)) {
    const both = before.slice(0, offset).concat(after);
    const all = both.length >= before.length ? both : both.concat(before.slice(both.length));
    return all.slice(Math.max(0, all.length - most));
  }
  return Object.fromEntries(Object.keys(before).map((key) => [key, joined(before[key], after[key], offset, most)]));
}

// Points of time with what was seen, at most one for each column of pixels: means of what falls into one.
function points(resource, columns) {
  const history = data.history, hour = span === "hour", block = hour ? history.seconds : history.minutes;
  const scale = history.scales[RESOURCES[resource].unit], series = block[resource];
  const total = hour ? HOUR_S : DAY_S, start = history.now_s - total;
  const found = [];
  const count = lengthOf(block), per = Math.max(1, Math.ceil(count / columns));
  for (let first = 0; first < count; first += per) {
    const point = { t: block.first_s + Math.min(first + per / 2, count) * block.step_s };
    for (const name of Object.keys(series)) {
      const one = series[name], kinds = Array.isArray(one) ? { mean: one, least: one, most: one } : one;
      const mean = meanOf(kinds.mean, first, per), least = hour ? null : leastOf(kinds.least, first, per);
      point[name] = mean === null ? null : mean * scale;
      if (!hour) {
        point[name + "_least"] = least === null ? null : least * scale;
        const most = leastOf(kinds.most, first, per, true);
        point[name + "_most"] = most === null ? null : most * scale;
      }
    }
    if (point.t >= start) found.push(point);
  }
  return { found, start, end: history.now_s, gap: Math.max(hour ? 30 : 180, 3 * per * block.step_s) };
}

function meanOf(numbers, first, per) {
  let sum = 0, count = 0;
  for (let at = first; at < Math.min(first + per, numbers.length); at++) if (numbers[at] !== null) { sum += numbers[at]; count++; }
  return count ? sum / count : null;
}

function leastOf(numbers, first, per, most) {
  let found = null;
  for (let at = first; at < Math.min(first + per, numbers.length); at++) {
    const one = numbers[at];
    if (one !== null && (found === null || (most ? one > found : one < found))) found = one;
  }
  return found;
}

// Runs of points without a gap.
function runs(found, gap, known) {
  const all = [];
  let last = null;
  for (const point of found) {
    if (!known(point)) continue;
    if (last === null || point.t - last.t > gap) all.push([]);
    all[all.length - 1].push(point);
    last = point;
  }
  return all;
}

// --- charts ---

function chart(resource) {
  const root = by(resource), width = Math.max(280, root.clientWidth), height = Math.round(Math.min(420, Math.max(200, width / 3.2)));
  const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
  const left = 3.6 * rem, right = 8, top = 1.6 * rem, bottom = 1.6 * rem;
  const { found, start, end, gap } = points(resource, Math.max(60, Math.floor((width - left - right) / 1.5)));
  const capacity = Math.max(0, ...found.map((p) => p.capacity || 0));
  const most = Math.max(capacity, ...found.map((p) => (p.online || 0) + (p.box || 0)), 1e-9);
  const x = (t) => left + ((t - start) / (end - start)) * (width - left - right);
  const y = (value) => height - bottom - (Math.min(value, most) / most) * (height - top - bottom);
  const list = (run, value) => run.map((p) => `${x(p.t).toFixed(1)},${y(value(p)).toFixed(1)}`);
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-labelledby": `${resource}-title` });
  const title = shape("title", { id: `${resource}-title` });
  title.textContent = `${RESOURCES[resource].title} of the last ${span}: ${summary(resource, found)}`;
  svg.append(title);
  const area = (name, low, high) => {
    for (const run of runs(found, gap, (p) => high(p) !== null && low(p) !== null)) {
      if (run.length < 2) continue;
      svg.append(shape("path", { class: name, d: `M${list(run, low).join("L")}L${list(run, high).reverse().join("L")}Z` }, LAYERS[name]));
    }
  };
  const zero = () => 0, online = (p) => p.online;
  const both = (p) => (p.online === null || p.box === null ? null : p.online + p.box);
  area("free", zero, (p) => p.capacity);
  area("box", online, both);
  area("online", zero, online);
  if (span === "day") area("band", online, (p) => p.online_most);
  for (const name of ["prediction", "limit", "kept"]) {
    if (name === "kept" && resource !== "memory") continue;
    const value = name === "kept" ? (p) => (p.kept ? p.capacity - p.kept : null) : (p) => p[name];
    for (const run of runs(found, gap, (p) => value(p) !== null)) {
      const d = `M${list(run, value).join("L")}`;
      svg.append(shape("path", { class: "halo", d }), shape("path", { class: name, d }, LAYERS[name]));
    }
  }
  for (let part = 0; part <= 4; part++) {
    const value = (most * part) / 4;
    svg.append(shape("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }));
    const text = shape("text", { x: left - 6, y: y(value) + rem / 4, "text-anchor": "end" });
    text.textContent = resource === "cpu" ? value.toFixed(most < 10 ? 1 : 0) : (value / 2 ** 30).toFixed(most < 2 ** 34 ? 1 : 0) + "Gi";
    svg.append(text);
  }
  const steps = width < 30 * rem ? 2 : 6;
  for (let part = 0; part <= steps; part++) {
    const t = start + ((end - start) * part) / steps;
    const text = shape("text", { x: x(t), y: height - rem / 3, "text-anchor": part === 0 ? "start" : part === steps ? "end" : "middle" });
    text.textContent = new Date(t * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
    svg.append(text);
  }
  marksIn(resource, start).forEach((mark) => {
    const at = x(mark.t_s), label = `${moment(mark.t_s)}: ${markWords(mark)}`;
    svg.append(shape("line", { class: "mark", x1: at, x2: at, y1: top - 4, y2: height - bottom }, label));
    const letter = shape("text", { x: at, y: top - 6, "text-anchor": "middle" }, label);
    letter.append({ squeeze: "s", closing: "c", opening: "o", rung: "r", leaving: "e" }[mark.kind] || "?");
    svg.append(letter);
  });
  const cursor = shape("line", { class: "cursor", y1: top, y2: height - bottom, visibility: "hidden" });
  svg.append(cursor);

  const said = element("output", { "aria-live": "polite", text: "Point at the chart, or press the arrow keys in it, to read single moments." });
  const label = `${RESOURCES[resource].title}: chart. Arrow keys read single moments.`;
  const figure = element("div", { class: "chart", tabindex: "0", role: "group", "aria-label": label });
  const legend = element("ul", { class: "legend" });
  for (const name of ["online", "box", "free", "prediction", "limit", ...(resource === "memory" ? ["kept"] : [])]) {
    const swatch = shape("svg", { viewBox: "0 0 20 10", "aria-hidden": "true" });
    swatch.append(["prediction", "limit", "kept"].includes(name) ? shape("path", { class: name, d: "M0,5H20" }) : shape("rect", { class: name, width: 20, height: 10 }));
    legend.append(element("li", {}, element("span", { class: "key" }, swatch), LAYERS[name]));
  }
  figure.append(svg, element("p", { class: "dim", text: "Letters above: s squeeze, c closed, o open again, r rung of the ladder, e a pod had to leave." }), legend);
  const read = (index) => {
    if (!found.length) return;
    const at = Math.min(found.length - 1, Math.max(0, index)), p = found[at];
    cursors[resource] = p.t;
    cursor.setAttribute("visibility", "visible");
    cursor.setAttribute("x1", x(p.t));
    cursor.setAttribute("x2", x(p.t));
    const parts = ["online", "box", "prediction", "limit"].map((name) => `${name} ${words(resource, p[name])}`);
    said.textContent = `${clock(p.t)}: ${parts.join(", ")}`;
  };
  const nearest = (t) => found.reduce((best, p, at) => (Math.abs(p.t - t) < Math.abs(found[best].t - t) ? at : best), 0);
  svg.addEventListener("pointermove", (event) => {
    const frame = svg.getBoundingClientRect();
    read(nearest(start + ((((event.clientX - frame.left) / frame.width) * width - left) / (width - left - right)) * (end - start)));
  });
  figure.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -1e9, End: 1e9 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    read((cursors[resource] === undefined ? found.length - 1 : nearest(cursors[resource])) + moves[event.key]);
  });
  const focused = root.contains(document.activeElement) && document.activeElement.className === "chart";
  const opened = root.querySelector("details")?.open;
  const rest = element("details", {}, element("summary", { text: "As a table" }));
  rest.addEventListener("toggle", () => { if (rest.open && rest.children.length === 1) rest.append(numbers(resource)); });
  root.replaceChildren(figure, said, rest);
  if (opened) rest.open = true;
  if (cursors[resource] !== undefined) read(nearest(cursors[resource]));
  if (focused) figure.focus({ preventScroll: true });
}

function summary(resource, found) {
  const known = found.filter((p) => p.online !== null);
  if (!known.length) return "nothing is known yet.";
  const mean = (name) => known.reduce((sum, p) => sum + (p[name] || 0), 0) / known.length;
  const peak = Math.max(...known.map((p) => p.online_most ?? p.online));
  return `online used ${words(resource, mean("online"))} on average and ${words(resource, peak)} at most, offline pods ${words(resource, mean("box"))} on average.`;
}

function numbers(resource) {
  const { found } = points(resource, span === "hour" ? 60 : 96);
  const names = ["capacity", "online", "box", "prediction", "limit"];
  const rows = found.map((p) => [element("th", { scope: "row", text: clock(p.t) }), ...names.map((name) => cell(words(resource, p[name])))]);
  return table(`${RESOURCES[resource].title} of the last ${span}, means of ${span === "hour" ? "a minute" : "15 minutes"}`, ["time", ...names], rows);
}

function marksIn(resource, start) {
  return data.history.marks.filter((mark) => mark.t_s >= start && !(mark.of in RESOURCES && mark.of !== resource));
}

function markWords(mark) {
  return [KINDS[mark.kind] || mark.kind, mark.of, mark.state].filter(Boolean).join(" ") + `: ${mark.reason}`;
}

// --- the ladder ---

function ladder() {
  const root = by("ladder"), history = data.history, total = span === "hour" ? HOUR_S : DAY_S;
  const start = history.now_s - total, rungs = (data.status.interference || { rungs: [] }).rungs;
  if (!rungs.length) { root.replaceChildren(element("p", { text: "Nothing is looked at." })); return; }
  const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
  const width = Math.max(280, root.clientWidth), left = 5 * rem, row = 2.6 * rem;
  const x = (t) => left + ((Math.max(t, start) - start) / total) * (width - left - 8);
  const svg = shape("svg", { viewBox: `0 0 ${width} ${rungs.length * row + 4}`, role: "img", "aria-labelledby": "ladder-title" });
  const title = shape("title", { id: "ladder-title" });
  title.textContent = "Rungs: " + rungs.map((one) => `${one.resource} ${one.rung}`).join(", ");
  svg.append(title);
  rungs.forEach((one, at) => {
    const name = shape("text", { x: left - 8, y: at * row + 1.8 * rem, "text-anchor": "end" });
    name.textContent = one.resource;
    svg.append(name);
    const marks = history.marks.filter((mark) => mark.kind === "rung" && mark.of === one.resource).sort((a, b) => a.t_s - b.t_s);
    const changes = [{ t_s: -Infinity, state: marks.length ? "open" : one.rung, reason: "" }, ...marks];
    changes.forEach((mark, index) => {
      const until = index + 1 < changes.length ? changes[index + 1].t_s : history.now_s;
      if (until < start) return;
      const level = Math.max(0, SEVERITY.indexOf(mark.state)), tall = (0.3 + 0.25 * level) * rem, foot = (at + 0.85) * row, wide = Math.max(1, x(until) - x(mark.t_s));
      const words = `${one.resource} ${mark.state}${mark.reason ? `, ${moment(mark.t_s)}: ${mark.reason}` : ""}`;
      svg.append(shape("rect", { class: `rung-${mark.state}`, x: x(mark.t_s), y: foot - tall, width: wide, height: tall }, words));
      if (wide > 0.6 * rem * mark.state.length) {
        const text = shape("text", { x: x(mark.t_s) + 3, y: foot - tall - 3 });
        text.textContent = mark.state;
        svg.append(text);
      }
    });
  });
  const lines = rungs.filter((one) => one.rung !== "open").map((one) => element("li", { text: `${one.resource} is ${one.rung}${one.since_s ? ` since ${moment(one.since_s)}` : ""}: ${one.reason}` }));
  const words = lines.length ? element("ul", {}, ...lines) : element("p", { text: "Nothing is held back." });
  root.replaceChildren(svg, words);
}

// --- tables ---

function marks() {
  const start = data.history.now_s - (span === "hour" ? HOUR_S : DAY_S);
  const shown = data.history.marks.filter((mark) => mark.t_s >= start).sort((a, b) => b.t_s - a.t_s);
  if (!shown.length) { by("marks").replaceChildren(element("p", { text: `Nothing in the last ${span}: no squeeze, no closing, no pod had to leave.` })); return; }
  const rows = shown.map((mark) => [
    element("th", { scope: "row", text: moment(mark.t_s) }), cell(KINDS[mark.kind] || mark.kind),
    cell([mark.of, mark.state].filter(Boolean).join(" ")), cell(mark.reason),
  ]);
  replaceTable("marks", table(`Of the last ${span}, the latest first`, ["when", "what", "of", "why"], rows, "words"));
}

function now() {
  const names = ["capacity", "node", "online", "box", "prediction", "hour", "limit", "in_force"];
  const heads = ["resource", "capacity", "node", "online", "box", "predicted", "in an hour", "limit", "in force"];
  const rows = Object.keys(RESOURCES).filter((name) => data.status.box[name]).map((name) => {
    const shown = data.status.box[name], unit = RESOURCES[name].unit;
    return [element("th", { scope: "row", text: RESOURCES[name].title }), ...names.map((key) => {
      const value = shown[`${key}_${unit}`], made = cell(key === "in_force" && value === null ? "no box" : words(name, value), value);
      made.setAttribute("data-key", `box.${name}.${key}_${unit}`);
      return made;
    })];
  });
  const why = Object.keys(RESOURCES).filter((name) => data.status.box[name]).map((name) => element("li", { text: `${RESOURCES[name].title}: ${data.status.box[name].reason}` }));
  if (!rows.length) { by("now").replaceChildren(element("p", { text: "No sample yet." })); return; }
  by("now").replaceChildren(table("As the daemon's status has it", heads, rows), element("ul", {}, ...why));
}

function pods() {
  const all = data.status.pods;
  if (!all.length) { by("pods").replaceChildren(element("p", { text: "None runs." })); return; }
  const age = (s) => (s === null ? "not known" : s < 3600 ? `${Math.floor(s / 60)} min` : s < DAY_S ? `${Math.floor(s / 3600)} h` : `${Math.floor(s / DAY_S)} d`);
  const columns = [
    ["CPU", "cpu_cores", (x) => words("cpu", x)], ["asks for", "cpu_asked_cores", (x) => (x === null ? "nothing" : words("cpu", x))],
    ["waits", "cpu_waiting_ratio", (x) => (x === null ? "not known" : `${Math.round(100 * x)} %`)],
    ["memory", "memory_bytes", (x) => words("memory", x)], ["memory limit", "memory_asked_bytes", (x) => (x === null ? "none" : words("memory", x))],
    ["age", "age_s", age], ["CPUs", "cpus", (x) => x || "all"], ["tier", "tier", (x) => x || "none"], ["notice", "notice_s", (x) => `${x} s`],
  ];
  const rows = [...all].sort((a, b) => (b.cpu_cores ?? -1) - (a.cpu_cores ?? -1)).map((pod) => [
    element("th", { scope: "row", text: `${pod.namespace}/${pod.name}` }),
    ...columns.map(([, key, text]) => {
      const made = cell(text(pod[key] ?? null), pod[key]);
      made.setAttribute("data-key", `${pod.uid}.${key}`);
      return made;
    }),
  ]);
  const lies = (data.status.missized || []).map((one) => element("li", { text: `${one.namespace}/${one.name}, ${RESOURCES[one.resource].title}: ${one.size}: ${words(one.resource, one.used)} of ${words(one.resource, one.asked)}` }));
  replaceTable("pods", table(`${all.length} offline pods, who uses most CPU first`, ["pod", ...columns.map(([head]) => head)], rows));
  if (lies.length) by("pods").append(element("p", { text: "For an hour, these have not used what they ask for:" }), element("ul", {}, ...lies));
}

function published() {
  const parts = (data.why.published || "").split("; ").filter(Boolean);
  by("published").replaceChildren(parts.length ? element("ul", {}, ...parts.map((text) => element("li", { text }))) : element("p", { text: "Nothing is published to Kubernetes, or this node's criproxy is not asked to." }));
}

// Where a person has scrolled to stays.
function replaceTable(id, made) {
  const root = by(id), before = root.querySelector(".scroll"), top = before?.scrollTop || 0, side = before?.scrollLeft || 0;
  const focused = before !== null && before === document.activeElement;
  root.replaceChildren(made);
  made.scrollTop = top;
  made.scrollLeft = side;
  if (focused) made.focus({ preventScroll: true });
}

// --- the page ---

function say(state) {
  const shown = by("state"), remedies = by("remedies");
  if (shown.textContent !== state.sentence) shown.textContent = state.sentence;
  shown.className = state.well ? "" : "bad";
  remedies.hidden = !state.details.length;
  if (remedies.textContent !== state.details.join("")) remedies.replaceChildren(...state.details.map((text) => element("li", { text })));
}

function draw() {
  say(data.state);
  by("asof").textContent = `As of ${moment(data.history.now_s)}.`;
  for (const resource of Object.keys(RESOURCES)) chart(resource);
  [ladder, marks, now, published, pods].forEach((part) => part());
  document.body.dataset.drawn = data.history.now_s;
}

async function ask() {
  if (asking) return;
  asking = true;
  try {
    const since = data ? `?since=${data.history.now_s}` : "";
    const answer = await fetch(`data${since}`, { cache: "no-store" });
    const found = await answer.json();
    if (!answer.ok) throw new Error(found.error);
    const history = merged(data && data.history, found.history);
    data = history ? { ...found, history } : null;
    if (data) draw();
  } catch (error) {
    say({ well: false, sentence: `There is no answer: ${error.message}. What is shown is of earlier.`, details: [] });
  }
  asking = false;
  clearTimeout(next);
  if (by("follow").checked) next = setTimeout(ask, EVERY_MS);
}

document.querySelectorAll("[name=span]").forEach((radio) => radio.addEventListener("change", () => {
  span = radio.value;
  for (const resource of Object.keys(RESOURCES)) delete cursors[resource];
  if (data) draw();
}));
let resized = 0;
addEventListener("resize", () => {
  clearTimeout(resized);
  resized = setTimeout(() => data && draw(), 100);
});
const inside = by("data");
if (inside) {
  by("follow").parentElement.remove();
  data = JSON.parse(inside.textContent);
  draw();
} else {
  by("follow").addEventListener("change", (event) => { if (event.target.checked) ask(); });
  ask();
}
