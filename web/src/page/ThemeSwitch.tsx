/** Light, dark, or as the system has it; kept in this browser. */
import { useEffect, useState } from "preact/hooks";

const KEY = "theme";
const THEMES = ["auto", "light", "dark"] as const;
type Theme = (typeof THEMES)[number];

function stored(): Theme {
  try {
    return THEMES.find((one) => one === localStorage.getItem(KEY)) ?? "auto";
  } catch {
    return "auto"; // a browser that stores nothing
  }
}

export function ThemeSwitch() {
  const [theme, setTheme] = useState(stored);
  useEffect(() => {
    const { dataset } = document.documentElement;
    if (theme === "auto") delete dataset.theme;
    else dataset.theme = theme;
    try {
      localStorage.setItem(KEY, theme);
    } catch {
      // It lasts as long as the page.
    }
  }, [theme]);
  return (
    <select
      aria-label="Colours"
      value={theme}
      onChange={(event) => setTheme(event.currentTarget.value as Theme)}
    >
      {THEMES.map((one) => (
        <option key={one} value={one}>
          {one === "auto" ? "Auto" : one === "light" ? "Light" : "Dark"}
        </option>
      ))}
    </select>
  );
}
