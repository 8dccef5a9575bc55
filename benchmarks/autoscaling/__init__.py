"""What the chart's autoscalers do while the load changes, in virtual time: `python -m benchmarks.autoscaling`."""
