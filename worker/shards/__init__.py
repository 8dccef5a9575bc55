"""A worker at the shards of its queue, of which there is one unless the setting `worker.queue_shards` says otherwise.

division.py       the free capacity, divided over the shards: start here
line.py           the calls to one shard
store_reports.py  the reports of one shard's jobs"""
