"""`GET /openapi.json`, and the page at `/docs`.

    document.py      builds the document from the models and tables that serve requests; open it first
    calls.py         the operations of the tenant API and of the open calls; the admin API has its own table
    schemas.py       responses of the tenant endpoints, and the headers of requests and responses
    responses.py     responses of the Responses API; anthropic.py, of Anthropic's
    refine.py        adapts pydantic's schemas to client generators
    descriptions.py  a line for each property; figure_descriptions.py, record_descriptions.py and
                     simulation_descriptions.py, for those subjects
    examples.py      a body for each operation
    page.py          the document as a page: the unmodified Swagger UI from `vendor/`

The document is built once, on its first request; other requests do not use this package."""
