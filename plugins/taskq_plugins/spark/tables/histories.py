"""The attempts that a carried record holds in its option HISTORY, read with Spark's own functions.

The layout is that of ``taskq.log.format.history``: ``number u32, owner u64, started i64, ended i64,
outcome u8, size of the reason u16``, all little-endian, then the reason. The expressions are short
on purpose: planning a thousand nodes takes Spark seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use

from taskq.log.format.history import ATTEMPTS_KEPT, OUTCOMES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: What is known of an attempt, in the order of the tables.
ATTEMPT_TYPE: Final = (
    "struct<number int, owner string, started_ns bigint, ended_ns bigint, outcome string,"
    " reason string, wait_ns bigint, run_ns bigint>"
)
#: Bytes of an attempt without its reason.
_FIXED_BYTES: Final = 31
_SIGNED_BYTES: Final = 8
_NAMES: Final = ", ".join(f"'{name}'" if name else "null" for name in OUTCOMES)


def _turned(at: str, place: int, size: int) -> str:
    """Hexadecimal digits: the last byte first, and within each the first digit first again."""
    digits = f"hex(substr(born.history, {at} + {place + 1}, {size}))"
    return f"regexp_replace(reverse({digits}), '(.)(.)', '$2$1')"


def _number(at: str, place: int, size: int) -> str:
    """The number in ``size`` bytes, ``place`` bytes behind ``at``; eight of them are signed."""
    return f"bigint(conv({_turned(at, place, size)}, 16, {-10 if size == _SIGNED_BYTES else 10}))"


#: Where each attempt begins, counted from 0: a chain, since each tells the size of its reason.
_PLACES: Final = f"""
if(length(born.history) >= {_FIXED_BYTES},
  filter(
    aggregate(
      sequence(1, int(length(born.history) div {_FIXED_BYTES})),
      array(0),
      (places, turn) -> if(
        element_at(places, -1) + {_FIXED_BYTES} <= length(born.history),
        array_append(
          places,
          int(element_at(places, -1) + {_FIXED_BYTES}
              + {_number("element_at(places, -1)", 29, 2)})),
        places)),
    place -> place + {_FIXED_BYTES} <= length(born.history)),
  null)
"""
_PACKED: Final = f"""
transform(places, at -> struct(
  int({_number("at", 0, 4)}) as number,
  lower({_turned("at", 4, 8)}) as owner,
  {_number("at", 12, 8)} as started_ns,
  nullif({_number("at", 20, 8)}, 0) as ended_ns,
  get(array({_NAMES}), int({_number("at", 28, 1)})) as outcome,
  substr(born.history, at + {_FIXED_BYTES + 1}, int({_number("at", 29, 2)})) as reason))
"""
_EARLY: Final = f"""
cast(slice(
  transform(packed, (one, index) -> struct(
    one.number, one.owner, one.started_ns, one.ended_ns, one.outcome,
    if(length(one.reason) > 0, make_valid_utf8(string(one.reason)), null) as reason,
    case when index > 0 then greatest(one.started_ns, get(packed, index - 1).ended_ns)
         when one.number = 1 and size(packed) < {ATTEMPTS_KEPT}
         then greatest(one.started_ns, born.enqueued_ns) end
      - if(index > 0, get(packed, index - 1).ended_ns, born.enqueued_ns) as wait_ns,
    if(one.ended_ns is null, null, greatest(0L, one.ended_ns - one.started_ns)) as run_ns)),
  if(size(packed) > {ATTEMPTS_KEPT}, -{ATTEMPTS_KEPT}, 1), {ATTEMPTS_KEPT})
  as array<{ATTEMPT_TYPE}>)
"""


def with_history(jobs: DataFrame) -> DataFrame:
    """Adds the column ``early``: the attempts in ``born.history``; null for none.

    What is cut short is left out. A wait counts from the end of the attempt before, the first one's
    from the enqueue; it is null where earlier attempts may have been left out.
    """
    return (
        jobs.withColumn("places", F.expr(_PLACES))
        .withColumn("packed", F.expr(_PACKED))
        .withColumn("early", F.expr(_EARLY))
        .drop("places", "packed")
    )
