/** A picture of `charts` as a part of the page: drawn once, then told what changed. */
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import type { Chart } from "../charts/frame";
import { savePicture } from "./download";
import { afterFrame } from "./frames";

interface Props<Data, Key> {
  id: string;
  title: string;
  /** What is said beside the title. */
  about?: ComponentChildren;
  draw: (container: HTMLElement, data: Data) => Chart<Data, Key>;
  /** Null while it is not known. */
  data: Data | null;
  selected?: Key | null;
  /** Pixels that are kept free until it is drawn. */
  height: number;
  /** What stands below it. */
  children?: ComponentChildren;
}

export function Picture<Data, Key>(props: Props<Data, Key>) {
  const { id, title, about, draw, data, selected = null, height, children } = props;
  const place = useRef<HTMLDivElement>(null);
  const chart = useRef<Chart<Data, Key> | null>(null);
  const isDue = useRef(false);
  const now = useRef(selected);
  now.current = selected;
  useEffect(() => {
    if (data === null) return;
    isDue.current = true;
    // The answer and the table come first, then one picture after the other.
    const takeBack = afterFrame(() => {
      isDue.current = false;
      if (chart.current) chart.current.update(data);
      else if (place.current) chart.current = draw(place.current, data);
      chart.current?.select(now.current);
    });
    return () => {
      isDue.current = false;
      takeBack();
    };
  }, [data]);
  useEffect(() => {
    if (!isDue.current) chart.current?.select(selected);
  }, [selected]);
  useEffect(() => () => chart.current?.destroy(), []);
  return (
    <section class="panel" aria-labelledby={`${id}-title`}>
      <header>
        <h2 id={`${id}-title`}>{title}</h2>
        {about}
        {data !== null && (
          <button
            type="button"
            class="save"
            aria-label={`Save the picture: ${title}`}
            title="Save this picture"
            onClick={() => place.current && void savePicture(place.current, title)}
          >
            ⤓
          </button>
        )}
      </header>
      <div
        class={data === null ? "picture waiting" : "picture"}
        aria-busy={data === null}
        ref={place}
        style={{ minHeight: `${height}px` }}
      />
      {children}
    </section>
  );
}
