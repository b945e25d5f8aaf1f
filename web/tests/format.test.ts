import { describe, expect, it } from "vitest";
import {
  amount,
  digits,
  duration,
  gib,
  gpuText,
  padded,
  percent,
  shortGpu,
  usd,
} from "../src/charts/format";
import { span } from "../src/charts/timeline";

describe("texts of numbers", () => {
  it("has three digits that count", () => {
    expect(digits(1234.5)).toBe("1230");
    expect(digits(12.345)).toBe("12.3");
    expect(digits(0.00012345)).toBe("0.000123");
    expect(digits(2.0)).toBe("2");
    expect(digits(0)).toBe("0");
    expect(digits(100)).toBe("100");
    expect([79.25, 79.75, -79.25, 0.125, 2.5].map((one) => digits(one))).toEqual([
      "79.2",
      "79.8",
      "-79.2",
      "0.125",
      "2.5",
    ]);
    expect([2.5, 3.5, 0.15].map((one) => digits(one, 1))).toEqual(["2", "4", "0.1"]);
  });

  it("chooses the unit of a duration", () => {
    expect(duration(0)).toBe("0 s");
    expect(duration(3.2e-5)).toBe("32 µs");
    expect(duration(0.0064)).toBe("6.4 ms");
    expect(duration(90)).toBe("90 s");
    expect(duration(7200)).toBe("2 h");
    expect(duration(24825334)).toBe("287 days");
    expect(duration(-0.5)).toBe("-500 ms");
    // What rounding leaves of a difference is no time.
    expect(duration(-2.2e-16)).toBe("0 s");
  });

  it("gives the figures of a column as many digits", () => {
    expect(
      ["1.3 s", "23 s", "$14k", "0.5 h", "287 days", "1230 s", "0 s", "–"].map((one) =>
        padded(one),
      ),
    ).toEqual(["1.30 s", "23.0 s", "$14.0k", "0.500 h", "287 days", "1230 s", "0 s", "–"]);
  });

  it("writes money and counts short", () => {
    expect(usd(1763150)).toBe("$1.76M");
    expect(usd(999.96)).toBe("$1k");
    expect(amount(80562)).toBe("80.6k");
    expect(amount(2e12)).toBe("2T");
  });

  it("writes shares, bytes and GPUs", () => {
    expect(percent(0.0004)).toBe("<0.1 %");
    expect(percent(0.053)).toBe("5.3 %");
    expect(percent(0.926)).toBe("93 %");
    expect(gib(79.2 * 2 ** 30)).toBe("79.2 GiB");
    expect(shortGpu("H100-SXM5-80GB")).toBe("H100-80GB");
    expect(gpuText({ A: 16, B: 2 })).toBe("16 x A + 2 x B");
  });

  it("tells the ends of short events apart", () => {
    expect(span(1.2345, 1.2356)).toBe("1.23450 to 1.23560 s");
    expect(span(0, 2)).toBe("0.00 to 2.00 s");
  });
});
