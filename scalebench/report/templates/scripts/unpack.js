"use strict";
// plotly's script is packed inside the page, and runs when the first figure is to be drawn.
(() => {
  let ready = null;

  const unpack = async () => {
    const place = document.getElementById("plotly");
    const script = document.createElement("script");
    script.textContent = await window.scalebenchUnpacked(place.textContent).text();
    document.head.append(script);
    place.remove();
  };

  window.scalebenchPlotly = () => {
    ready ??= unpack().catch(() => {
      document.documentElement.classList.add("no-figures");
    });
    return ready;
  };
})();
