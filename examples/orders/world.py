"""A bank and a van, in memory; they fail when they are told to."""

from __future__ import annotations


class Bank:
    """Takes one charge of each key."""

    def __init__(self) -> None:
        self.charges: dict[str, tuple[str, int]] = {}
        self.refunds: list[str] = []

    def charge(self, order: str, cents: int, key: str) -> str:
        self.charges.setdefault(key, (order, cents))
        return f"receipt of {order}"

    def refund(self, order: str, receipt: str) -> str:
        self.refunds.append(order)
        return f"{receipt}, refunded"


class World:
    """Keep what stands outside of the log."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.bank = Bank()
        self.packed: list[str] = []
        self.shipped: list[str] = []
        self.failures = 0

    def pack(self, article: str) -> str:
        self.packed.append(article)
        return f"a box of {article}"

    def ship(self, order: str, boxes: list[str], address: str) -> str:
        if self.failures:
            self.failures -= 1
            raise OSError("the van has broken down")
        self.shipped.append(order)
        return f"{' and '.join(boxes)} to {address}"


world = World()
