// What a word means, at a glance: on hover, on focus, or at a tap.
const startTerms = () => {
  const tip = Object.assign(document.createElement("div"), { id: "tip", hidden: true });
  tip.setAttribute("role", "tooltip");
  document.body.append(tip);
  const termOf = (event) => event.target.closest?.("a.term");

  const hide = () => {
    tip.hidden = true;
    document.querySelector("[aria-describedby='tip']")?.removeAttribute("aria-describedby");
  };

  const tell = (term) => {
    const found = document.getElementById(term.hash.slice(1));
    if (!found) return;
    hide();
    tip.textContent = found.querySelector("dd").textContent;
    tip.hidden = false;
    term.setAttribute("aria-describedby", "tip");
    const place = term.getBoundingClientRect();
    const { width, height } = tip.getBoundingClientRect();
    const below = place.bottom + height + 12 < innerHeight;
    tip.style.left = `${Math.max(8, Math.min(place.left, innerWidth - width - 8))}px`;
    tip.style.top = `${below ? place.bottom + 6 : place.top - height - 6}px`;
  };

  for (const kind of ["mouseover", "focusin"]) {
    document.addEventListener(kind, (event) => (termOf(event) ? tell(termOf(event)) : hide()));
  }
  document.addEventListener("click", (event) => {
    const term = termOf(event);
    if (!term) return;
    event.preventDefault();
    tell(term);
  });
  addEventListener("scroll", hide, { passive: true, capture: true });
  addEventListener("hashchange", hide);
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || tip.hidden) return;
    event.stopImmediatePropagation();
    hide();
  });
};
