"""A folder in which user data runs as if it were a fresh instance.

Every path that it writes to is turned into one below the folder, and it finds no programs but
harmless ones and stand-ins that record how they were called.
"""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

TOKEN = "0f" * 32
WHEEL_KEY = "wheels/1f2e3d/headwater-0.1.0-py3-none-any.whl"

_REAL = (
    "awk", "bash", "cat", "chmod", "cmp", "env", "grep", "mktemp", "mv", "rm", "tee", "tr",
)  # fmt: skip
_RECORD = '#!/bin/bash\necho "${0##*/} $*" >>"$SANDBOX/calls"\n'
_STAND_INS = {
    "aws": r"""
refuse() {
  echo "An error occurred ($1)" >&2
  exit 254
}
case "$1 $2" in
  's3 cp') from=${4#s3://*/} && cat "$SANDBOX/bucket/$from" >"$5" ;;
  'secretsmanager get-secret-value')
    [[ -f $SANDBOX/denied ]] && refuse AccessDeniedException
    [[ -f $SANDBOX/secret ]] || refuse ResourceNotFoundException
    cat "$SANDBOX/secret" ;;
  'secretsmanager put-secret-value') cat "${6#file://}" >"$SANDBOX/secret" ;;
  'ssm get-parameter') cat "$SANDBOX/pointer" ;;
esac""",
    "curl": r"""
case "${*: -1}" in
  */instance-id) echo i-0123456789abcdef0 ;;
  */local-ipv4) echo 10.40.0.7 ;;
  *) echo a-session-of-imds ;;
esac""",
    "install": r"""
kept=()
while (($#)); do
  case $1 in -o | -g) shift 2 ;; *) kept+=("$1"); shift ;; esac
done
/usr/bin/install "${kept[@]}" """,
    "lsblk": 'cat "$SANDBOX/disks"',
    "mountpoint": "exit 1",
    "openssl": f"echo {TOKEN}",
    "pgrep": '[[ -f $SANDBOX/raylet ]] && rm "$SANDBOX/raylet"',
    "timeout": 'shift; "$@"',
    **dict.fromkeys(
        ("mdadm", "mkfs.xfs", "mount", "shutdown", "sleep", "systemctl", "systemd-run"), ""
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class NodeSandbox:
    folder: Path

    @classmethod
    def made_in(cls, folder: Path) -> "NodeSandbox":
        """A bare instance of a cluster whose token exists and whose bucket has what nodes fetch."""
        for name in ("bin", "bucket/cluster", "bucket/wheels/1f2e3d", "etc/logrotate.d",
                     "etc/systemd/system", "opt", "mnt", "var/log"):  # fmt: skip
            (folder / name).mkdir(parents=True)
        for program in _REAL:
            found = next(p for d in ("/usr/bin", "/bin") if (p := Path(d, program)).exists())
            (folder / "bin" / program).symlink_to(found)
        sandbox = cls(folder)
        for program, body in _STAND_INS.items():
            sandbox.stand_in(f"bin/{program}", body)
        sandbox.write("calls", "")
        sandbox.write("disks", "")
        sandbox.write("secret", TOKEN)
        sandbox.write("bucket/cluster/provision.sh", 'echo "provision $*" >>"$SANDBOX/calls"\n')
        sandbox.write("bucket/cluster/autoscaler.yaml", "cluster_name: river\n")
        sandbox.write(f"bucket/{WHEEL_KEY}", "a wheel")
        sandbox.write("bucket/wheels/1f2e3d/constraints.txt", "ray==2.60.0\n")
        return sandbox

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def stand_in(self, name: str, body: str) -> None:
        """Puts a program there that records its call, then does ``body``."""
        self.write(name, _RECORD + body + "\n")
        (self.folder / name).chmod(0o755)

    def read(self, name: str) -> str:
        return (self.folder / name).read_text(encoding="utf-8")

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        """Runs user data, each of its retries with one attempt."""
        moved = re.sub(r"(?<![\w.])/(etc|opt|mnt|var/log)/", rf"{self.folder}/\1/", script)
        moved = re.sub(r"\bretry \d+", "retry 0", moved)
        return self.bash("-c", moved)

    def bash(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/bin/bash", *arguments],
            env={"PATH": str(self.folder / "bin"), "SANDBOX": str(self.folder)},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    def calls(self, program: str = "") -> list[str]:
        """Command lines in their order."""
        lines = self.read("calls").replace(f"{self.folder}/", "/").splitlines()
        return [line for line in lines if line.startswith(f"{program} " if program else "")]
