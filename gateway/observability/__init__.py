"""What a gateway tells of itself: metrics (also of its sibling processes), traces, one log line for each request."""
