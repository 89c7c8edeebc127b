// One view at a time: the overview, a suite, a row; which one stands behind "#".
const views = new Map();
const rows = new Map();
let open = null;
let openRow = null;
const scrolled = new Map();

const tidy = (path) =>
  path
    .split("/")
    .map((part) => {
      let plain = part;
      try {
        plain = decodeURIComponent(part);
      } catch {
        // Not an address of this page: it is looked up as it is.
      }
      return encodeURIComponent(plain).replaceAll("%3D", "=");
    })
    .join("/");

const here = () => tidy(location.hash.slice(1));

const viewOf = (element) => element.closest(".view");

// What an address leads to: a view, a row, or the view around an element.
const lookUp = (path) => {
  if (views.has(path)) return { view: views.get(path) };
  if (rows.has(path)) return { row: rows.get(path) };
  let id = path;
  try {
    id = decodeURIComponent(path);
  } catch {
    return null;
  }
  const element = document.getElementById(id) || document.getElementById(legacy(id));
  if (!element) return null;
  const view = viewOf(element) || element.querySelector(".view");
  return view ? { view, element } : null;
};

// Addresses of earlier versions: run-1-speedup led to the first suite's.
const legacy = (id) => id.replace(/^(run-\d+)-([a-z]+)$/, "$1-suite-1-$2");

const linksTo = (path) => document.querySelectorAll(`#nav a[href="#${CSS.escape(path)}"]`);

const markCurrent = (path, suitePath) => {
  for (const link of document.querySelectorAll("#nav a[aria-current]")) {
    link.removeAttribute("aria-current");
  }
  for (const link of linksTo(suitePath)) {
    link.setAttribute("aria-current", suitePath === path ? "page" : "true");
  }
};

// Under the open suite the list at the side has its sections.
const listSections = (view, path) => {
  document.getElementById("sections")?.remove();
  const titles = [...view.querySelectorAll("h2[id]")];
  const [link] = linksTo(path);
  if (!link || titles.length < 3) return;
  const list = Object.assign(document.createElement("ol"), { id: "sections" });
  for (const title of titles) {
    if (title.closest(".suitecard, .tryfirst")) continue;
    const entry = document.createElement("a");
    entry.href = `#${title.id}`;
    entry.textContent = title.textContent.trim();
    entry.addEventListener("click", (event) => {
      event.preventDefault();
      reveal(title);
    });
    const item = document.createElement("li");
    item.append(entry);
    list.append(item);
  }
  if (list.children.length) link.after(list);
};

const reveal = (element) => {
  const fold = element.closest(".fold");
  if (fold) setFold(fold, true);
  element.scrollIntoView({ block: "start" });
  element.closest("section")?.classList.add("found");
  setTimeout(() => element.closest("section")?.classList.remove("found"), 1200);
};

const closeRow = () => {
  if (!openRow) return;
  forgetCharts(openRow);
  openRow.remove();
  openRow = null;
  root.classList.remove("row-open");
};

// Titles of tables and figures stand one level below their section's.
const levelTitles = (within) => {
  for (const title of within.querySelectorAll("h4")) {
    const below = title.closest("section")?.querySelector("h2");
    title.setAttribute("aria-level", below ? "3" : "2");
  }
};

// The views of rows are packed together; they are unpacked before the first one is opened.
const packs = new Map();
const packOf = (run) => {
  if (!packs.has(run)) {
    const place = document.getElementById(`${run}-rows`);
    packs.set(run, unpackedText(place.textContent).json());
  }
  return packs.get(run);
};

const build = async (template) => {
  const found = await packOf(template.dataset.run);
  const holder = document.createElement("template");
  holder.innerHTML = found[template.dataset.view];
  const view = holder.content.firstElementChild;
  closeRow();
  levelTitles(view);
  template.before(view);
  openRow = view;
  root.classList.add("row-open");
  startRaw(view, template);
  return view;
};

const pageTitle = document.title;

const go = async (focus = true) => {
  const path = here();
  const target = lookUp(path);
  const unknown = document.getElementById("unknown");
  unknown.hidden = target !== null;
  if (target === null) {
    unknown.textContent = `This page has nothing at “${path.slice(0, 120)}”: here is the overview.`;
  }
  const start = views.get("") || views.values().next().value;
  if (!start) return;
  delete root.dataset.ready;
  const found = target || { view: start };
  closeRow();
  const view = found.row ? await build(found.row) : found.view;
  if (path !== here()) {
    if (found.row) closeRow();
    return;
  }
  root.dataset.open = path;
  open?.classList.remove("open");
  open = view;
  view.classList.add("open");
  const suitePath = found.row ? found.row.dataset.suite : view.dataset.view;
  markCurrent(path, suitePath);
  listSections(found.row ? views.get(suitePath) : view, suitePath);
  if (found.row) document.getElementById("sections")?.remove();
  const title = view.dataset.title;
  document.title = title === "Overview" ? pageTitle : `${title} · ${pageTitle}`;
  setMenu(false);
  if (found.element && found.element !== view) reveal(found.element);
  else scrollTo(0, scrolled.get(path) || 0);
  if (focus && !found.element) view.querySelector("h1")?.focus({ preventScroll: true });
  watchCharts(view);
  enqueue([]);
  watchScroll(path);
};

