"""Records what the commands of `benchmarks/corpus.txt` answer, and compares two recordings.

    python tools/corpus.py record DIR [--tree PATH] [--only REGEX] [--slow] [--limit SECONDS]
    python tools/corpus.py compare DIR1 DIR2 [--json]

A recording has a file per command (exit code, document, messages, digests of the files it wrote)
and `summary.json` with CPU seconds and memory. Files of two recordings of one tree are equal: the
day is fixed, and what changes from run to run is left out. `{in}` in a command is the folder
`benchmarks/corpus`, `{out}` one of the recording, where commands find what earlier ones wrote.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
INPUTS = ROOT / "benchmarks/corpus"
TODAY = "1794873600"  # 2026-11-17: prices are as old as on this day, whenever they are asked for
TIMED_OUT = 124
SHOWN = 4  # places of a difference
SAME = 1e-9  # part by which seconds or dollars may differ
VOLATILE = (
    (re.compile(r'("search":\s*\{[^{}]*?"seconds":\s*)[-+.\de]+'), r"\g<1>0"),
    (re.compile(r"(strategies considered in )[\d.,]+ \w+"), r"\g<1>0 s"),
    (re.compile(r"Astrarium \d+\.\d+\.\d+"), "Astrarium"),
)
DEGREES = ("tp", "pp", "virtual_stages", "dp", "cp", "ep", "etp", "micro_batch", "zero_stage")


class Line(NamedTuple):
    """A command, and the comment it stands below."""

    text: str
    section: str

    @property
    def file(self) -> str:
        slug = re.sub(r"[^a-z0-9]+", "-", self.text.lower())[:60].strip("-")
        return f"{slug}-{hashlib.sha256(self.text.encode()).hexdigest()[:8]}.json"


def corpus() -> list[Line]:
    section, lines = "", []
    for text in (ROOT / "benchmarks/corpus.txt").read_text(encoding="utf-8").splitlines():
        if text.startswith("#"):
            section = text.lstrip("# ")
        elif text.strip():
            lines.append(Line(text.strip(), section))
    return lines


def chosen(lines: list[Line], only: str, slow: bool) -> list[Line]:
    """Those asked for, and earlier ones whose files they read."""
    kept: list[Line] = []
    needed: set[str] = set()
    for line in reversed(lines):
        written = re.findall(r"--out (\{out\}/[\w-]+)", line.text)
        is_asked = re.search(only, line.text) and (slow or not line.section.startswith("slow"))
        if is_asked or needed.intersection(written):
            kept.append(line)
            needed.update(re.findall(r"\{out\}/[\w-]+", line.text))
    return kept[::-1]


def record(line: Line, tree: Path, folder: Path, limit: float) -> dict[str, Any]:
    """Runs a command, writes what it answered and returns what it took."""
    scratch, pipes = folder / "scratch", (folder / "stdout", folder / "stderr")
    places = {"{out}": str(scratch), "{in}": str(INPUTS), "{tree}": str(tree)}
    before, text = contents(scratch), line.text
    for name, place in places.items():
        text = text.replace(name, place)
    command = [sys.executable, "-m", "astrarium", *shlex.split(text)]
    command += [] if "--json" in command else ["--json"]
    fixed = {"PYTHONPATH": str(tree / "src"), "SOURCE_DATE_EPOCH": TODAY, "COLUMNS": "100"}
    fixed |= {"XDG_CONFIG_HOME": str(scratch / "none"), "NO_COLOR": "1"}
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ASTRARIUM_")} | fixed
    with pipes[0].open("wb") as out, pipes[1].open("wb") as err:
        process = subprocess.Popen(
            command, cwd=tree, env=environment, stdout=out, stderr=err, start_new_session=True
        )
    late = threading.Timer(limit, os.killpg, (process.pid, signal.SIGKILL))
    late.start()
    _, status, usage = os.wait4(process.pid, 0)
    late.cancel()
    process.returncode = code = os.waitstatus_to_exitcode(status)
    stdout, stderr = (steady(pipe.read_bytes(), places) for pipe in pipes)
    new = {name: raw for name, raw in contents(scratch).items() if before.get(name) != raw}
    files = {name: steady(raw, places).encode() for name, raw in sorted(new.items())}
    if code == -signal.SIGKILL:  # where it was is chance
        code, stdout, stderr, files = TIMED_OUT, "", f"not done in {limit:g} s", {}
    answer = {
        "command": line.text,
        "code": code,
        "stdout": json.loads(stdout) if stdout.startswith(("{", "[")) else stdout,
        "stderr": stderr,
        "files": {name: hashlib.sha256(raw).hexdigest()[:16] for name, raw in files.items()},
    }
    write(folder / line.file, answer)
    megabytes = usage.ru_maxrss / (1024 if sys.platform == "linux" else 1024**2)
    took = {"cpu_seconds": round(usage.ru_utime, 3), "peak_megabytes": round(megabytes, 1)}
    return {"command": line.text, "file": line.file, "code": code, **took}


def steady(raw: bytes, places: dict[str, str]) -> str:
    """A text without what changes from run to run and from machine to machine."""
    text = raw.decode(errors="replace")
    for name, place in places.items():
        text = text.replace(place, name)
    for pattern, instead in VOLATILE:
        text = pattern.sub(instead, text)
    return text


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def write(path: Path, document: object) -> None:
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read(path: Path) -> Any:  # noqa: ANN401  whatever a command printed
    return json.loads(path.read_text(encoding="utf-8"))


def taken(folder: Path) -> dict[str, dict[str, Any]]:
    """What each command of a recording took."""
    summary = folder / "summary.json"
    return {one["command"]: one for one in read(summary)} if summary.exists() else {}


def record_all(lines: list[Line], tree: Path, folder: Path, limit: float) -> None:
    """Records commands one after the other; those recorded before stay."""
    shutil.rmtree(folder / "scratch", ignore_errors=True)
    (folder / "scratch").mkdir(parents=True)
    results = taken(folder)
    for number, line in enumerate(lines, 1):
        took = results[line.text] = record(line, tree, folder, limit)
        write(folder / "summary.json", list(results.values()))
        told = f"{took['cpu_seconds']:7.2f} s {took['peak_megabytes']:6.0f} MB  code {took['code']}"
        print(f"{number:3}/{len(lines)} {told}  {line.text}", file=sys.stderr, flush=True)


def differences(first: object, second: object, at: str = "") -> Iterator[str]:
    """Where two documents differ."""
    if isinstance(first, dict) and isinstance(second, dict):
        for key in first | second:
            yield from differences(first.get(key), second.get(key), f"{at}.{key}")
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for index, (one, other) in enumerate(zip(first, second, strict=True)):
            yield from differences(one, other, f"{at}[{index}]")
    elif first != second:
        yield at.lstrip(".")


def figures(document: dict[str, Any]) -> dict[str, Any]:
    """What counts of a plan document: its first plan, and what is known of that."""
    best, search = (document.get("plans") or [{}])[0], document.get("search") or {}
    strategy, seconds = best.get("strategy", {}), best.get("iteration_seconds")
    dollars = seconds and best["usd_per_hour"] and best["usd_per_hour"] / 3600 * seconds
    degrees = [f"{name}={strategy[name]}" for name in DEGREES if strategy.get(name, 1) != 1]
    gpus = [f"{count} {gpu}" for gpu, count in best.get("gpus", {}).items()]
    again = strategy.get("recompute", {}).get("granularity")
    return {
        "objective": search.get("objective"),
        "iteration_seconds": seconds,
        "usd": best.get("usd_total") or dollars,
        "strategy": " ".join([*gpus, *degrees, f"recompute={again}"]) if strategy else None,
        **{key: search.get(key) for key in ("optimal", "bound_gap", "evaluated")},
    }


def verdict(before: dict[str, Any], after: dict[str, Any]) -> str:
    """What became of the first plan, by what was asked for."""
    key = "usd" if "cost" in (before["objective"], after["objective"]) else "iteration_seconds"
    was, now = (float("inf") if one[key] is None else one[key] for one in (before, after))
    if was == now or abs(now - was) <= SAME * min(was, now):
        return "equal"
    return "better" if now < was else "worse"


def compared(first: Path, second: Path) -> dict[str, Any]:
    """Everything that differs between two recordings, and sums over what both have."""
    old, new = taken(first), taken(second)
    common = [command for command in old if command in new]
    verdicts, changed = Counter({"better": 0, "worse": 0, "equal": 0}), []
    for command in common:
        pair = before, after = [read(d / old[command]["file"]) for d in (first, second)]
        found = list(differences(before, after))
        row: dict[str, Any] = {"command": command, "places": found[:SHOWN], "count": len(found)}
        if command.startswith("plan ") and all(isinstance(one["stdout"], dict) for one in pair):
            row["before"], row["after"] = (figures(one["stdout"]) for one in pair)
            row["first_plan"] = verdict(row["before"], row["after"])
            verdicts[row["first_plan"]] += 1
        changed += [row] if found else []
    seconds = [sum(one[command]["cpu_seconds"] for command in common) for one in (old, new)]
    memory = [max((one[c]["peak_megabytes"] for c in common), default=0.0) for one in (old, new)]
    return {
        "changed": changed,
        "only_in_one": sorted(old.keys() ^ new.keys()),
        "equal": len(common) - len(changed),
        "first_plans": dict(verdicts),
        "cpu_seconds": [round(one, 2) for one in seconds],
        "cpu_ratio": seconds[1] / seconds[0] if seconds[0] else None,
        "worst_megabytes": memory,
    }


def show(result: dict[str, Any]) -> None:
    for row in result["changed"]:
        print(f"{row['command']}\n  {row['count']} places: {', '.join(row['places'])}")
        print(*[f"  first plan: {row['first_plan']}\n"] if "first_plan" in row else [], end="")
        for key, was in row.get("before", {}).items():
            now = row["after"][key]
            ratio = f"  x {now / was:.6f}" if isinstance(was, float) and was and now else ""
            print(f"    {key:18} {was}" + (f" -> {now}{ratio}" if was != now else ""))
    for command in result["only_in_one"]:
        print(f"only in one recording: {command}")
    print(
        f"\n{result['equal']} answers equal, {len(result['changed'])} differ; first plans:", end=""
    )
    print(*(f" {count} {word}" for word, count in result["first_plans"].items()), sep=",")
    print("CPU seconds: {} -> {}".format(*result["cpu_seconds"]), f"x {result['cpu_ratio']}")
    print("most memory: {} -> {} MB".format(*result["worst_megabytes"]))


def main() -> int:
    parser = argparse.ArgumentParser(description="record and compare answers of many commands")
    commands = parser.add_subparsers(dest="command", required=True)
    recorder = commands.add_parser("record", help="run the corpus")
    recorder.add_argument("folder", type=Path, metavar="DIR")
    recorder.add_argument("--tree", type=Path, default=ROOT, help="another checkout; default: this")
    recorder.add_argument("--only", default="", metavar="REGEX", help="commands that have this")
    recorder.add_argument("--slow", action="store_true", help="those that take long, too")
    recorder.add_argument("--limit", type=float, default=300.0, metavar="SECONDS")
    comparer = commands.add_parser("compare", help="what differs; exits with 1 if something does")
    comparer.add_argument("folders", type=Path, nargs=2, metavar="DIR")
    comparer.add_argument("--json", action="store_true", help="print one JSON document")
    given = parser.parse_args()
    if given.command == "record":
        lines = chosen(corpus(), given.only, given.slow)
        record_all(lines, given.tree.resolve(), given.folder.resolve(), given.limit)
        return 0
    result = compared(*given.folders)
    print(json.dumps(result, indent=1)) if given.json else show(result)
    return int(bool(result["changed"] or result["only_in_one"]))


if __name__ == "__main__":
    sys.exit(main())
