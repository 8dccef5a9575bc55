// Sets the chosen theme before the first paint; a classic script, so that it runs before rendering.
(() => {
  const AT = "fairlane-theme";
  const themes = ["light", "dark"];
  function stored() {
    try {
      return localStorage.getItem(AT) ?? "";
    } catch {
      return ""; // storage is disabled: use the system's theme
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
        // kept for this page only
      }
      apply(choice.value);
    });
  });
})();
