"""The tenants' portal at `/portal`: a page of the tenant API, for a tenant's owner.

    routes.py   the files that are served: its own, and the console's modules and styles that it shares
    static/     the page: `app.js` is the shell, `account.js` keeps the key and calls the API; the others are its views

There is no session and no cookie: the browser keeps the key for its tab alone, and sends it in a header."""
