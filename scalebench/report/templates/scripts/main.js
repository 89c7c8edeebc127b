const start = () => {
  startTheme();
  startFiles();
  startCopy();
  startCharts();
  startPrint();
  const withViews = startViews();
  startSearch();
  if (!withViews) {
    watchCharts(document);
    enqueue([]);
  }
  performance.mark("scalebench-interactive");
};

start();
