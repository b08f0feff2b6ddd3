"""Examples under `--help`, one text per command: texts may name methods, Python may not."""

from importlib.resources import files


def epilog(command: str) -> str:
    return files(__name__).joinpath(f"{command}.txt").read_text(encoding="utf-8").rstrip("\n")
