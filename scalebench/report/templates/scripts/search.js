// Search over cases, operations and marks: every word has to occur.
const MOST_FOUND = 12;

const entries = () =>
  [...rows.values()].map((template) => {
    const { place, label, operations, marks, status } = template.dataset;
    const split = (text) => (text ? text.split("|") : []);
    const extra = [...split(operations), ...split(marks), status === "ok" ? "" : status];
    return {
      link: tidy(template.dataset.view),
      place,
      suite: template.dataset.in,
      extra: extra.filter(Boolean),
      text: [place, template.dataset.in, label, ...extra].join(" ").toLowerCase(),
    };
  });

const startSearch = () => {
  const form = document.getElementById("search");
  if (!form || rows.size === 0) return;
  form.hidden = false;
  const query = document.getElementById("query");
  const list = document.getElementById("found");
  const nothing = document.getElementById("nothing");
  let known = null;

  const line = (entry, words) => {
    const link = document.createElement("a");
    link.href = `#${entry.link}`;
    const why = entry.extra.filter((text) => words.some((word) => text.toLowerCase().includes(word)));
    link.textContent = entry.place;
    const small = document.createElement("small");
    small.textContent = [entry.suite, ...why].join(" · ");
    link.append(small);
    const item = document.createElement("li");
    item.append(link);
    return item;
  };

  const search = () => {
    const words = query.value.toLowerCase().split(/\s+/).filter(Boolean);
    known ??= entries();
    const found = words.length
      ? known.filter((entry) => words.every((word) => entry.text.includes(word)))
      : [];
    list.replaceChildren(...found.slice(0, MOST_FOUND).map((entry) => line(entry, words)));
    list.hidden = found.length === 0;
    const more = found.length - MOST_FOUND;
    nothing.textContent = more > 0 ? `${more} more rows` : "";
    if (words.length && !found.length) nothing.textContent = "No row has all these words.";
  };

  const clear = () => {
    query.value = "";
    search();
  };

  query.addEventListener("input", search);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    list.querySelector("a")?.click();
  });
  form.addEventListener("keydown", (event) => {
    const links = [...list.querySelectorAll("a")];
    const place = links.indexOf(document.activeElement);
    if (event.key === "ArrowDown") links[Math.min(place + 1, links.length - 1)]?.focus();
    else if (event.key === "ArrowUp") (links[place - 1] || query).focus();
    else if (event.key === "Escape") {
      clear();
      query.blur();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  });
  list.addEventListener("click", () => setTimeout(clear, 0));
};
