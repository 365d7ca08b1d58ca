"""Jobs for devices: what a hub's programs enqueue, how a device takes it, and how it ends.

A job for a device stands in a log of the hub's own, in queue ``to:<device>``, which is paused: no
worker takes it. It stays *ready* for weeks, until its end is reported, and is claimed and ended
then in one frame. A device asks for what is new for it (``lines``) behind what it has just sent,
and publishes that into its inbox, which adopts exactly once (``taking``). Results need no way of
their own: the end is a record of the device's log, which arrives anyway, and is read from the copy
(``reading``, ``handing``).

Three locks keep a job from being enqueued twice in a history that survives: the name of the upload,
the key that the job has on the device until it ends, and that nothing is handed over before all
that the device had sent is read: what is alive there, or ended there, is not sent. What is open
though the device says that it took it is looked for in everything the hub ever had of the device.
Found nowhere it is handed over once more, or buried as lost where a gap may have held its end.

A job's identity is its id and a random word (``hub-nonce``): a hub that is set back in place may
give an id twice.
"""
