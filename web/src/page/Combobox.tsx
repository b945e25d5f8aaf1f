/** A text field with suggestions: the ARIA pattern of a combobox with a list. */
import { useEffect, useId, useRef, useState } from "preact/hooks";

export interface Suggestion {
  value: string;
  /** Further names that are searched. */
  others: readonly string[];
  about: string;
  /** What it is listed under. */
  group?: string;
}

interface Props {
  id: string;
  value: string;
  suggestions: readonly Suggestion[];
  onInput: (value: string) => void;
  label?: string;
  placeholder?: string;
  describedBy?: string;
  isWrong?: boolean;
}

const WAIT_MILLISECONDS = 1000;

export function Combobox(props: Props) {
  const { suggestions, onInput } = props;
  // Half a name is no answer yet: it is handed on when chosen, left, whole, or left alone a while.
  const [draft, setDraft] = useState<string | null>(null);
  const value = draft ?? props.value;
  const [isOpen, setOpen] = useState(false);
  // Until something is typed, all of them are offered and not only what matches the value.
  const [isTyped, setTyped] = useState(false);
  const [active, setActive] = useState(-1);
  const list = useRef<HTMLDivElement>(null);
  const listId = useId();
  const shown = isOpen ? matching(suggestions, isTyped ? value : "") : [];

  useEffect(() => {
    document.getElementById(`${listId}-${active}`)?.scrollIntoView({ block: "nearest" });
  }, [active]);

  useEffect(() => {
    if (draft === null) return;
    const timer = setTimeout(() => hand(draft), WAIT_MILLISECONDS);
    return () => clearTimeout(timer);
  }, [draft]);

  function hand(text: string): void {
    setDraft(null);
    if (text !== props.value) onInput(text);
  }
  function open(): void {
    if (isOpen) return;
    setOpen(true);
    setTyped(false);
    setActive(-1);
  }
  function choose(suggestion: Suggestion | undefined): void {
    if (suggestion) hand(suggestion.value);
    setOpen(false);
  }
  function move(step: number): void {
    if (!isOpen) open();
    else if (shown.length > 0) setActive((active + step + shown.length) % shown.length);
  }
  function pressed(event: KeyboardEvent): void {
    if (event.key === "ArrowDown") move(1);
    else if (event.key === "ArrowUp") move(active < 0 ? 0 : -1);
    else if (event.key === "Enter" && isOpen && active >= 0) choose(shown[active]);
    else if (event.key === "Enter" && draft !== null) hand(draft);
    else if (event.key === "Escape" && isOpen) setOpen(false);
    else return;
    event.preventDefault();
  }

  return (
    <div class="combobox">
      <input
        id={props.id}
        type="text"
        role="combobox"
        autocomplete="off"
        spellcheck={false}
        aria-label={props.label}
        aria-expanded={isOpen && shown.length > 0}
        aria-controls={listId}
        aria-autocomplete="list"
        aria-activedescendant={active >= 0 && isOpen ? `${listId}-${active}` : undefined}
        aria-describedby={props.describedBy}
        aria-invalid={props.isWrong ? "true" : undefined}
        placeholder={props.placeholder}
        value={value}
        onInput={(event) => {
          const text = event.currentTarget.value;
          if (isHalf(suggestions, text)) setDraft(text);
          else hand(text);
          setOpen(true);
          setTyped(true);
          setActive(-1);
          list.current?.scrollTo(0, 0);
        }}
        onClick={open}
        onBlur={() => {
          if (draft !== null) hand(draft);
          setOpen(false);
        }}
        onKeyDown={pressed}
      />
      <div id={listId} role="listbox" ref={list} hidden={shown.length === 0} tabIndex={-1}>
        {shown.map((suggestion, index) => (
          // biome-ignore lint/a11y/useKeyWithClickEvents: keys are handled by the text field
          <div
            key={suggestion.value}
            id={`${listId}-${index}`}
            role="option"
            tabIndex={-1}
            aria-selected={index === active}
            // Before the text field loses the focus, which would close the list.
            onMouseDown={(event) => event.preventDefault()}
            onClick={() => choose(suggestion)}
            data-group={suggestion.group !== shown[index - 1]?.group ? suggestion.group : undefined}
          >
            <span>{suggestion.value}</span>
            <span class="about">{suggestion.about}</span>
          </div>
        ))}
      </div>
    </div>
  );
}

/** Whether a text may become a name by typing on, and is none yet. */
export function isHalf(suggestions: readonly Suggestion[], text: string): boolean {
  const typed = text.trim().toLowerCase();
  const names = matching(suggestions, text).flatMap((one) => [one.value, ...one.others]);
  return names.length > 0 && !names.some((name) => name.toLowerCase() === typed);
}

/** Those that have all words of the text; what begins with it comes first. */
export function matching(suggestions: readonly Suggestion[], text: string): Suggestion[] {
  const typed = text.trim().toLowerCase();
  const words = typed.split(/[\s_-]+/).filter((word) => word !== "");
  const found = suggestions.filter((suggestion) => {
    const names = [suggestion.value, ...suggestion.others].join(" ").toLowerCase();
    return words.every((word) => names.includes(word));
  });
  const begins = (one: Suggestion): boolean =>
    [one.value, ...one.others].some((name) => name.toLowerCase().startsWith(typed));
  const order = typed === "" ? found : [...found].sort((a, b) => +begins(b) - +begins(a));
  return order;
}
