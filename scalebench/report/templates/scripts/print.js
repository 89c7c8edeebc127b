// Paper is narrower than a screen, and charts do not notice. It shows overview and suites: of a
// section its first figure, two of them side by side, and of one that is closed its conclusion.
const PAPER_PX = 680;
const HALF_PX = 325;
const HALF_HEIGHT_PX = 250;
const NOT_ON_PAPER = ".fold.closed, .suiteview > .tables:not(.fold) figure ~ figure";

const paperSize = (chart) =>
  chart.closest(".half")
    ? { width: HALF_PX, height: HALF_HEIGHT_PX, autosize: false }
    : { width: PAPER_PX, autosize: false };

const startPrint = () => {
  addEventListener("beforeprint", () => {
    if (!hasPlotly()) return;
    const printed = root.classList.contains("row-open") ? openRow : document;
    for (const chart of printed.querySelectorAll(".chart")) {
      if (chart.closest(NOT_ON_PAPER)) continue;
      if (isDrawn(chart)) Plotly.relayout(chart, paperSize(chart));
      else draw(chart, paperSize(chart));
    }
  });
  addEventListener("afterprint", () => {
    for (const chart of document.querySelectorAll(".chart.js-plotly-plot")) {
      Plotly.relayout(chart, { width: null, height: null, autosize: true });
    }
  });
};
