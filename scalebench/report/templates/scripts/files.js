// Files inside the page are packed; who has scripts gets them unpacked.
const canUnpack = typeof DecompressionStream !== "undefined";

const unpackedText = (text) => {
  const letters = atob(text);
  const packed = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i += 1) packed[i] = letters.charCodeAt(i);
  const content = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(content);
};
window.scalebenchUnpacked = unpackedText;

const unpacked = (link) => unpackedText(link.href.split(",")[1]);

const handOut = (blob, name) => {
  const url = URL.createObjectURL(blob);
  Object.assign(document.createElement("a"), { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
};

const startFiles = () => {
  for (const link of document.querySelectorAll(".downloads a")) {
    if (!canUnpack) break;
    link.addEventListener("click", async (event) => {
      event.preventDefault();
      handOut(await unpacked(link).blob(), link.dataset.name);
    });
  }
};

// A row's own part of the summary inside the page.
const startRaw = (view, template) => {
  const run = document.getElementById(template.dataset.run);
  const link = run.querySelector('.downloads a[data-name="summary.json"]');
  const text = view.querySelector(".rawtext");
  const [suite, name, size] = JSON.parse(template.dataset.key);
  const read = async () => {
    const { rows: all } = await unpacked(link).json();
    const mine = all.find(
      (row) => row.suite === suite && row.case === name && row.world_size === size,
    );
    return JSON.stringify(mine, null, 1);
  };
  const buttons = [view.querySelector(".raw"), view.querySelector(".rawfile")];
  buttons.forEach((button) => {
    button.hidden = !canUnpack || !link;
  });
  buttons[0].addEventListener("click", async () => {
    text.hidden = !text.hidden;
    buttons[0].textContent = text.hidden ? "Show" : "Hide";
    if (!text.textContent) text.textContent = await read();
  });
  buttons[1].addEventListener("click", async () => {
    const file = `${suite}.${name}.n${size}.json`.replace(/[^\w.-]+/g, "_");
    handOut(new Blob([await read()], { type: "application/json" }), file);
  });
};
