"""Every Redis key of this package: the legend, and the only place where names are built.

All that belongs to one root organisation stands under one hash tag, so that a script sees it whole on a Cluster:

    fl:quota:{R}:                       prefix of the root R, given to every script, which appends:
        tenant:<id>          hash       state, version, incarnation, zone (JSON of windows.zone_table), doc (JSON of a
                                        Tenant), by (JSON [[model, lane], …]), parents (JSON of accounts, nearest
                                        first), barred (tenant_bar.lua)
        past:<id>            zset       accounts of deleted tenants of this id whose ledger is kept, by deletion, ms
        gone                 zset       accounts whose data is to be erased, by when the next pass is due, ms
        gone:<T>             hash       what the erasure needs: deleted_ms, created_s, share_group, by (as above),
                                        with_ledger where the ledger is erased too
        children:<id>        set        ids of tenants whose parent it is
        key:<K>              hash       state, tenant, expires_ms ('' = never), version, doc (JSON of an
                                        ApiKey), used_ms (when it was last used, to the minute)
        barred:<K>           string     no key of this id may be written: another key has its imported secret
                                        (key_bar); expires after an hour
        keys:<T>             zset       public ids of the tenant's keys by creation, ms; of a deleted tenant, those that
                                        are not erased yet
        card:<L>             string     state and limits, packed (records.lua), as operators wrote them
        figures:<L>          string     what reservations hold, the minute's sums and newest slices, the day and the
        month, packed (records.lua); where the level is no more, gone after 70 days
        minute:<L>           hash       older slices of the minute, where they are many (window.lua); expires after 2
                                        minutes
        spent:<L>:<YYYY-MM>  hash       tokens charged on days that are over: day of month → tokens, month → tokens; of
                                        money, where there was some: <day>:spend, month:spend; expires after 70 days
        paused:<L>           zset       reservations that wait for the minute to have room, since when, ms (sizing.lua)
        reservation:<F>           string     a reservation, packed (records.lua); its mark for 10 minutes after its end
        leases               zset       open reservations by the end of their lease, ms
        reply:<C>            string     reply to a change, by the name of its call (once.lua); expires after a minute
        audit                list       entries on their way into the audit log: when, ms, and JSON; at most 1,000
        idem:<K>:<D>         hash       a request with an idempotency key of digest D: print, owner, began_ms, lease_ms,
                                        once ended status, headers, body (compressed); gone 24 hours after it began, or
                                        with its tenant
        idems:<K>            zset       the digests of those, by when they began, ms
        answers:<K>          zset       the same, of those with a body
        kept:<K>             hash       digest → bytes of its body, total → their sum
        paid:<K>:<D>:<P>     hash       input, output, until_ms: tokens that the runs of one request under an
                                        idempotency key have paid for (P: of its fingerprint); counted: one of them is
                                        in the sums of usage; prices: until when, ms, and those of its first run,
                                        packed; goes with idem:<K>:<D>
        runs:<K>:<D>:<P>     zset       the same request's last reservations that were not given back, by when, ms
        response:<T>:<D>     hash       body: a response that is kept, sealed (responses.py); D: digest of its id;
                                        expires
        responses:<T>        zset       the digests of those, by when they go, ms
        responsebytes:<T>    hash       digest → bytes of its body, total → their sum
        ledger:<T>           stream     one entry per settled request, bounded in bytes and days
        exported:<T>         hash       id of the last entry that was exported, and number: how many were added up to it
        usage:<T>:<date>     hash       the ledger's day sums: lane TAB model TAB key → sums, packed
        usage:<T>:<YYYY-MM>  hash       the same of the month's days that were rolled up; expires after some years
        rolled:<T>           string     the last day that was rolled up, as a date (usage_roll)
        rolling:<T>          string     while days are rolled up: the last of them, and how many calls were made

T is a tenant's account: its id, followed by `~` and its incarnation where that is not empty. The first tenant of an id
has the empty incarnation; each later one draws its own, so that nothing of a deleted tenant is found under its keys.

L is a level: `tenant:<T>`, `key:<K>` or `by:<T>:<lane>:<model>`. As a root whose name no tenant can have stands

    fl:quota:{#prices}:      prefix of what all roots share, with the outbox `audit` as above:
        prices               hash       version, doc (JSON of the rows of a PriceList)

Outside the roots, each one key of its own:

    fl:apikey:<K>            hash       root, tenant and hash of a public id; without a hash no secret leads to it. An
                                        imported key has its key below as `imported`. A way (delegated_keys.py) has the
                                        public id of its key as `key`, and that key the way's as `way`
    fl:imported:<H>          hash       id, root and tenant of an imported key, by a keyed hash of its SHA-256
    fl:hashing               string     32 random bytes in hex; they key the hashes of API keys
    fl:pseudonyms            string     32 random bytes in hex; they key the names in request traces
    fl:tenants               zset       `<tenant> <root>`, all with score 0: the tenants by name
    fl:claims:{fl:tenants}   hash       SHA-1 of a tenant's id → how often the id was given to another root or forgotten
                                        (tenants.py); few are
    fl:erasing               zset       roots that may have something in `gone`, by when they were listed, ms
    fl:eraser                string     the gateway that makes the rounds of erasure, for some minutes
    fl:roots                 zset       roots with reservations or changes lately, by when they were last enlisted, ms
    fl:reaper                hash       when somebody last looked for lapsed leases (watch.lua)
    fl:gateways              zset       gateways that share the budgets, by when they last said so, ms
    fl:rollup                string     somebody rolls up the ledgers, or did so within the last day
    fl:export                string     the last segment of the ledgers' export, and whether it is written (JSON)
    fl:exporter              string     the gateway that exports the ledgers, for some seconds
    fl:audit                 stream     what the admin API changed, about the last 100,000
    fl:audited:{fl:audit}    zset       ids of those entries, by when they were written, ms
    fl:redacted:{fl:audit}   stream     the audit log as an erasure rewrites it, until that takes its place
    fl:redacting:{fl:audit}  string     who rewrites it, for some seconds
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
PRICES_ROOT = "#prices"
_INCARNATION = "~"
"""Separates a tenant's id from its incarnation; no id contains it."""


