"""The HTTP face: authenticates, reserves, admits, queues and streams back."""
