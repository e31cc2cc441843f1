"use strict";
// One view: an image to move, the answers of the networks, and a gallery. The address holds the state.

const byId = id => document.getElementById(id);
const state = { sample: null, angle: 0, label: "", order: "original", offset: 0, upload: null, invert: false,
  windows: 0, moves: "rotation", mirror: false };
const unfolded = new Set();  // networks whose layers are shown
const LIMIT = 24, STEPS = 36;
const COLORS = ["--one", "--two", "--three", "--four"], DASHES = ["solid", "dash", "dot", "dashdot"];
let models = [], kinds = ["rotation"], curve = null, timer = null;
// Numbers of the latest image, question and gallery: answers to earlier ones are dropped.
let image = 0, asked = 0, listed = 0;
let pending = 0;

// Count what the page waits for: assistive technology and tests can see when it is done.
function count(change) {
  pending += change;
  document.body.dataset.busy = pending;
  byId("networks").setAttribute("aria-busy", pending > 0);
}

async function counted(work) {
  count(1);
  try { return await work(); } finally { count(-1); }
}

// ------------------------------------------------------------ the server

async function ask(path, options) {
  const answer = await fetch(path, options);
  const data = await answer.json().catch(() => ({}));
  if (answer.ok) return data;
  const detail = Array.isArray(data.detail) ? data.detail.map(each => each.msg).join("; ") : data.detail;
  const error = new Error(detail || `the server answered ${answer.status}`);
  error.status = answer.status;
  throw error;
}

function notify(text) { byId("message").textContent = text; }

function question(steps, upload) {
  const request = { moves: state.moves, angle: state.angle, steps, invert: Boolean(upload) && state.invert,
    mirror: state.mirror };
  if (!byId("opening").hidden) request.windows = state.windows;
  if (upload) request.image = upload.data; else request.sample = state.sample;
  return ask("api/inspect", {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(request),
  });
}

// Ask about the image at the current angle, and for the curve unless it is known.
async function inspect() {
  if (state.sample !== null || state.upload) await counted(inspectNow);
}

async function inspectNow() {
  const mine = ++asked, own = image;
  try {
    const found = await question(curve ? 0 : STEPS, state.upload);
    if (own !== image) return;  // another image was chosen
    if (found.places.length) { curve = found; byId("around").hidden = false; await drawCurve(); }
    if (mine !== asked) return;  // it was moved in the meantime
    notify("");
    show(found);
  } catch (error) {
    if (own !== image || mine !== asked) return;
    if (error.status === 429) { soon(400); return; }
    notify(error.message);
  }
}

function soon(wait) {
  if (timer === null) count(1); else clearTimeout(timer);
  timer = setTimeout(() => {
    timer = null;
    inspect().finally(() => count(-1));
  }, wait);
}

// Another image, or the same one inverted: forget what is known.
function renew() {
  image += 1;
  curve = null;
  return inspect();
}

// ------------------------------------------------------------ the view

function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "path", "circle", "line", "text", "title"].includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// A place on a circle: 0° is up, counter-clockwise as images turn.
function place(degrees, radius) {
  const angle = degrees * Math.PI / 180;
  return [-radius * Math.sin(angle), -radius * Math.cos(angle)].map(value => value.toFixed(2));
}

function arc(radius, half) {
  const [x1, y1] = place(half, radius), [x2, y2] = place(-half, radius);
  return `M ${x1} ${y1} A ${radius} ${radius} 0 ${half > 90 ? 1 : 0} 1 ${x2} ${y2}`;
}

function drawRing() {
  const ring = byId("ring");
  ring.replaceChildren();
  if (state.moves === "hue") {
    for (let step = 0; step < 72; step++) {
      const [x1, y1] = place(step * 5, 98), [x2, y2] = place(step * 5 + 5.4, 98);
      ring.append(make("path", { d: `M ${x1} ${y1} A 98 98 0 0 0 ${x2} ${y2}`, fill: "none",
        stroke: `hsl(${step * 5} 80% 55%)`, "stroke-width": 14 }));
    }
  } else {
    ring.append(make("circle", { r: 98, class: "track" }));
    for (let degrees = 0; degrees < 360; degrees += 30) {
      const [x1, y1] = place(degrees, 91), [x2, y2] = place(degrees, 105);
      ring.append(make("line", { x1, y1, x2, y2, stroke: "var(--soft)" }));
    }
  }
  const [x, y] = place(state.angle, 98);
  ring.append(make("circle", { cx: x, cy: y, r: 10, fill: "var(--ground)", stroke: "var(--one)", "stroke-width": 4 }));
}

