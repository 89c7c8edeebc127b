"use strict";
(() => {
  const root = document.documentElement;

  // What is shown of a chart: the traces of its chosen view, less those that are switched off.
  const shown = new Map();
  const numbers = (text) => (text ? text.split(",").map(Number) : []);

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

  const show = (id, layout = {}) => {
    const chart = document.getElementById(id);
    const { view, off } = stateOf(id);
    const visible = chart.data.map((_, i) => !off.has(i) && (view === null || view.has(i)));
    Plotly.update(chart, { visible }, layout);
  };

  const choose = (select) => {
    const { traces, layout, height } = select.selectedOptions[0].dataset;
    const id = select.dataset.chart;
    const state = stateOf(id);
    state.view = traces ? new Set(numbers(traces)) : null;
    if (height) document.getElementById(id).style.height = `${height}px`;
    show(id, JSON.parse(layout));
  };

  const draw = (chart) => {
    const spec = JSON.parse(document.getElementById(`${chart.id}-spec`).textContent);
    Plotly.newPlot(chart, spec.data, spec.layout, {
      responsive: true,
      displaylogo: false,
      displayModeBar: "hover",
      modeBarButtons: [["zoom2d", "resetScale2d", "toImage"]],
    });
    const select = document.querySelector(`.views select[data-chart="${chart.id}"]`);
    if (select) {
      const { traces } = select.selectedOptions[0].dataset;
      stateOf(chart.id).view = traces ? new Set(numbers(traces)) : null;
      if (select.selectedIndex > 0) choose(select);
    }
  };

  const isFirst = (chart) => chart !== undefined && chart === document.querySelector(".chart");

  // One chart after another, so that the page answers in between: from the first one on.
  const drawCharts = (charts) => {
    const [first, ...others] = charts;
    if (performance.getEntriesByName("scalebench-interactive").length === 0 && !isFirst(first)) {
      performance.mark("scalebench-interactive");
    }
    if (first === undefined) {
      performance.mark("scalebench-ready");
      root.dataset.ready = "true";
      return;
    }
    draw(first);
    setTimeout(drawCharts, 0, others);
  };

  const themes = ["system", "light", "dark"];
  const remembered = () => {
    try {
      return localStorage.getItem("scalebench-theme");
    } catch {
      return null;
    }
  };
  const remember = (theme) => {
    try {
      localStorage.setItem("scalebench-theme", theme);
    } catch {
      // Storage is refused in some sandboxes; the switch works for this view all the same.
    }
  };
  const themeButton = document.getElementById("theme");
  const applyTheme = (theme) => {
    if (theme === "system") delete root.dataset.theme;
    else root.dataset.theme = theme;
    themeButton.textContent = `theme: ${theme}`;
    themeButton.dataset.current = theme;
  };
  const stored = remembered();
  applyTheme(themes.includes(stored) ? stored : "system");
  themeButton.hidden = false;
  themeButton.addEventListener("click", () => {
    const next = themes[(themes.indexOf(themeButton.dataset.current) + 1) % themes.length];
    applyTheme(next);
    remember(next);
  });

  for (const button of document.querySelectorAll(".toggle")) {
    button.addEventListener("click", () => {
      const pressed = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(pressed));
      const { off } = stateOf(button.dataset.chart);
      numbers(button.dataset.traces).forEach((i) => (pressed ? off.delete(i) : off.add(i)));
      show(button.dataset.chart);
    });
  }

  for (const button of document.querySelectorAll(".copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const source = document.getElementById(button.dataset.copy);
      try {
        await navigator.clipboard.writeText(source.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(source);
        button.textContent = "Selected";
      }
    });
  }

  // Files inside the page are packed; who has scripts gets them unpacked.
  const unpack = async (link) => {
    const packed = Uint8Array.from(atob(link.href.split(",")[1]), (c) => c.charCodeAt(0));
    const content = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const url = URL.createObjectURL(await new Response(content).blob());
    Object.assign(document.createElement("a"), { href: url, download: link.dataset.name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60000);
  };
  for (const link of document.querySelectorAll(".downloads a")) {
    if (typeof DecompressionStream === "undefined") break;
    link.addEventListener("click", (event) => {
      event.preventDefault();
      unpack(link);
    });
  }

  for (const select of document.querySelectorAll(".views select")) {
    select.addEventListener("change", () => choose(select));
  }

  // Paper is narrower than a screen, and charts do not notice.
  const PAPER_PX = 680;
  const resize = (size) => {
    for (const chart of document.querySelectorAll(".chart.js-plotly-plot")) {
      Plotly.relayout(chart, size);
    }
  };
  addEventListener("beforeprint", () => resize({ width: PAPER_PX, autosize: false }));
  addEventListener("afterprint", () => resize({ width: null, autosize: true }));

  drawCharts(typeof Plotly === "undefined" ? [] : [...document.querySelectorAll(".chart")]);
})();
