// Not at once: who clicks right away is not to wait for it.
const SOON_MS = 600;

const start = () => {
  startTheme();
  startFiles();
  startCopy();
  startTerms();
  startCharts();
  startPrint();
  const withViews = startViews();
  startSearch();
  if (!withViews) {
    watchCharts(document);
    enqueue([]);
  }
  performance.mark("scalebench-interactive");
  setTimeout(awaitPlotly, SOON_MS);
};

start();
