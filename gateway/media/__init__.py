"""Media in requests: where an image or a sound comes from, and whether it may be read.

    reader.py     reads the media of a request, within their bounds; open it first
    base64s.py    decodes media that a request contains
    fetcher.py    fetches media by URL: allowed hosts, checked addresses, redirects, time and concurrency
    addresses.py  which hosts and addresses may be fetched from
    response.py   a server's response, parsed within bounds
    formats.py    the format and the pixels of media, by their first bytes
    refusal.py    the reason why media are not read

Nothing that a caller or a server sends is trusted: hosts come from the settings, addresses are checked and connected to
without another lookup, formats come from the bytes, and every size and time has a bound. Nothing is decoded, and no URL
or host is logged. Independent of dialects and engines."""
