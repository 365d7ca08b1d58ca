"""The commands of the ``taskq`` command line, imported only when one of them runs.

A command is the attribute of its module that has its name; the table in ``taskq.cli.main`` has
the module of each command. Commands may import every room of the library, late if help would be
slow otherwise.
"""