let current = "";
const watchScroll = (path) => {
  current = path;
};

const setFold = (fold, opened) => {
  fold.classList.toggle("closed", !opened);
  fold.querySelector("h2 button, h4 button").setAttribute("aria-expanded", String(opened));
};

// A section below the first ones is a line: its title and its conclusion.
const startFolds = () => {
  for (const fold of document.querySelectorAll(".fold")) {
    const title = fold.querySelector("h2, h4");
    const button = document.createElement("button");
    Object.assign(button, { type: "button", textContent: title.textContent });
    title.replaceChildren(button);
    const said = fold.querySelector(".conclusion, figcaption");
    if (said && title.matches("h2")) {
      const brief = document.createElement("p");
      Object.assign(brief, { className: "inbrief quiet", textContent: said.textContent });
      brief.addEventListener("click", () => button.click());
      title.after(brief);
    }
    setFold(fold, false);
    button.addEventListener("click", () => {
      setFold(fold, fold.classList.contains("closed"));
    });
  }
};

// What a card says beyond its lines comes at a click.
const startCards = () => {
  for (const rest of document.querySelectorAll(".card .rest")) {
    const button = document.createElement("button");
    Object.assign(button, { type: "button", className: "moretext", textContent: "more" });
    const name = rest.closest(".card").querySelector("h3").textContent.trim();
    button.setAttribute("aria-expanded", "false");
    button.setAttribute("aria-label", `more about ${name}`);
    rest.classList.add("closed");
    button.addEventListener("click", () => {
      const closed = rest.classList.toggle("closed");
      button.setAttribute("aria-expanded", String(!closed));
      button.textContent = closed ? "more" : "less";
    });
    rest.before(button);
  }
};

const menuButton = document.getElementById("menu");
const setMenu = (opened) => {
  if (!menuButton) return;
  menuButton.setAttribute("aria-expanded", String(opened));
  root.classList.toggle("menu-open", opened);
};

// Rows are opened from tables, from marks of the small pictures, and from figures.
const openPath = (path) => {
  if (path && path !== here()) location.hash = path;
};

const openPoint = (chart, point) => {
  if (!point) return;
  const suite = viewOf(chart)?.dataset.view;
  const hover = [point.customdata].flat().find((text) => typeof text === "string") || "";
  const name = point.data?.name;
  const told = hover.startsWith("<b>") ? hover : `<b>${name}</b>, ${hover}`;
  const place = selectOf(chart.id)?.selectedOptions[0].textContent;
  let best = null;
  let length = 0;
  for (const template of rows.values()) {
    if (suite && template.dataset.suite !== suite && !viewOf(chart).matches(".comparison")) continue;
    for (const text of JSON.parse(template.dataset.texts)) {
      if (text.length > length && told.startsWith(text)) [best, length] = [template, text.length];
    }
    if (!best && place && place === template.dataset.place) best = template;
  }
  if (best) openPath(tidy(best.dataset.view));
};

const siblings = () => {
  const paths = openRow
    ? [...rows.values()].map((template) => tidy(template.dataset.view))
    : [...views.keys()];
  return [paths, paths.indexOf(here())];
};

const up = () => {
  if (openRow) {
    const [link] = [...openRow.querySelectorAll(".trail a")].slice(-1);
    openPath(tidy(link.getAttribute("href").slice(1)));
  } else if (here() !== "") location.hash = "";
};

const onKey = (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest?.("input, select, textarea, .chart, .scroll, pre")) return;
  if (event.key === "/") {
    event.preventDefault();
    setMenu(true);
    document.getElementById("query")?.focus();
  } else if (event.key === "Escape") up();
  else if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
    const [paths, index] = siblings();
    const next = paths[index + (event.key === "ArrowRight" ? 1 : -1)];
    if (index >= 0 && next !== undefined) location.hash = next;
  }
};

const startViews = () => {
  for (const view of document.querySelectorAll(".view[data-view]")) {
    const path = tidy(view.dataset.view);
    if (!views.has(path)) views.set(path, view);
  }
  if (views.size === 0) return false;
  for (const template of document.querySelectorAll("template.rowview")) {
    const path = tidy(template.dataset.view);
    if (!rows.has(path)) rows.set(path, template);
  }
  root.classList.add("js");
  levelTitles(document);
  document.querySelector(".keys").hidden = false;
  menuButton.hidden = false;
  menuButton.addEventListener("click", () => setMenu(!root.classList.contains("menu-open")));
  document.addEventListener("click", (event) => {
    const cell = event.target.closest?.("[data-row]");
    if (!cell || event.target.closest("a, button, summary") || String(getSelection())) return;
    openPath(tidy(cell.dataset.row));
  });
  document.addEventListener("keydown", onKey);
  addEventListener("scroll", () => scrolled.set(current, scrollY), { passive: true });
  addEventListener("hashchange", () => go());
  startFolds();
  startCards();
  go(false);
  return true;
};
