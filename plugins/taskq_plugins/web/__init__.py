"""A web page and a JSON API of one task log, by starlette and uvicorn; no Spark.

``command`` is ``taskq web``, ``mount`` listens, ``door`` keeps everybody else out, ``site`` puts
the rest together. Begin at ``mount``.
"""
