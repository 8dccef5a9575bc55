"""What the `fairlane` command does, one module per group of subcommands."""
