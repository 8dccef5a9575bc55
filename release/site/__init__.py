"""The documentation as a site: `python -m release.site` writes the pages that MkDocs builds into build/docs.

These are the pages of docs/, what they link to elsewhere in the repository (`pages.py`), and a reference that is
generated from the OpenAPI document (`endpoints.py`) and from the `fairlane` command."""
