"""GET /openapi.json and the page at /docs.

    document.py      makes the document, from the models and tables that serve requests; open it first
    schemas.py       what the tenants' endpoints answer, and the headers of requests and answers
    refine.py        makes pydantic's schemas such that generators of clients understand them
    descriptions.py  a line for each property
    examples.py      a body for each operation
    page.py          the document as a page: Swagger UI from `vendor/`, as it was published

Nothing here is asked for while a request is served: the document is made once, when somebody reads it.
"""
