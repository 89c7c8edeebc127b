"use strict";
// plotly's script is packed inside the page, and runs when the first figure is to be drawn.
(() => {
  let ready = null;

  const unpack = async () => {
    const place = document.getElementById("plotly");
    const packed = Uint8Array.from(atob(place.textContent), (c) => c.charCodeAt(0));
    const content = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(content).text();
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
