"""One module per subcommand: `add_parser(subparsers)` returns its parser, `run(args)` returns the exit code."""
