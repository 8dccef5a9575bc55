"""The operators' console: static files served at `/`, and signing in and out.

    routes.py          which files are served, and the session
    sign_in.py         to a company's identity provider, and back from it
    static/            the page: plain ES modules without a build step
      index.html         what stands around every view; `theme.js` sets the theme before the first paint
      app.js             the shell: which view the address names, navigation, sign-in and sign-out
      api.js, session.js, live.js   the admin API; who is signed in and may do what; the one stream of events
      dom.js, format.js  elements and figures
      parts/             what views share: tables, forms and dialogs, charts, the map of blocks
      views/             one module for each view; a tenant's tabs are `tenant_*.js`
      style.css, parts.css, views.css   colours and shell; shared parts; what one view alone has
    vendor/            uPlot, which draws the charts

Its pages call the operators' API like any other client, and put all text from outside into text nodes. Whoever signed
in has a session (`gateway.operators.sessions`), not the key. A view whose API an older gateway has not says so.
"""
