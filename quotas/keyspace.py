"""Every Redis key of this package: the legend, and the names that several modules build.

The keys of one root organisation share a hash tag, so that a script sees all of them on a Cluster:

    fl:quota:{R}:                       prefix of the root R, passed to every script, which appends:
        tenant:<id>          hash       state, version, incarnation, zone (JSON of windows.zone_table), doc (JSON of a
                                        Tenant), by (JSON [[model, lane], …]), parents (JSON of accounts, nearest
                                        first), barred (tenant_bar)
        past:<id>            zset       accounts of deleted tenants of this id whose ledger is kept, by deletion, ms
        gone                 zset       accounts whose data must be erased, by when the next pass is due, ms
        gone:<T>             hash       inputs of the erasure: deleted_ms, created_s, share_group, by (as above),
                                        with_ledger if the ledger must be erased too
        children:<id>        set        ids of tenants that have this one as parent
        key:<K>              hash       state, tenant, expires_ms ('' = never), version, doc (JSON of an
                                        ApiKey), used_ms (last use, to the minute)
        barred:<K>           string     no key of this id may be written: another key has its imported secret
                                        (key_bar); expires after an hour
        keys:<T>             zset       public ids of the tenant's keys by creation, ms; of a deleted tenant, those that
                                        are not erased yet
        card:<L>             string     state and limits, packed (records.lua), as operators configured them
        figures:<L>          string     what reservations hold, the minute's sums and newest slices, the day and the
                                        month, packed (records.lua); of a deleted level, expires after 70 days
        minute:<L>           hash       older slices of the minute, if they are many (window.lua); expires after 2
                                        minutes
        spent:<L>:<YYYY-MM>  hash       tokens charged on past days: day of month → tokens, month → tokens; money, if
                                        any: <day>:spend, month:spend; expires after 70 days
        paused:<L>           zset       reservations that wait for room in the minute, by when they paused, ms
                                        (sizing.lua)
        reservation:<F>      string     a reservation, packed (records.lua); a mark for 10 minutes after its end
        leases               zset       open reservations by the end of their lease, ms
        escrow:<E>           string     rights that a gateway spends without a call, packed (escrow.lua); kept for 10
                                        minutes after their end
        escrows              zset       open pools by the time until which their rights may be spent, ms
        reply:<C>            string     reply to a change, by the name of its call (once.lua); expires after a minute
        audit                list       entries waiting to be moved to the audit log: time, ms, and JSON; at most 1,000
        idem:<K>:<D>         hash       a request with an idempotency key of digest D: print, owner, began_ms, lease_ms,
                                        once ended status, headers, body (compressed); expires 24 hours after it
                                        began, or with its tenant
        idems:<K>            zset       the digests of those, by when they began, ms
        answers:<K>          zset       the digests of those with a body, by when they began, ms
        kept:<K>             hash       digest → bytes of its body, total → their sum
        paid:<K>:<D>:<P>     hash       input, output, until_ms: tokens that the runs of one request under an
                                        idempotency key have paid for (P: prefix of its fingerprint); cached: cached
                                        tokens of the settled ones; counted: one of them is in the sums of
                                        usage; prices: expiry, ms, and the prices of its first run, packed; expires with
                                        idem:<K>:<D>
        runs:<K>:<D>:<P>     zset       the same request's last reservations that were not refunded, by start, ms
        response:<T>:<D>     hash       body: a stored response, sealed (responses.py); D: digest of its id; expires
        responses:<T>        zset       the digests of those, by expiry, ms
        responsebytes:<T>    hash       digest → bytes of its body, total → their sum
        seal:<T>             string     32 random bytes in hex; they key the tenant's seal (responses.py)
        ledger:<T>           stream     one entry per settled request, bounded in bytes and days
        exported:<T>         hash       id of the last exported entry, and number: the count of entries up to it
        usage:<T>:<date>     hash       the ledger's day sums: lane TAB model TAB key → sums, packed
        usage:<T>:<YYYY-MM>  hash       the same for the month's days that were rolled up; expires after some years
        rolled:<T>           string     the last day that was rolled up, as a date (usage_roll)
        rolling:<T>          string     during a roll-up: its last day, and the number of calls made

T is a tenant's account: its id, followed by `~` and its incarnation unless that is empty. The first tenant of an id has
the empty incarnation; each later one draws its own, so that no data of a deleted tenant is found under its keys.

L is a level: `tenant:<T>`, `key:<K>` or `by:<T>:<lane>:<model>`. One root has a name that no tenant can have:

    fl:quota:{#prices}:      prefix of what all roots share, with the outbox `audit` as above:
        prices               hash       version, doc (JSON of the rows of a PriceList)

Keys outside the roots:

    fl:apikey:<K>            hash       root, tenant and hash of a public id; without a hash no secret matches it. An
                                        imported key has its key below as `imported`. A way (delegated_keys.py) has the
                                        public id of its key as `key`, and that key the way's as `way`
    fl:imported:<H>          hash       id, root and tenant of an imported key, by a keyed hash of its SHA-256
    fl:hashing               string     32 random bytes in hex; they key the hashes of API keys
    fl:pseudonyms            string     32 random bytes in hex; they key the pseudonyms in request traces
    fl:tenants               zset       `<tenant> <root>`, all with score 0: the index of tenants
    fl:claims:{fl:tenants}   hash       SHA-1 of a tenant's id → how often the id went to another root or was dropped
                                        (tenants.py); few exist
    fl:erasing               zset       roots that may have accounts in `gone`, by when they were listed, ms
    fl:eraser                string     the gateway that runs the erasure rounds; expires after some minutes
    fl:roots                 zset       roots with recent reservations or changes, by their last enlistment, ms
    fl:reaper                hash       the last search for lapsed leases (watch)
    fl:gateways              zset       gateways that share the budgets, by their last heartbeat, ms
    fl:rollup                string     set while ledgers are rolled up, and for a day afterwards
    fl:export                string     the last segment of the ledgers' export, and whether it is written (JSON)
    fl:export:audit          string     the same of the audit log's export
    fl:exporter              string     the gateway that exports the ledgers; expires after some seconds
    fl:exporter:audit        string     the same of the audit log's
    fl:audit                 stream     changes by the admin API, about the last 100,000
    fl:audited:{fl:audit}    zset       ids of those entries, by when they were written, ms
    fl:exported:{fl:audit}   hash       id of the last exported entry of the audit log, and number, as in exported:<T>
    fl:redacted:{fl:audit}   stream     the audit log as an erasure rewrites it, until it replaces the log
    fl:redacting:{fl:audit}  string     the caller that rewrites it; expires after some seconds
"""

