"""The commands of the ``taskq`` command line, imported only when one of them runs.

A command is the attribute of its module that has its name; the table in ``taskq.cli.main`` says
where each is. May import every room of the library, late where help would else be slow.
"""