function signed(degrees) {
  const angle = ((degrees % 360) + 360) % 360;
  return Math.round(angle > 180 ? angle - 360 : angle);
}

function showAngle() {
  const angle = signed(state.angle);
  byId("angle").textContent = `${angle}°`;
  byId("dial").setAttribute("aria-valuenow", angle);
  byId("dial").setAttribute("aria-valuetext", `${state.moves} by ${angle} degrees`);
  drawRing();
  marker();
}

// A dial of θ: the window as an arc, and dots for the group's elements, the larger the more weight they have.
function level(each) {
  const svg = make("svg", { viewBox: "-60 -60 120 120", role: "img", "aria-label": `theta ${each.theta.toFixed(2)}` });
  svg.append(make("circle", { r: 46, class: "track" }));
  const theta = Math.max(0, Math.min(1, each.theta));
  if (theta > 0.999) svg.append(make("circle", { r: 46, class: "window" }));
  else svg.append(make("path", { d: arc(46, 180 * theta), class: "window" }));
  const weights = each.weights || [];
  const most = Math.max(...weights, 1e-9);
  if (weights.length <= 12) weights.forEach((weight, number) => {
    const [x, y] = place(360 * number / weights.length, 30);
    const dot = make("circle", { cx: x, cy: y, r: (1 + 5 * weight / most).toFixed(1), class: "dot" });
    const element = ofMirrors(each) ? ["as it is", "mirrored"][number] : `${signed(360 * number / weights.length)}°`;
    dot.append(make("title", {}, `${element}: weight ${weight.toFixed(2)}`));
    svg.append(dot);
  });
  svg.append(make("text", {}, each.theta.toFixed(2)));
  const note = each.per_image === false ? " (the same for all images)" : "";
  return make("figure", {}, svg, make("figcaption", {}, each.layer + note));
}

// Whether a θ is about left and right: then its circle has two elements only.
function ofMirrors(each) { return each.layer.endsWith(" mirror"); }

// One dial for the network: the mean of its levels that depend on the image. Layers are unfolded on demand.
function dials(network) {
  const layers = network.levels;
  if (!layers.length) return [];
  const own = layers.filter(each => each.per_image);  // as in the gallery
  const shown = own.length ? own : layers;
  const thetas = shown.map(each => each.theta);
  const mean = thetas.reduce((sum, theta) => sum + theta, 0) / thetas.length;
  const range = `${Math.min(...thetas).toFixed(2)} to ${Math.max(...thetas).toFixed(2)}`;
  const kind = own.length ? "levels that depend on the image" : "levels";
  const caption = shown.length > 1 ? `θ, mean of ${shown.length} ${kind} (${range})` : `θ of ${shown[0].layer}`;
  const whole = make("div", { class: "levels" }, level({ layer: caption, theta: mean }));
  const fold = make("details", { class: "layers" },
    make("summary", {}, layers.length > 1 ? `all ${layers.length} levels` : "the elements of the group"),
    make("p", { class: "soft small" }, "Each dot is an element of the group, 0° at the top; the larger a dot, the more the "
      + "layer uses it."),
    make("div", {}, ...layers.map(level)));
  fold.open = unfolded.has(network.model);
  fold.addEventListener("toggle", () => { fold.open ? unfolded.add(network.model) : unfolded.delete(network.model); });
  return [whole, fold];
}

function show(found) {
  byId("picture").src = found.image;
  byId("what").textContent = state.upload ? state.upload.name : `test image: ${found.label}`;
  const networks = byId("networks");
  const boxes = found.networks.map(network => {
    const info = models.find(model => model.name === network.model);
    const order = network.probabilities.map((share, number) => [share, info.classes[number]]);
    order.sort((a, b) => b[0] - a[0]);
    const bars = order.slice(0, 6).map(([share, name]) => {
      const fill = make("i");
      fill.style.width = `${(100 * share).toFixed(1)}%`;
      return make("div", { class: "bar" }, make("span", { title: name }, name), make("span", {}, fill),
        make("span", {}, `${(100 * share).toFixed(1)}%`));
    });
    const share = info.moves === "hue" ? "hues" : "rotations";
    let about = `θ is the share of the circle (${share}) that the network uses for this image, as a window around 0°; 1 is all of it.`;
    if (network.levels.every(ofMirrors)) about = "θ = 0.5: the network uses the image as it is; 1: its mirror image, too.";
    if (!network.levels.length) about = `${info.about}: it has no level for each image.`;
    return make("div", { class: "network" }, make("h2", {}, network.model, make("span", { class: "soft small" }, info.about)),
      make("p", { class: "guess", "aria-live": "polite" }, network.guess), ...bars, ...dials(network), make("p", { class: "soft small" }, about));
  });
  networks.replaceChildren(...boxes);
}

