"""A /proc with a kubelet, in a directory."""

from pathlib import Path


def kubelet(root: Path, *words: str, pid: int = 7, files: dict[str, str] | None = None, started: int = 100) -> None:
    """A process of that name; `files` are those that it sees."""
    process = root / "proc" / str(pid)
    process.mkdir(parents=True, exist_ok=True)
    (process / "comm").write_text("kubelet\n")
    (process / "stat").write_text(f"{pid} (kubelet) S 1{' 0' * 17} {started} 0\n")
    (process / "status").write_text(f"Name:\tkubelet\nUid:\t0\t0\t0\t0\nNSpid:\t{pid}\n")
    (process / "cmdline").write_bytes(b"\0".join(word.encode() for word in ("/usr/bin/kubelet", *words)) + b"\0")
    for path, text in (files or {}).items():
        file = process / "root" / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (process / "root/etc").mkdir(parents=True, exist_ok=True)
