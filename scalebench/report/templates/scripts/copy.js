// What is taken along: the command line, and the overview as text or as a picture.
const SCALE = 2;

const told = (button, text) => {
  const before = button.textContent;
  button.textContent = text;
  setTimeout(() => {
    button.textContent = before;
  }, 2000);
};

const asPicture = async (view) => {
  const { width, height } = view.getBoundingClientRect();
  const copy = view.cloneNode(true);
  copy.querySelectorAll(".take, .skip").forEach((one) => one.remove());
  const dark = getComputedStyle(root).getPropertyValue("--paper").trim() !== "#ffffff";
  const style = document.createElement("style");
  style.textContent = document.querySelector("style").textContent;
  const body = document.createElement("div");
  body.className = "pictured";
  body.append(style, copy);
  const inside = new XMLSerializer().serializeToString(body);
  const size = `width="${SCALE * (width + 48)}" height="${SCALE * (height + 48)}"`;
  const svg =
    `<svg xmlns="http://www.w3.org/2000/svg" ${size} class="report js"` +
    ` viewBox="0 0 ${width + 48} ${height + 48}" data-theme="${dark ? "dark" : "light"}">` +
    `<foreignObject width="100%" height="100%">${inside}</foreignObject></svg>`;
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = SCALE * (width + 48);
  canvas.height = SCALE * (height + 48);
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((go) => canvas.toBlob(go, "image/png"));
};

const copyPicture = async (button) => {
  let blob = null;
  try {
    blob = await asPicture(viewOf(button));
    await navigator.clipboard.write([new ClipboardItem({ "image/png": blob })]);
    told(button, "Copied");
  } catch {
    if (blob) handOut(blob, "overview.png");
    told(button, blob ? "Saved" : "Not possible here");
  }
};

const copyText = async (button) => {
  const source = document.getElementById(button.dataset.text);
  try {
    await navigator.clipboard.writeText(source.textContent);
    told(button, "Copied");
  } catch {
    handOut(new Blob([source.textContent], { type: "text/markdown" }), "overview.md");
    told(button, "Saved");
  }
};

const startCopy = () => {
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
  for (const take of document.querySelectorAll(".take")) take.hidden = false;
  for (const button of document.querySelectorAll(".takepicture")) {
    button.addEventListener("click", () => copyPicture(button));
  }
  for (const button of document.querySelectorAll(".taketext")) {
    button.addEventListener("click", () => copyText(button));
  }
  if (location.search === "?picture") root.classList.add("picture");
};
