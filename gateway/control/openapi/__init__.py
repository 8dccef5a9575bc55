"""`GET /openapi.json`, and the page at `/docs`.

    document.py      builds the document from the models and tables that serve requests; open it first
    calls.py         the operations of the tenant API, and those without a key; the admin API declares its own.
                     stored_calls.py and self_service_calls.py have parts of them
    answers.py       responses of the tenant API
    headers.py       headers of requests and responses
    refine.py        adapts pydantic's schemas to client generators
    descriptions.py  descriptions of the properties of the tenant API's bodies
    examples.py      a request body for each operation
    page.py          the document as a page: the unmodified Swagger UI from `vendor/`

The document is built once, on its first request; other requests do not use this package."""
