"""Export the ledger before the store drops its entries: each entry exactly once, into a folder or a bucket.

    exporter.py    takes what is not exported yet, a segment at a time, and stores it

A segment is one object of JSON lines, `<day>/<number>.jsonl`, with entries of one UTC day and of any number of tenants.
The store holds the last segment's plan, and for each tenant a mark, the last entry that is exported:

    1. collect entries behind each tenant's mark
    2. write the segment's plan (which entries of which tenants) to the store, in place of the last segment's
    3. store the object, unless it is there
    4. move each tenant's mark
    5. write to the store that the segment is finished

An exporter that is killed is followed by another gateway's, which finds the plan and continues behind step 2. The plan
names the entries, so whoever carries it out stores the same lines under the same name, and an entry is in no two plans.
Two exporters at a time do the same work twice and no harm: the plan is replaced only as it was read.

A store that failed over may have lost the last plan, or marks. The next plan then takes a number that no object has, so
that no entry is taken for stored that is not; entries whose export was forgotten are exported again.

What the byte bound of a tenant's ledger drops before it is exported is lost, and counted.
"""
