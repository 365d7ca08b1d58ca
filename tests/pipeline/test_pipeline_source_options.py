"""The options of the source: allowed values, and errors for others."""

from __future__ import annotations

import pytest

from taskq_plugins.spark.source.options import read_options
from taskq_plugins.spark.source.positions import Lsn, OptionError, Position


def test_only_the_path_must_be_given() -> None:
    options = read_options({"path": "/logs"})
    assert options.path == "/logs"
    assert options.target_partition_bytes == 32 * 1024 * 1024
    assert options.fail_on_data_loss == "true"
    assert options.include_payload
    assert options.include_headers
    assert not options.include_details
    assert options.corrupt_mode == "fail"
    assert options.max_bytes_per_trigger is None
    assert options.devices is None


def test_names_of_options_are_read_in_any_case() -> None:
    options = read_options({"PATH": "x", "maxbytespertrigger": "5", "failOnDataLoss": "FALSE"})
    assert options.max_bytes_per_trigger == 5
    assert options.fail_on_data_loss == "false"


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("64k", 2**16), ("32M", 2**25), ("2 g", 2**31), ("3mb", 3 * 2**20), ("1GiB", 2**30)],
)
def test_sizes_have_units(text: str, size: int) -> None:
    assert read_options({"path": "x", "maxBytesPerTrigger": text}).max_bytes_per_trigger == size


@pytest.mark.parametrize("text", ["a,b", " b , a ", '["a", "b"]'])
def test_names_are_a_list_of_either_kind(text: str) -> None:
    assert read_options({"path": "x", "devices": text}).devices == frozenset("ab")


def test_offsets_are_words_or_json() -> None:
    given = '{"a": "latest", "b": {"lsn": 7}, "c": {"segment": 1, "offset": 64, "time_ns": 3}}'
    bound = read_options({"path": "x", "startingOffsets": given}).starting_offsets
    assert bound == {"a": "latest", "b": Lsn(7), "c": Position("", 1, 64, 0, 3)}
    assert read_options({"path": "x", "startingOffsets": " Latest"}).starting_offsets == "latest"


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("path", "", "the directory of a task log"),
        ("devices", "a,,b", "names of devices"),
        ("devices", "[[", "names of devices"),
        ("devices", "[[1]]", "names of devices"),
        ("startingOffsets", "begin", "earliest, latest or JSON"),
        ("startingOffsets", "[1]", "earliest, latest or JSON"),
        ("startingOffsets", '{"a": 7}', "earliest, latest or JSON"),
        ("startingOffsets", '{"a": {"lsn": -1}}', "earliest, latest or JSON"),
        ("startingOffsets", '{"a": {"lsn": 1, "moon": 2}}', "earliest, latest or JSON"),
        ("startingOffsets", '{"a": {"offset": 64}}', "earliest, latest or JSON"),
        ("startingOffsets", "[" * 100_000, "earliest, latest or JSON"),
        ("endingOffsets", "earliest", "latest or JSON"),
        ("startingTimestamp", "yesterday", "milliseconds since 1970"),
        ("startingTimestamp", "2026-01-01T00:00:00", "with a zone"),
        ("startingTimestamp", "9" * 4000, "milliseconds since 1970"),
        ("maxBytesPerTrigger", "0", "at least 1 byte"),
        ("maxBytesPerTrigger", "-5m", "at least 1 byte"),
        ("maxBytesPerTrigger", "many", "such as 512m"),
        ("targetPartitionBytes", "1k", "from 64k to 16g"),
        ("targetPartitionBytes", "99t", "from 64k to 16g"),
        ("failOnDataLoss", "maybe", "true, false or hold"),
        ("corruptMode", "ignore", "fail, skip or quarantine"),
        ("includePayload", "1", "true or false"),
        ("includeHeaders", "", "true or false"),
        ("includeDetails", "yes", "true or false"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(option: str, value: str, allowed: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_options({"path": "x"} | {option: value})
    message = str(caught.value)
    assert caught.value.option == option
    assert message.startswith(f"option {option}: {value[:100]!r}"[:60])
    assert allowed in message
    assert len(message) < 600


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "option path is missing: it is the directory"),
        ({"path": "x", "device": "a"}, "option device is unknown: did you mean devices?"),
        ({"path": "x", "xyzzy": "1"}, "option xyzzy is unknown: there are path, devices,"),
        (
            {"path": "x", "startingTimestamp": "1", "startingOffsets": "latest"},
            "option startingTimestamp cannot be given with startingOffsets",
        ),
    ],
)
def test_what_is_missing_unknown_or_too_much_is_named(
    options: dict[str, str], message: str
) -> None:
    with pytest.raises(OptionError) as caught:
        read_options(options)
    assert message in str(caught.value)
