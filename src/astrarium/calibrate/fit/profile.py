"""The profile of a device: one Parquet file with all rows and a JSON header.

The header, in the file's metadata, holds device, versions, date, sections, failures and the fitted
factors; a checksum tells whether it changed since. Planning needs the header alone, so it is read
without pyarrow, whose import takes as long as a plan.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from astrarium.calibrate.fit.factors import BOUNDS, DeviceFit, fit_rows
from astrarium.calibrate.fit.laws import RUNTIME
from astrarium.calibrate.measure.cases import IDENTITY, TEXTS, TIMES
from astrarium.calibrate.measure.journal import JournalContents
from astrarium.calibrate.measure.sections import SEND
from astrarium.cluster import Cluster, Pool
from astrarium.documents import write_atomic_bytes
from astrarium.documents.parsing import LARGEST_TABLE_BYTES, read_bytes
from astrarium.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA: Final = "astrarium.profile/1"
METADATA_KEY: Final = b"astrarium"
CHECKSUM: Final = "checksum"
# Parquet: the mark at both ends, and in the footer (Thrift's compact protocol) the mark of a text
# field that follows the one before, and how many bytes the size of a text may have.
PARQUET: Final = b"PAR1"
_TEXT_FIELD: Final = b"\x18"
_LONGEST_SIZE: Final = 5
_LEAST_BYTES: Final = 12
_DIGITS: Final = 4
_INSTALL: Final = "pip install 'astrarium[calibrate]'"

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """The header of a profile file."""

    path: Path
    header: Mapping[str, Any]

    @property
    def device(self) -> str:
        return str(self.header["device"].get("name", "unknown"))

    @property
    def gpu(self) -> str | None:
        """The device's name in the catalog, if it has one."""
        return self.header.get("gpu")

    @property
    def tuning(self) -> dict[str, Any]:
        """Fields of `astrarium.cost.tuning.Tuning` that this profile teaches."""
        operators, links = (
            {name: entry["ratio"] for name, entry in self.header[part].items() if usable(entry)}
            for part in ("operators", "links")
        )
        origin = f"{self.path.name}: {self.device}, {self.header['date']}"
        core = self.core
        if core is not None:
            laws, messages = (
                {name: tuple(law) for name, law in core[part].items()}
                for part in ("laws", "messages")
            )
            return {
                "origin": origin,
                "laws": laws,
                "messages": messages,
                "law_error": core["relative_error"],
                "host": core["host"],
                "runtime": RUNTIME,
            }
        return {"origin": origin, "operators": operators, **links}

    @property
    def core(self) -> Mapping[str, Any] | None:
        """The part of one core in the profile of a processor; None for other devices."""
        return self.header.get("core")

    @property
    def host(self) -> Mapping[str, float]:
        """Seconds of the host: launch_seconds, layer_forward_seconds and the like."""
        return self.header["host"]


def usable(entry: Mapping[str, Any]) -> bool:
    """Whether a class's factor is to be used: not if its cases are out of bounds."""
    return not entry.get("bounded", False)


def warnings_of(header: Mapping[str, Any]) -> list[str]:
    """Warnings about a profile that can be used."""
    low, high = BOUNDS
    return [
        f"{name}: measured times are {entry['median']:.3g} x the modelled ones, outside"
        f" {low:.2g} to {high:g}: something else was measured; this class is not used"
        for name, entry in {**header["operators"], **header["links"]}.items()
        if not usable(entry)
    ]


def make_header(contents: JournalContents) -> dict[str, Any]:
    rows = contents.rows
    if not rows:
        raise InputError("nothing has been measured yet; there is no profile to write")
    given = contents.header
    fit = fit_rows(rows, given["device"])
    failed = [*contents.failed, *contents.given_up]
    return {
        "schema": SCHEMA,
        "device": given["device"],
        "gpu": fit.gpu,
        "versions": given.get("versions", {}),
        "date": str(given.get("date", "")),
        "scale": given.get("scale"),
        "sections": dict(Counter(row["section"] for row in rows)),
        "failed": failed,
        **_fit_columns(fit),
    }


def _fit_columns(fit: DeviceFit) -> dict[str, Any]:
    found = {
        "specification": fit.specification,
        "operators": fit.operators,
        "links": {} if fit.intra_link is None else {"intra_link": fit.intra_link},
        "host": fit.host,
        **({} if fit.core is None else {"core": fit.core}),
    }
    return {name: _rounded(value) for name, value in found.items()}