function color(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }

function drawCurve() {
  if (!curve || !curve.places.length || typeof Plotly === "undefined") return;
  const degrees = [...curve.places.map(signed)];
  const order = degrees.map((_, number) => number).sort((a, b) => degrees[a] - degrees[b]);
  const closed = degrees.includes(180);
  const traces = curve.networks.map((network, number) => {
    const info = models.find(model => model.name === network.model);
    const start = network.curve[0].indexOf(Math.max(...network.curve[0]));
    const x = order.map(place => degrees[place]), y = order.map(place => network.curve[place][start]);
    if (closed) { x.unshift(-180); y.unshift(y[y.length - 1]); }
    return { x, y, name: `${network.model}: ${info.classes[start]}`, mode: "lines",
      line: { color: color(COLORS[number]), width: 3, dash: DASHES[number] },
      hovertemplate: "%{x}°: %{y:.1%}<extra></extra>" };
  });
  const axis = { gridcolor: color("--line"), zeroline: false, color: color("--soft") };
  return Plotly.react("curve", traces, {
    margin: { l: 46, r: 12, t: 8, b: 40 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: color("--ink"), family: "system-ui, sans-serif" }, showlegend: true,
    legend: { orientation: "h", y: 1.02, yanchor: "bottom" },
    xaxis: { ...axis, range: [-182, 182], tickvals: [-180, -90, 0, 90, 180],
      ticktext: ["−180°", "−90°", "0°", "90°", "180°"],
      title: { text: state.moves === "hue" ? "hue shift" : "rotation", standoff: 4 } },
    yaxis: { ...axis, range: [-0.02, 1.02], tickformat: ".0%" }, shapes: [line(), ...marks()],
  }, { displayModeBar: false, responsive: true });
}

function line() {
  const x = signed(state.angle);
  return { type: "line", x0: x, x1: x, y0: 0, y1: 1, yref: "paper", line: { color: color("--ink"), width: 2, dash: "dot" } };
}

// Where open windows promise the same answer.
function marks() {
  return models.flatMap((model, number) => (model.promised[state.moves] || []).map(degrees => ({
    type: "line", x0: signed(degrees), x1: signed(degrees), y0: 0, y1: 1, yref: "paper", layer: "below",
    line: { color: color(COLORS[number]), width: 1, dash: "dash" },
  })));
}

function promise(model) {
  const sides = `${model.name}: with open windows (θ = 1), the same answer for the mirror image`;
  if (model.mirrors && !model.moves) return `${sides}; nothing is promised of ${state.moves === "hue" ? "hue shifts" : "rotations"}.`;
  return model.mirrors ? `${angles(model)} ${sides}.` : angles(model);
}

function angles(model) {
  const angles = model.promised[state.moves];
  if (angles === null) return `${model.name}: with open windows (θ = 1), the same answer at every angle, as far as the pixel grid allows.`;
  if (!angles.length) return `${model.name}: its layers do not know this move, so nothing is promised.`;
  const shown = [...new Set(angles.map(signed).map(Math.abs))].map(angle => angle === 180 ? "180°" : `±${angle}°`);
  return `${model.name}: with open windows (θ = 1), the same answer at ${shown.join(", ")} (dashed lines); nothing is promised between them.`;
}

// Whether the networks know of mirrors only: the page can rotate their images, but that is not what they are for.
function onlyMirrors() { return models.some(model => model.mirrors) && models.every(model => !model.moves); }

function describe() {
  const hue = state.moves === "hue";
  const title = hue ? "Shift the hue of an image" : onlyMirrors() ? "Mirror an image" : "Rotate an image";
  byId("title").textContent = `${title} and watch the levels`;
  byId("promise").textContent = models.map(promise).join(" ");
  byId("moves").value = state.moves;
}

