"""What `sparsec bench` measures: the protocol and floors of benchmarks/README.md. Imported only by the command and by scripts in benchmarks/."""
