"""A web page and a JSON API of one task log, by starlette and uvicorn; no Spark.

``command`` is ``taskq web``. ``mount`` builds the site and listens, ``door`` checks access,
``pages`` and ``api`` answer. Begin at ``mount``.
"""