function marker() {
  if (curve && typeof Plotly !== "undefined" && byId("curve").data) Plotly.relayout("curve", { shapes: [line(), ...marks()] });
}

// ------------------------------------------------------------ the gallery

function gallery() { return counted(galleryNow); }

async function galleryNow() {
  const mine = ++listed;
  const query = new URLSearchParams({ order: state.order, offset: state.offset, limit: LIMIT });
  if (state.label) query.set("label", state.label);
  try {
    const found = await ask(`api/samples?${query}`);
    if (mine !== listed) return [];  // another part was requested
    if (found.total && state.offset >= found.total) {
      state.offset = LIMIT * Math.floor((found.total - 1) / LIMIT);
      remember();
      return galleryNow();
    }
    const buttons = found.samples.map(sample => {
      const theta = sample.theta === null ? "" : `θ ${sample.theta.toFixed(2)}`;
      const button = make("button", { type: "button", "aria-pressed": sample.id === state.sample && !state.upload,
        "data-id": sample.id, "aria-label": `${sample.label} ${theta}` },
        make("img", { src: sample.image, alt: "" }), sample.label, make("br"), theta);
      button.addEventListener("click", () => choose(sample.id));
      return button;
    });
    byId("samples").replaceChildren(...buttons);
    const last = Math.min(state.offset + LIMIT, found.total);
    byId("count").textContent = found.total ? `${state.offset + 1}–${last} of ${found.total}` : "none";
    byId("before").setAttribute("aria-disabled", state.offset === 0);
    byId("after").setAttribute("aria-disabled", last >= found.total);
    return found.samples;
  } catch (error) { notify(error.message); return []; }
}

function page(step) {
  if (byId(step < 0 ? "before" : "after").getAttribute("aria-disabled") === "true") return;
  state.offset = Math.max(0, state.offset + step);
  remember();
  gallery();
}

function choose(id) {
  state.sample = id;
  state.upload = null;
  for (const button of byId("samples").children)
    button.setAttribute("aria-pressed", Number(button.dataset.id) === id);
  remember(true);
  renew();
}

// ------------------------------------------------------------ the address

// Another image is another entry of the history: Back returns to the one before.
function remember(another = false) {
  const words = new URLSearchParams();
  if (state.sample !== null && !state.upload) words.set("sample", state.sample);
  if (state.moves !== kinds[0]) words.set("moves", state.moves);
  if (signed(state.angle)) words.set("angle", signed(state.angle));
  if (state.mirror) words.set("mirror", 1);
  if (state.windows !== tuned()) words.set("windows", state.windows);
  if (state.label) words.set("label", state.label);
  if (state.order !== "original") words.set("order", state.order);
  if (state.offset) words.set("offset", state.offset);
  if (another) history.pushState(null, "", `#${words}`);
  else history.replaceState(null, "", `#${words}`);
}

function recall() {
  const words = new URLSearchParams(location.hash.slice(1));
  const number = (name, otherwise) => {
    const value = Number(words.get(name));
    return words.has(name) && Number.isFinite(value) ? value : otherwise;
  };
  state.sample = /^\d{1,9}$/.test(words.get("sample") || "") ? Number(words.get("sample")) : null;
  state.upload = null;
  state.moves = kinds.includes(words.get("moves")) ? words.get("moves") : kinds[0];
  state.angle = number("angle", 0) % 360;
  state.mirror = words.get("mirror") === "1" && models.some(model => model.mirrors);
  state.windows = Math.max(-1, Math.min(1, number("windows", tuned())));
  state.offset = Math.max(0, Math.floor(number("offset", 0)));
  state.label = models[0].classes.includes(words.get("label")) ? words.get("label") : "";
  state.order = ["narrow", "wide"].includes(words.get("order")) ? words.get("order") : "original";
}

// ------------------------------------------------------------ the windows

// Where `vpgcnn tune` left them.
function tuned() {
  const known = models.find(model => model.windows !== null);
  return known ? known.windows : 0;
}

function showWindows() {
  const share = Math.round(100 * Math.abs(state.windows));
  byId("windows").value = state.windows;
  const where = share === 0 ? "as learned" : `${share}% ${state.windows < 0 ? "closed" : "opened"}`;
  byId("opened").textContent = tuned() !== 0 && state.windows === tuned() ? `${where}, as vpgcnn tune left them` : where;
  drawTuning();
}

