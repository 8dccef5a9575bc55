"""GET /openapi.json and the page at /docs.

    document.py      makes the document, from the models and tables that serve requests; open it first
    calls.py         the calls of the tenants' API, row by row; the admin APIs' are their own tables
    schemas.py       what the tenants' endpoints answer, and the headers of requests and answers
    responses.py     the same of the Responses API; anthropic.py, of Anthropic's
    refine.py        makes pydantic's schemas such that generators of clients understand them
    descriptions.py  a line for each property; figure_descriptions.py, record_descriptions.py and
                     simulation_descriptions.py, of those subjects
    examples.py      a body for each operation
    page.py          the document as a page: Swagger UI from `vendor/`, as it was published

Nothing here is asked for while a request is served: the document is made once, when somebody reads it.
"""