def _rounded(value: Any) -> Any:  # noqa: ANN401  as JSON
    """Plain data with floats of a few digits."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return [_rounded(each) for each in value]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def write_profile(path: Path, header: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """Write a profile, whole or not at all."""
    pa = _pyarrow()
    import pyarrow.parquet

    columns = {
        name: pa.array([row.get(name) for row in rows], _kind(pa, name))
        for name in (*IDENTITY, *TIMES)
    }
    table = pa.table(columns)
    text = json.dumps({**header, CHECKSUM: _checksum(header)}, allow_nan=False)
    table = table.replace_schema_metadata({METADATA_KEY: text.encode()})
    content = pa.BufferOutputStream()
    pyarrow.parquet.write_table(table, content, compression="zstd", write_page_checksum=True)
    write_atomic_bytes(path, content.getvalue().to_pybytes())


def read_profile(path: Path) -> DeviceProfile:
    data = read_bytes(path, LARGEST_TABLE_BYTES)
    return DeviceProfile(path, _checked_header(path, _header_text(path, data)))


def _header_text(path: Path, data: bytes) -> bytes:
    """Find our header in the footer of a Parquet file.

    The file ends with its footer, the footer's length and the mark; in the footer, a key is a
    field mark, a length and the text, and its value another field mark, a length and the text.
    """
    mark, tail = data[:4], data[-8:]
    if mark != PARQUET or tail[4:] != PARQUET or len(data) < _LEAST_BYTES:
        raise _unusable(path, "it is no Parquet file, or its end is missing")
    length = int.from_bytes(tail[:4], "little")
    footer = data[-8 - length : -8]
    _, found, rest = footer.partition(_TEXT_FIELD + bytes([len(METADATA_KEY)]) + METADATA_KEY)
    if not found or rest[:1] != _TEXT_FIELD:
        raise _unusable(path, "it has no header of ours, so another program wrote it")
    size, start = 0, 1
    for start, byte in enumerate(rest[1 : 1 + _LONGEST_SIZE], start=2):
        size |= (byte & 0x7F) << 7 * (start - 2)  # seven bits a byte, the lowest first
        if byte < 0x80:  # the last byte lacks the highest bit
            break
    return rest[start : start + size]


def _checked_header(path: Path, text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except ValueError:
        raise _unusable(path, "its header is damaged") from None
    if not isinstance(header, dict) or header.get("schema") != SCHEMA:
        found = header.get("schema") if isinstance(header, dict) else None
        raise _unusable(path, f"its header has schema {found!r}, not {SCHEMA!r}")
    if header.pop(CHECKSUM, None) != _checksum(header):
        raise _unusable(path, "its header was changed or damaged after it was written")
    return header


def _checksum(header: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(header, sort_keys=True).encode())


def _kind(pa: Any, name: str) -> pa.DataType:  # noqa: ANN401  the module
    if name in TEXTS:
        return pa.string()
    return pa.float64() if name in TIMES else pa.int64()


def with_measured_cores(cluster: Cluster, header: Mapping[str, Any]) -> Cluster:
    """The cluster with the rates, memory and links of a profile in its pools of cores."""
    pools = tuple(_with_core(pool, header) for pool in cluster.pools)
    return replace(cluster, pools=pools)


def _with_core(pool: Pool, header: Mapping[str, Any]) -> Pool:
    core, device = header.get("core"), header["device"]
    if core is None or not pool.gpu.is_processor:
        return pool
    share = pool.gpu.share
    memory = device.get("memory_bytes", 0) // max(device.get("cores", 1), 1)
    gpu = replace(
        pool.gpu, peak_flops={"fp32": core["flops"]}, memory_bytes=memory or pool.gpu.memory_bytes
    )
    call, byte = core["messages"][SEND]
    rate, latency = share / byte, call / share
    return replace(
        pool,
        gpu=gpu,
        intra_node_bandwidth=rate,
        inter_node_bandwidth=rate * pool.gpus_per_node,
        intra_node_latency=latency,
        inter_node_latency=latency,
    )


def _unusable(path: Path, reason: str) -> InputError:
    return InputError(f"{path}: not a usable profile: {reason}; `astrarium calibrate` writes one")


def _pyarrow() -> Any:  # noqa: ANN401  the module
    try:
        import pyarrow
    except ImportError:
        raise InputError(f"profiles need pyarrow, which is not installed; {_INSTALL}") from None
    return pyarrow
