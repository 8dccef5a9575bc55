// The theme that was chosen, before the first paint: a classic script, so that no page is shown in the other one.
(() => {
  const AT = "fairlane-theme";
  const themes = ["light", "dark"];
  function stored() {
    try {
      return localStorage.getItem(AT) ?? "";
    } catch {
      return ""; // storage is switched off: the system's theme
    }
  }
  function apply(theme) {
    document.documentElement.style.colorScheme = themes.includes(theme) ? theme : "";
    document.dispatchEvent(new Event("themechange"));
  }
  apply(stored());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => apply(stored()));
  document.addEventListener("DOMContentLoaded", () => {
    const choice = document.getElementById("theme");
    choice.value = themes.includes(stored()) ? stored() : "";
    choice.addEventListener("change", () => {
      try {
        localStorage.setItem(AT, choice.value);
      } catch {
        // kept for this page alone
      }
      apply(choice.value);
    });
  });
})();
