"""Many logs below one root, as one app: which a call belongs to, and who is what on disk.

Pure but for one small file. The app that spreads its calls over them is in ``taskq.app.logs``.
Begin with ``layout``.
"""
