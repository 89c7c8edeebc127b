"use strict";
// A page of a folder of pages is packed; what they share is here.
const why = document.getElementById("why");
why.hidden = true;

const showWhy = () => {
  why.hidden = false;
};

const openPage = async () => {
  const place = document.getElementById("page");
  const letters = atob(place.textContent);
  const packed = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i += 1) packed[i] = letters.charCodeAt(i);
  const content = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const page = new DOMParser().parseFromString(await new Response(content).text(), "text/html");
  document.title = page.title;
  document.documentElement.className = page.documentElement.className;
  document.head.append(Object.assign(document.createElement("style"), { textContent: STYLE }));
  document.body.replaceWith(document.adoptNode(page.body));
};

