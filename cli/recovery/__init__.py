"""`fairlane backup`, `restore` and `migrate`: the state of an installation, saved, restored, and converted.

    families.py     which keys of the store are saved
    snapshot.py     reads them while gateways serve, and writes them again
    archive.py      a backup in a folder or bucket: a manifest, and parts with checksums
    contents.py     the contents of tenants' files
    place.py        the settings' stores, also the embedded one
    command.py      `backup` and `restore`
    migrate.py      `migrate`

Keys of one root organisation are read in one step. A request that runs at that moment is in the backup as an open
reservation: what it was charged until then stays charged, and after a restore its lease has run out, so that a gateway
settles it as it settles the requests of a killed gateway."""
