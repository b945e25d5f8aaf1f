/** Work that can wait for what matters more to be on the screen: a piece after each frame. */

const waiting: (() => void)[] = [];
let isAsked = false;

function ask(): void {
  isAsked = true;
  // Behind the frame, not in it: what was changed until now is painted first.
  requestAnimationFrame(() => setTimeout(next));
}

function next(): void {
  isAsked = false;
  const work = waiting.shift();
  if (waiting.length > 0) ask();
  work?.();
}

/** Does it behind one of the next frames, in the order of asking; the result takes it back. */
export function afterFrame(work: () => void): () => void {
  waiting.push(work);
  if (!isAsked) ask();
  return () => {
    const at = waiting.indexOf(work);
    if (at >= 0) waiting.splice(at, 1);
  };
}
