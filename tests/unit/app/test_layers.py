"""The HTTP edge loads without the packages that only engines and deployments may know."""

import subprocess
import sys


def test_the_server_loads_neither_ray_nor_torch_nor_transformers() -> None:
    code = (
        "import sys, app.server, app.channel;"
        "print([name for name in ('ray', 'torch', 'transformers') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
