"""Three days of an order in a moment."""

import asyncio

from examples.orders.app import Address, app, order
from examples.orders.world import world
from taskq.testing import Sandbox


async def main() -> None:
    async with Sandbox(app) as box:
        job = await order.enqueue("no. 7", 900, ["tea", "coffee"])
        await box.drain()
        print(f"charged {world.bank.charges}; it is {await job.status()}")
        box.advance("2h")
        await box.drain()
        print(await job.why())
        box.advance("3d")
        world.failures = 1
        await box.signal(job, "address", Address("1 High Street", "Kyoto"), once="form-1")
        await box.drain(with_scheduled=True, raises=False)
        print(await job.result())
        print(f"charged {len(world.bank.charges)} time, shipped {len(world.shipped)} time")


if __name__ == "__main__":
    asyncio.run(main())
