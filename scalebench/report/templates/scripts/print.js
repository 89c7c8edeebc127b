// Paper is narrower than a screen, and charts do not notice; it shows overview and suites,
// and of a section that is closed its conclusion.
const PAPER_PX = 680;

const startPrint = () => {
  addEventListener("beforeprint", () => {
    if (!hasPlotly()) return;
    const printed = root.classList.contains("row-open") ? openRow : document;
    for (const chart of printed.querySelectorAll(".chart")) {
      if (chart.closest(".fold.closed")) continue;
      if (isDrawn(chart)) Plotly.relayout(chart, { width: PAPER_PX, autosize: false });
      else draw(chart, { width: PAPER_PX, autosize: false });
    }
  });
  addEventListener("afterprint", () => {
    for (const chart of document.querySelectorAll(".chart.js-plotly-plot")) {
      Plotly.relayout(chart, { width: null, autosize: true });
    }
  });
};
