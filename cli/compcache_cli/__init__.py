"""The command line of compcache: a Typer app over the library. The only place that imports typer and rich."""
