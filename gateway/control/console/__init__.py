"""The operators' console: static files served at `/`, and sign-in and sign-out.

    routes.py          the files that are served, and the session
    sign_in.py         redirect to an identity provider, and its callback
    static/            the page: plain ES modules without a build step
      index.html         the frame of every view; `theme.js` sets the theme before the first paint
      app.js             the shell: routing, navigation, sign-in and sign-out
      api.js, session.js, live.js   the admin API; the operator and role; the one stream of events
      dom.js, format.js  elements and number formats
      parts/             shared by views: tables, forms and dialogs, charts, the map of blocks
      views/             one module for each view; a tenant's tabs are `tenant_*.js`
      style.css, parts.css, views.css   colours and shell; shared parts; single views
    vendor/            uPlot, which draws the charts

The page uses the operators' API like any other client, and puts all text from outside into text nodes. The browser has
a session (see `control.operators.sessions`), not the key. A view reports if the gateway is too old to have its API."""
