"""Export of the ledger before the store drops its entries: each entry exactly once, into a folder or a bucket.

The audit log is exported in the same way, as one account.

    exporter.py    stores unexported entries, one segment at a time

A segment is one object of JSON lines, `<day>/<number>.jsonl`, with entries of one UTC day and any number of tenants.
The store holds the plan of the latest segment and, for each tenant, a mark: its last exported entry.

    1. collect entries behind each tenant's mark
    2. write the segment's plan (the entries of each tenant) to the store, replacing the previous plan
    3. store the object, unless it exists
    4. move each tenant's mark
    5. write to the store that the segment is finished

If an exporter is killed, another gateway's finds the plan and continues after step 2. The plan names the entries, so
any exporter stores the same lines under the same name, and no entry is in two plans. Two concurrent exporters repeat
each other's work without harm: a plan is only replaced if it has not changed since it was read.

After a failover the store may have lost the latest plan or marks. The next plan then takes a number without an object,
so that no entry counts as stored too early. Entries whose mark was lost are exported again.

Entries that the byte limit of a tenant's ledger drops before their export are lost, and counted."""