def account(tenant_id: str, incarnation: str) -> str:
    """Return the name under which the store keeps what belongs to one tenant, whoever had the id before it."""
    return f"{tenant_id}{_INCARNATION}{incarnation}" if incarnation else tenant_id


def tenant_of(account: str) -> str:
    """Return the tenant's id of an account."""
    return account.partition(_INCARNATION)[0]


def incarnation_of(account: str) -> str:
    """Return the incarnation of an account; empty for the first tenant of its id."""
    return account.partition(_INCARNATION)[2]


def of_root(root: str) -> str:
    """Prefix of all keys of a root organisation."""
    return f"fl:quota:{{{root}}}:"


def prices() -> str:
    """Where the price list stands."""
    return f"{of_root(PRICES_ROOT)}prices"


def outbox(root: str) -> str:
    """Where entries of the audit log wait to be moved there."""
    return f"{of_root(root)}audit"


def api_key(public_id: str) -> str:
    """Where a key's root and tenant stand."""
    return f"fl:apikey:{public_id}"


def imported_key(digest: str) -> str:
    """Where the public id of a key of other software stands."""
    return f"fl:imported:{digest}"


def idempotency(root: str, public_id: str, digest: str) -> str:
    """Where the record of a request with an idempotency key stands."""
    return f"{of_root(root)}idem:{public_id}:{digest}"


def idempotency_indexes(root: str, public_id: str) -> tuple[str, str, str]:
    """Where those records of an API key are listed, those with answers, and the bytes of these."""
    return (
        f"{of_root(root)}idems:{public_id}",
        f"{of_root(root)}answers:{public_id}",
        f"{of_root(root)}kept:{public_id}",
    )


def response(root: str, tenant: str, digest: str) -> str:
    """Where a kept response stands."""
    return f"{of_root(root)}response:{tenant}:{digest}"


def seal(root: str, tenant: str) -> str:
    """Where the key stands by which a tenant's things are sealed."""
    return f"{of_root(root)}seal:{tenant}"


def tenant_level(tenant: str) -> str:
    """Under which id a tenant's limits and figures are kept."""
    return f"tenant:{tenant}"


def model_lane_level(tenant: str, model: str, lane: str) -> str:
    """Under which id the limits of a tenant's model, lane or both are kept; empty: any."""
    return f"by:{tenant}:{lane}:{model}"


def key_level(public_id: str) -> str:
    """Under which id a key's limits and figures are kept."""
    return f"key:{public_id}"
