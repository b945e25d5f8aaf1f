/** An answer of the server that belongs to a question; that of an older one is never shown. */
import { useEffect, useState } from "preact/hooks";
import { AskError, isPassing } from "./api";

const AGAIN_MILLISECONDS = 3000;

export interface Answered<T> {
  value: T | null;
  error: AskError | null;
  isWaiting: boolean;
}

/** Asks anew whenever one of `inputs` changes; a question of null is none. */
export function useAnswer<T>(
  question: ((signal: AbortSignal) => Promise<T>) | null,
  inputs: readonly unknown[],
): Answered<T> {
  const nothing: Answered<T> = { value: null, error: null, isWaiting: false };
  const [answered, setAnswered] = useState(nothing);
  const [tries, setTries] = useState(0);
  useEffect(() => {
    if (!question) {
      setAnswered(nothing);
      return;
    }
    const own = new AbortController();
    let timer: ReturnType<typeof setTimeout>;
    setAnswered({ ...nothing, isWaiting: true });
    question(own.signal).then(
      (value) => {
        if (!own.signal.aborted) setAnswered({ ...nothing, value });
      },
      (error: unknown) => {
        if (own.signal.aborted) return;
        const told = error instanceof AskError ? error : new AskError(String(error), 0);
        setAnswered({ ...nothing, error: told });
        if (isPassing(told)) timer = setTimeout(() => setTries(tries + 1), AGAIN_MILLISECONDS);
      },
    );
    return () => {
      clearTimeout(timer);
      own.abort();
    };
  }, [...inputs, tries]);
  return answered;
}
