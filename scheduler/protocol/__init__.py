"""What crosses a process, and nothing else: messages, lanes, settings. Imports nothing of Fairlane."""
