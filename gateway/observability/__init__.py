"""What a gateway tells of itself: metrics (also of the processes beside it), traces, one log line for each request.

No prompt, no key and no content stands in any of the three.
"""
