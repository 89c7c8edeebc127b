// Light, dark, or as the system has it; remembered.
const themes = ["system", "light", "dark"];

const remembered = () => {
  try {
    return localStorage.getItem("scalebench-theme");
  } catch {
    return null;
  }
};

const remember = (theme) => {
  try {
    localStorage.setItem("scalebench-theme", theme);
  } catch {
    // Storage is refused in some sandboxes; the switch works for this view all the same.
  }
};

const themeButton = document.getElementById("theme");

const applyTheme = (theme) => {
  if (theme === "system") delete root.dataset.theme;
  else root.dataset.theme = theme;
  themeButton.textContent = `theme: ${theme}`;
  themeButton.dataset.current = theme;
};

const startTheme = () => {
  const stored = remembered();
  applyTheme(themes.includes(stored) ? stored : "system");
  themeButton.hidden = false;
  themeButton.addEventListener("click", () => {
    const next = themes[(themes.indexOf(themeButton.dataset.current) + 1) % themes.length];
    applyTheme(next);
    remember(next);
  });
};
