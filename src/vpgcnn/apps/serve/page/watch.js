"use strict";
// Asks the server every few seconds and draws what it answers. Nothing is loaded from elsewhere.

const SECONDS = 3, COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#888888"];
const byId = name => document.getElementById(name);
const ink = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function draw(place, curves, format, top) {
  if (typeof Plotly === "undefined") return;
  byId(place).hidden = !curves.length;
  if (!curves.length) return;
  const traces = curves.map((curve, number) => ({
    x: curve.steps, y: curve.values, name: curve.name, mode: curve.steps.length < 2 ? "markers" : "lines",
    connectgaps: false, line: { color: COLORS[number % COLORS.length], width: curve.name === "training" ? 1 : 2.5 },
    opacity: curve.name === "training" ? 0.5 : 1, hovertemplate: `step %{x}: %{y:${format}}`,
  }));
  const axis = { gridcolor: ink("--line"), zerolinecolor: ink("--line") };
  Plotly.react(place, traces, {
    height: 300, margin: { l: 52, r: 12, t: 8, b: 44 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: ink("--ink"), family: "system-ui, sans-serif" }, showlegend: true,
    legend: { orientation: "h", y: 1.02, yanchor: "bottom" }, xaxis: { ...axis, title: { text: "step", standoff: 4 } },
    yaxis: { ...axis, tickformat: format, ...(top ? { range: [0, top] } : { rangemode: "tozero" }) },
  }, { displayModeBar: false, responsive: true });
}

function tile([number, text]) {
  const box = document.createElement("div"), big = document.createElement("b");
  box.className = "tile";
  big.textContent = number;
  box.append(big, text);
  return box;
}

function show(run) {
  document.title = `${run.steps ? Math.floor(100 * run.step / run.steps) + " % " : ""}${run.name}`;
  byId("name").textContent = run.name;
  byId("folder").textContent = run.folder;
  byId("state").textContent = run.sentence;
  byId("bar").max = run.steps || 1;
  byId("bar").value = run.step;
  byId("numbers").replaceChildren(...run.numbers.map(tile));
  byId("note").textContent = run.note && `Shown: ${run.note}.`;
  draw("accuracy", run.accuracy, ".0%", 1.02);
  draw("loss", run.loss, ".3g");
  draw("theta", run.theta, ".2f", 1.02);
}

async function look() {
  let again = true;
  try {
    const answer = await fetch("api/run");
    const run = await answer.json();
    if (!answer.ok) throw new Error(run.detail);
    show(run);
    again = run.state !== "finished";
  } catch (error) {
    byId("state").textContent = `no answer: ${error.message}`;
  }
  document.body.dataset.looked = Number(document.body.dataset.looked || 0) + 1;
  if (again) setTimeout(look, 1000 * SECONDS);
}

look();
