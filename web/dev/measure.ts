/** How long frames take while the pointer moves over the front, and the timeline zooms and pans. */

interface Times {
  readonly frames: number;
  readonly median: number;
  readonly longest: number;
}

async function during(act: (step: number) => void, steps: number): Promise<Times> {
  const times: number[] = [];
  await frame();
  let last = await frame();
  for (let step = 0; step < steps; step++) {
    act(step);
    const now = await frame();
    times.push(now - last);
    last = now;
  }
  times.sort((a, b) => a - b);
  return {
    frames: times.length,
    median: times[times.length >> 1] ?? 0,
    longest: times[times.length - 1] ?? 0,
  };
}

function frame(): Promise<number> {
  return new Promise((done) => requestAnimationFrame(() => done(performance.now())));
}

export async function measure(): Promise<void> {
  const [front, timeline] = document.querySelectorAll<HTMLElement>(".chart-box");
  if (!front || !timeline) return;
  const point = (box: HTMLElement, type: string, step: number) => {
    const bounds = box.getBoundingClientRect();
    const clientX = bounds.left + 100 + ((step * 37) % (bounds.width - 120));
    const clientY = bounds.top + 30 + ((step * 23) % (bounds.height - 60));
    box.dispatchEvent(new PointerEvent(type, { clientX, clientY, bubbles: true }));
    return { clientX, clientY };
  };
  const turn = (deltaY: number, step: number, shiftKey = false) => {
    const place = point(timeline, "pointermove", step);
    const init = { deltaY, shiftKey, ctrlKey: !shiftKey, cancelable: true, ...place };
    timeline.dispatchEvent(new WheelEvent("wheel", init));
  };
  const result = {
    hover: await during((step) => point(front, "pointermove", step), 60),
    frontRedraw: await during((step) => {
      front.style.width = step % 2 ? "99%" : "100%";
    }, 30),
    zoomIn: await during((step) => turn(-100, step), 40),
    pan: await during((step) => turn(60, step, true), 60),
    zoomOut: await during((step) => turn(100, step), 60),
    whole: await during((step) => turn(step % 2 ? 20 : -20, step), 40),
  };
  const place = document.createElement("pre");
  place.id = "measured";
  place.textContent = JSON.stringify(result, null, 1);
  document.body.append(place);
}
