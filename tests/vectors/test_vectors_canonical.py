"""Canonical JSON (RFC 8785), checksums, and files that are either old or new, never half."""

from __future__ import annotations

import json
import math
import random
import struct

import pytest

from rlcorr_ref.errors import ContractError
from rlcorr_ref.vectors.canonical import canonical, document, number, parse, sha256, write_text

# RFC 8785, appendix B: IEEE bit pattern -> text.
RFC = {
    "0000000000000000": "0",
    "8000000000000000": "0",
    "0000000000000001": "5e-324",
    "8000000000000001": "-5e-324",
    "7fefffffffffffff": "1.7976931348623157e+308",
    "4340000000000000": "9007199254740992",
    "c340000000000000": "-9007199254740992",
    "4430000000000000": "295147905179352830000",
    "44b52d02c7e14af5": "9.999999999999997e+22",
    "44b52d02c7e14af6": "1e+23",
    "444b1ae4d6e2ef4e": "999999999999999700000",
    "444b1ae4d6e2ef50": "1e+21",
    "3eb0c6f7a0b5ed8c": "9.999999999999997e-7",
    "3eb0c6f7a0b5ed8d": "0.000001",
    "41b3de4355555553": "333333333.3333332",
    "becbf647612f3696": "-0.0000033333333333333333",
    "43143ff3c1cb0959": "1424953923781206.2",
}


@pytest.mark.parametrize("bits, text", RFC.items())
def test_numbers_as_the_standard_prints_them(bits, text):
    assert number(struct.unpack(">d", bytes.fromhex(bits))[0]) == text


def test_numbers_come_back_bit_for_bit():
    source = random.Random(1)
    for _ in range(5000):
        x = struct.unpack(">d", source.randbytes(8))[0]
        if math.isfinite(x):
            assert float(json.loads(number(x))) == x


def test_non_finite_numbers_are_refused():
    for x in (math.nan, math.inf, -math.inf):
        with pytest.raises(ContractError, match="write the string"):
            canonical({"x": [x]})


def test_canonical_text():
    value = {"b": [1, 2.0, -0.5], "a": {"z": None, "y": True}, "é": "ü\n"}
    assert canonical(value) == '{"a":{"y":true,"z":null},"b":[1,2,-0.5],"é":"ü\\n"}'
    assert canonical({"x": 1, "y": 2}) == canonical({"y": 2, "x": 1.0})
    with pytest.raises(ContractError, match="plain JSON values"):
        canonical({"x": {1, 2}})


def test_checksum_is_of_the_values_not_of_the_spelling():
    assert sha256(json.loads('{"a": 1.0, "b": [1e0]}')) == sha256({"b": [1], "a": 1})
    assert sha256({"a": 1}) != sha256({"a": 1.0000000000000002})


def test_document_has_one_entry_per_line():
    text = document({"name": "x", "cases": [{"id": 2}, {"id": 1}]}, "cases")
    assert text.splitlines() == ["{", '"cases":[', '{"id":2},', '{"id":1}', "],", '"name":"x"', "}"]
    assert json.loads(text) == {"name": "x", "cases": [{"id": 2}, {"id": 1}]}


@pytest.mark.parametrize(
    "text, words",
    [
        ('{"a": NaN}', "bare NaN"),
        ('{"a": -Infinity}', "bare -Infinity"),
        ('{"a": 1, "a": 2}', "'a' appears twice"),
        ('{"a": ', "not valid JSON, line 1"),
    ],
)
def test_strict_parsing(text, words):
    with pytest.raises(ContractError, match=words):
        parse(text, "file")


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file.json"
    path.write_text("old")
    write_text(path, "new")
    assert path.read_text() == "new"

    def refuse(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(OSError, match="disk full"):
        write_text(path, "newer")
    assert path.read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["file.json"]