// The curve that `vpgcnn tune` measured, of the first network that has one, with a dot at the windows shown.
function tuning() { return models.find(model => model.tuned); }

function between(points, key) {
  const after = points.findIndex(point => point.windows >= state.windows);
  if (after <= 0) return points[after < 0 ? points.length - 1 : 0][key];
  const [one, two] = [points[after - 1], points[after]];
  return one[key] + (two[key] - one[key]) * (state.windows - one.windows) / (two.windows - one.windows);
}

function drawTuning() {
  const model = tuning();
  if (!model || typeof Plotly === "undefined") return;
  const points = model.tuned.points, number = models.indexOf(model);
  const curves = [["images as they are", "accuracy", "solid", COLORS[number]], ["moved images", "moved", "dash", COLORS[(number + 1) % 4]]];
  const traces = curves.map(([name, key, dash, ink]) => ({
    x: points.map(point => point.windows), y: points.map(point => point[key]), name, mode: "lines+markers",
    line: { color: color(ink), width: 3, dash }, marker: { size: 4 } }));
  for (const [, key, , ink] of curves) traces.push({ x: [state.windows], y: [between(points, key)], mode: "markers",
    marker: { size: 13, color: color("--ground"), line: { color: color(ink), width: 4 } }, showlegend: false });
  const axis = { gridcolor: color("--line"), zeroline: false, color: color("--soft") };
  const least = Math.min(...points.flatMap(point => [point.accuracy, point.moved]));
  const chosen = { type: "line", x0: model.tuned.windows, x1: model.tuned.windows, y0: 0, y1: 1, yref: "paper",
    layer: "below", line: { color: color("--soft"), width: 1, dash: "dash" } };
  const at = key => `${(100 * between(points, key)).toFixed(1)}%`;
  byId("setting").textContent = `${model.name}: ${at("accuracy")} of ${model.tuned.images} images right, ${at("moved")} when moved, `
    + `mean θ ${between(points, "theta").toFixed(2)}. Dashed: the setting that vpgcnn tune chose.`;
  return Plotly.react("tuning", traces, {
    margin: { l: 62, r: 12, t: 8, b: 40 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: color("--ink"), family: "system-ui, sans-serif" }, showlegend: true,
    legend: { orientation: "h", y: 1.02, yanchor: "bottom" }, shapes: [chosen],
    xaxis: { ...axis, range: [-1.05, 1.05], tickvals: [-1, 0, 1], ticktext: ["closed", "as learned", "open"],
      title: { text: "windows", standoff: 4 } },
    yaxis: { ...axis, title: { text: "accuracy", standoff: 4 }, range: [Math.max(-0.02, Math.floor(10 * least - 0.5) / 10), 1.02], tickformat: ".0%" },
  }, { staticPlot: true, responsive: true });  // else its layer for dragging would take the clicks
}

// A click anywhere in the chart moves the windows there.
function pickTuning(event) {
  const chart = byId("tuning"), layout = chart._fullLayout;
  if (!layout || !layout.xaxis) return;
  const x = layout.xaxis.p2d(event.clientX - chart.getBoundingClientRect().left - layout._size.l);
  if (Math.abs(x) <= 1.05) setWindows(Math.round(20 * Math.max(-1, Math.min(1, x))) / 20);
}

function setWindows(windows) {
  state.windows = windows;
  showWindows();
  remember();
  image += 1;
  curve = null;
  soon(60);
}

// ------------------------------------------------------------ controls

function turn(angle) {
  state.angle = signed(angle);
  showAngle();
  remember();
  soon(30);
}

function point(event) {
  const box = byId("dial").getBoundingClientRect();
  const x = event.clientX - box.left - box.width / 2, y = event.clientY - box.top - box.height / 2;
  if (Math.hypot(x, y) > 0.15 * box.width) turn(Math.atan2(-x, -y) * 180 / Math.PI);
}