HASHING = "fl:hashing"
PSEUDONYMS = "fl:pseudonyms"
TENANTS = "fl:tenants"
CLAIMS = f"fl:claims:{{{TENANTS}}}"
ROOTS = "fl:roots"
ERASING = "fl:erasing"
ERASER = "fl:eraser"
REAPER = "fl:reaper"
GATEWAYS = "fl:gateways"
ROLL_UP = "fl:rollup"
EXPORT = "fl:export"
EXPORTER = "fl:exporter"
AUDIT = "fl:audit"
AUDIT_EXPORT = "fl:export:audit"
AUDIT_EXPORTER = "fl:exporter:audit"
AUDIT_EXPORTED = f"fl:exported:{{{AUDIT}}}"
PRICES_ROOT = "#prices"
PRICES = f"fl:quota:{{{PRICES_ROOT}}}:prices"
# Separates a tenant's id from its incarnation; no id contains it.
_INCARNATION = "~"


def account(tenant_id: str, incarnation: str) -> str:
    """Return the name under which the store keeps one tenant's data, distinct from earlier tenants with the same id."""
    return f"{tenant_id}{_INCARNATION}{incarnation}" if incarnation else tenant_id


def tenant_of(account: str) -> str:
    """Return the tenant id of an account."""
    return account.partition(_INCARNATION)[0]


def incarnation_of(account: str) -> str:
    """Return the incarnation of an account; empty for the first tenant of its id."""
    return account.partition(_INCARNATION)[2]


def of_root(root: str) -> str:
    """Return the prefix of all keys of a root organisation."""
    return f"fl:quota:{{{root}}}:"


def api_key(public_id: str) -> str:
    """Return the key of an API key's root, tenant and hash."""
    return f"fl:apikey:{public_id}"


def idempotency(root: str, public_id: str, digest: str) -> str:
    """Return the key of an idempotency record."""
    return f"{of_root(root)}idem:{public_id}:{digest}"


def tenant_level(tenant: str) -> str:
    """Return the level id of a tenant."""
    return f"tenant:{tenant}"


def model_lane_level(tenant: str, model: str, lane: str) -> str:
    """Return the level id of a tenant's model, lane or both; empty means any."""
    return f"by:{tenant}:{lane}:{model}"


def key_level(public_id: str) -> str:
    """Return the level id of an API key."""
    return f"key:{public_id}"
