/** A button that copies a text and says so. */
import { useEffect, useState } from "preact/hooks";

export function Copy(props: { text: () => string; children: string }) {
  const [told, setTold] = useState("");
  useEffect(() => {
    if (told === "") return;
    const timer = setTimeout(() => setTold(""), 2000);
    return () => clearTimeout(timer);
  }, [told]);

  async function copy(): Promise<void> {
    try {
      await navigator.clipboard.writeText(props.text());
      setTold("Copied");
    } catch {
      // Not allowed over plain http beyond this machine.
      setTold("The browser does not allow it");
    }
  }
  return (
    <button type="button" class="copy" onClick={() => void copy()}>
      <span aria-hidden={told !== ""}>{props.children}</span>
      <span class="told" aria-live="polite">
        {told}
      </span>
    </button>
  );
}
