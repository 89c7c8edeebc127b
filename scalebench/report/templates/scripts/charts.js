// Figures are drawn when they come into view, one after another.

// What is shown of a chart: the traces of its chosen view, less those that are switched off.
const shown = new Map();
const numbers = (text) => (text ? text.split(",").map(Number) : []);
const hasPlotly = () => typeof Plotly !== "undefined";
const isDrawn = (chart) => chart.classList.contains("js-plotly-plot");
const selectOf = (id) => document.querySelector(`.views select[data-chart="${CSS.escape(id)}"]`);

const stateOf = (id) => {
  if (!shown.has(id)) {
    const off = new Set();
    for (const button of document.querySelectorAll('.toggle[aria-pressed="false"]')) {
      if (button.dataset.chart === id) numbers(button.dataset.traces).forEach((i) => off.add(i));
    }
    shown.set(id, { view: null, off });
  }
  return shown.get(id);
};

const visibleOf = (id, count) => {
  const { view, off } = stateOf(id);
  return Array.from({ length: count }, (_, i) => !off.has(i) && (view === null || view.has(i)));
};

const show = (id, layout = {}) => {
  const chart = document.getElementById(id);
  if (!isDrawn(chart)) return;
  Plotly.update(chart, { visible: visibleOf(id, chart.data.length) }, layout);
};

const choose = (select) => {
  const { traces, layout, height } = select.selectedOptions[0].dataset;
  const id = select.dataset.chart;
  stateOf(id).view = traces ? new Set(numbers(traces)) : null;
  if (height) document.getElementById(id).style.height = `${height}px`;
  show(id, JSON.parse(layout));
};

// Write "yaxis.range" and the like into a layout that is not drawn yet.
const setDeep = (layout, changes) => {
  for (const [path, value] of Object.entries(changes)) {
    const names = path.split(".");
    const last = names.pop();
    let place = layout;
    for (const name of names) place = place[name] ??= {};
    place[last] = value;
  }
};

const specOf = (chart) =>
  JSON.parse(document.getElementById(`${chart.dataset.source || chart.id}-spec`).textContent);

// The view of a row shows one of the views of its suite's figure.
const borrow = (chart, spec) => {
  stateOf(chart.id).view = chart.dataset.shown ? new Set(numbers(chart.dataset.shown)) : null;
  const visible = visibleOf(chart.id, spec.data.length);
  spec.data.forEach((trace, i) => {
    trace.visible = visible[i];
  });
  setDeep(spec.layout, JSON.parse(chart.dataset.layout));
  delete spec.layout.height;
};

const draw = (chart, size = {}) => {
  if (isDrawn(chart) || !hasPlotly()) return;
  const spec = specOf(chart);
  if (chart.dataset.source) borrow(chart, spec);
  Object.assign(spec.layout, size);
  Plotly.newPlot(chart, spec.data, spec.layout, {
    responsive: true,
    displaylogo: false,
    displayModeBar: "hover",
    modeBarButtons: [["zoom2d", "resetScale2d", "toImage"]],
  });
  chart.on("plotly_click", (event) => openPoint(chart, event.points[0]));
  const select = selectOf(chart.id);
  if (select) {
    const { traces } = select.selectedOptions[0].dataset;
    stateOf(chart.id).view = traces ? new Set(numbers(traces)) : null;
    if (select.selectedIndex > 0) choose(select);
  }
};

const waiting = [];
let drawing = false;

// The page answers before plotly's script, which is long, has been read.
const awaitPlotly = async () => {
  if (hasPlotly()) return;
  if (document.readyState === "loading") {
    await new Promise((go) => addEventListener("DOMContentLoaded", go, { once: true }));
  }
  await window.scalebenchPlotly?.();
};

const drawNext = async () => {
  if (waiting.length) await awaitPlotly();
  const chart = waiting.shift();
  if (chart === undefined) {
    drawing = false;
    markReady();
    return;
  }
  if (chart.isConnected && chart.offsetParent !== null) draw(chart);
  setTimeout(drawNext, 0);
};

const markReady = () => {
  root.dataset.ready = "true";
  if (performance.getEntriesByName("scalebench-ready").length === 0) {
    performance.mark("scalebench-ready");
  }
};

const enqueue = (charts) => {
  waiting.push(...charts);
  if (drawing) return;
  drawing = true;
  setTimeout(drawNext, 0);
};

const AHEAD_PX = 400;
const inSight =
  typeof IntersectionObserver === "undefined"
    ? null
    : new IntersectionObserver(
        (entries) => {
          const near = entries.filter((entry) => entry.isIntersecting).map((entry) => entry.target);
          near.forEach((chart) => inSight.unobserve(chart));
          enqueue(near.filter((chart) => !isDrawn(chart)));
        },
        { rootMargin: `${AHEAD_PX}px 0px` },
      );

const watchCharts = (within) => {
  const charts = [...within.querySelectorAll(".chart")].filter((chart) => !isDrawn(chart));
  if (inSight) charts.forEach((chart) => inSight.observe(chart));
  else enqueue(charts);
};

const forgetCharts = (within) => {
  for (const chart of within.querySelectorAll(".chart")) {
    inSight?.unobserve(chart);
    shown.delete(chart.id);
    if (isDrawn(chart)) Plotly.purge(chart);
  }
};

const startCharts = () => {
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.(".toggle");
    if (!button) return;
    const pressed = button.getAttribute("aria-pressed") !== "true";
    const { off } = stateOf(button.dataset.chart);
    button.setAttribute("aria-pressed", String(pressed));
    numbers(button.dataset.traces).forEach((i) => (pressed ? off.delete(i) : off.add(i)));
    show(button.dataset.chart);
  });
  for (const select of document.querySelectorAll(".views select")) {
    select.addEventListener("change", () => choose(select));
  }
};
