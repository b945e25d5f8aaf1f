/** A word that says what it means when it is pointed at, touched, or reached by keys. */
import { useId, useRef } from "preact/hooks";
import { WORDS, type Word } from "./words";

const MARGIN = 8;

interface Props {
  word: Word;
  /** Said in place of the text, where that is only a mark. */
  label?: string;
  children: string;
}

export function Term({ word, label, children }: Props) {
  const id = useId();
  const button = useRef<HTMLButtonElement>(null);
  const note = useRef<HTMLSpanElement>(null);
  // In the layer above all others, which knows nothing of the word's place.
  function show(): void {
    if (!button.current || !note.current?.showPopover) return;
    note.current.showPopover();
    const { left, top, bottom } = button.current.getBoundingClientRect();
    const { offsetWidth, offsetHeight, style } = note.current;
    const below = bottom + MARGIN / 2;
    const fits = below + offsetHeight <= innerHeight;
    const right = document.documentElement.clientWidth - offsetWidth - MARGIN;
    style.left = `${Math.max(MARGIN, Math.min(left, right))}px`;
    style.top = `${fits ? below : top - offsetHeight - MARGIN / 2}px`;
  }
  const hide = (): void => note.current?.hidePopover?.();
  return (
    <>
      <button
        type="button"
        class="term"
        ref={button}
        aria-label={label}
        aria-describedby={id}
        onMouseEnter={show}
        onMouseLeave={hide}
        onFocus={show}
        onBlur={hide}
        onClick={show}
        onKeyDown={(event) => {
          if (event.key !== "Escape" || !note.current?.matches(":popover-open")) return;
          event.preventDefault();
          hide();
        }}
      >
        {children}
      </button>
      <span class="note" id={id} ref={note} role="tooltip" popover="manual">
        {WORDS[word]}
      </span>
    </>
  );
}
