"use strict";
(() => {
  const root = document.documentElement;

  const drawCharts = () => {
    for (const chart of document.querySelectorAll(".chart")) {
      const spec = JSON.parse(document.getElementById(`${chart.id}-spec`).textContent);
      Plotly.newPlot(chart, spec.data, spec.layout, {
        responsive: true,
        displaylogo: false,
        displayModeBar: "hover",
        modeBarButtons: [["zoom2d", "resetScale2d", "toImage"]],
      });
    }
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
      const shown = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(shown));
      const traces = button.dataset.traces.split(",").map(Number);
      Plotly.restyle(button.dataset.chart, { visible: shown }, traces);
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

  if (typeof Plotly !== "undefined") drawCharts();
  root.dataset.ready = "true";
})();