function controls() {
  const dial = byId("dial");
  dial.addEventListener("pointerdown", event => { dial.setPointerCapture(event.pointerId); point(event); });
  dial.addEventListener("pointermove", event => { if (dial.hasPointerCapture(event.pointerId)) point(event); });
  dial.addEventListener("keydown", event => {
    const step = { ArrowRight: 5, ArrowUp: 5, ArrowLeft: -5, ArrowDown: -5, PageUp: 45, PageDown: -45 }[event.key];
    const end = { Home: 0, End: 180 }[event.key];
    if (step === undefined && end === undefined) return;
    event.preventDefault();
    turn(end === undefined ? state.angle + step : end);
  });
  byId("file").addEventListener("change", event => {
    if (event.target.files[0]) take(event.target.files[0]);
    event.target.value = "";  // the same file can be chosen again
  });
  byId("moves").addEventListener("change", event => {
    state.moves = event.target.value;
    state.angle = 0;
    describe();
    showAngle();
    remember();
    renew();
  });
  byId("mirror").addEventListener("change", event => { state.mirror = event.target.checked; remember(); renew(); });
  byId("windows").addEventListener("input", event => setWindows(Number(event.target.value)));
  byId("tuning").addEventListener("click", pickTuning);
  byId("invert").addEventListener("change", event => { state.invert = event.target.checked; if (state.upload) renew(); });
  for (const name of ["dragenter", "dragover"]) document.addEventListener(name, event => {
    event.preventDefault();
    document.body.classList.add("dropping");
  });
  document.addEventListener("dragleave", event => { if (!event.relatedTarget) document.body.classList.remove("dropping"); });
  document.addEventListener("drop", event => {
    event.preventDefault();
    document.body.classList.remove("dropping");
    if (event.dataTransfer.files[0]) take(event.dataTransfer.files[0]);
  });
  byId("label").addEventListener("change", event => { state.label = event.target.value; state.offset = 0; remember(); gallery(); });
  byId("order").addEventListener("change", event => { state.order = event.target.value; state.offset = 0; remember(); gallery(); });
  byId("before").addEventListener("click", () => page(-LIMIT));
  byId("after").addEventListener("click", () => page(LIMIT));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { drawCurve(); drawTuning(); });
  addEventListener("hashchange", start);
}

function take(file) {
  if (file.size > 8 * 1024 * 1024) { notify(`${file.name} is larger than 8 MB.`); return; }
  const reader = new FileReader();
  reader.onload = () => counted(async () => {
    const upload = { name: file.name, data: reader.result };
    try { await question(0, upload); } catch (error) { notify(error.message); return; }  // keep the current image
    state.upload = upload;
    for (const button of byId("samples").children) button.setAttribute("aria-pressed", false);
    remember(true);
    await renew();
  });
  reader.onerror = () => notify(`${file.name} cannot be read.`);
  reader.onloadend = () => count(-1);
  count(1);
  reader.readAsDataURL(file);
}

// ------------------------------------------------------------ start

async function start() {
  recall();
  byId("label").value = state.label;
  byId("order").value = state.order;
  byId("mirror").checked = state.mirror;
  describe();
  showAngle();
  showWindows();
  const found = await gallery();
  if (state.sample === null && found.length && !state.upload) state.sample = found[0].id;
  for (const button of byId("samples").children)
    button.setAttribute("aria-pressed", Number(button.dataset.id) === state.sample);
  byId("around").hidden = state.sample === null && !state.upload;
  if (state.sample === null && !state.upload)
    byId("networks").replaceChildren(make("p", { class: "soft" }, "Drop an image anywhere on the page, or open a file."));
  await renew();
}

addEventListener("DOMContentLoaded", async () => {
  try {
    const found = await ask("api/models");
    models = found.models;
    kinds = found.moves;
    state.moves = kinds[0];
    for (const kind of kinds) byId("moves").append(make("option", { value: kind }, kind === "hue" ? "hue" : "rotation"));
    byId("choice").hidden = kinds.length < 2;
    byId("mirroring").hidden = models.every(model => !model.mirrors);
    byId("inverting").hidden = models[0].channels !== 1;
    byId("about").textContent = `${models.map(model => `${model.name} (${model.about})`).join(" and ")}. ${found.note}`;
    byId("cost").hidden = !tuning();
    byId("gallery").hidden = Boolean(found.note);
    byId("opening").hidden = models.every(model => model.windows === null);
    for (const name of models[0].classes) byId("label").append(make("option", { value: name }, name));
    controls();
    await start();
    document.body.dataset.ready = "yes";
  } catch (error) { notify(error.message); }
});
