"""Zip archives assembled field by field, so that a test can make any one of them lie."""

import struct
import zlib
from dataclasses import dataclass, field
from typing import Any

LOCAL_FIELDS = (
    "signature version flags method time date crc packed size name_length extra_length"
)
CENTRAL_FIELDS = (
    "signature made version flags method time date crc packed size name_length "
    "extra_length comment_length disk internal external header_at"
)
END_FIELDS = "signature disk start_disk here count size start comment_length"
END64_FIELDS = "signature length made version disk start_disk here count size start"
LOCATOR_FIELDS = "signature disk record_at disks"


@dataclass
class Part:
    """One record and what its two headers say besides the truth."""

    name: bytes
    content: bytes = b""
    local: dict[str, Any] = field(default_factory=dict)
    central: dict[str, Any] = field(default_factory=dict)
    local_name: bytes | None = None
    local_extra: bytes = b""
    central_extra: bytes = b""
    gap: bytes = b""
    after: bytes = b""


def _packed(form: str, names: str, truth: dict[str, Any], lies: dict[str, Any]) -> bytes:
    values = dict.fromkeys(names.split(), 0) | truth | lies
    assert list(values) == names.split(), set(values) ^ set(names.split())
    return struct.pack(form, *values.values())


def build(
    parts: list[Part],
    *,
    before: bytes = b"",
    after: bytes = b"",
    between: bytes = b"",
    end: dict[str, Any] | None = None,
    zip64: dict[str, dict[str, Any]] | None = None,
) -> bytes:
    """Assemble an archive; without any lie it is a valid one of stored records."""
    data = before
    central = b""
    for part in parts:
        data += part.gap
        local_name = part.name if part.local_name is None else part.local_name
        truth = {
            "signature": b"PK\x03\x04",
            "crc": zlib.crc32(part.content),
            "packed": len(part.content),
            "size": len(part.content),
            "name_length": len(local_name),
            "extra_length": len(part.local_extra),
        }
        header_at = len(data)
        data += _packed("<4s5H3L2H", LOCAL_FIELDS, truth, part.local)
        data += local_name + part.local_extra + part.content + part.after
        truth |= {
            "signature": b"PK\x01\x02", "name_length": len(part.name),
            "extra_length": len(part.central_extra), "header_at": header_at,
        }  # fmt: skip
        central += _packed("<4s6H3L5H2L", CENTRAL_FIELDS, truth, part.central)
        central += part.name + part.central_extra
    start = len(data)
    counts = {
        "here": len(parts),
        "count": len(parts),
        "size": len(central),
        "start": start,
    }
    data += central + between
    if zip64 is not None:
        record_at = len(data)
        truth = {"signature": b"PK\x06\x06", "length": 44} | counts
        data += _packed("<4sQ2H2L4Q", END64_FIELDS, truth, zip64.get("end", {}))
        truth = {"signature": b"PK\x06\x07", "record_at": record_at, "disks": 1}
        data += _packed("<4sLQL", LOCATOR_FIELDS, truth, zip64.get("locator", {}))
    data += _packed(
        "<4s4H2LH", END_FIELDS, {"signature": b"PK\x05\x06"} | counts, end or {}
    )
    return data + after
