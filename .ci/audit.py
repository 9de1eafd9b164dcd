"""Look up the advisories known about the packages of an environment.

    python .ci/audit.py PIP_AUDIT PYTHON

Fails with 1 if there are advisories, and with 2 if some packages could not be looked up, for
example because the advisory service cannot be reached: an audit that saw nothing must not look like
a clean one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

LIST = """
from importlib.metadata import distributions
names = {(d.metadata["Name"], d.version.partition("+")[0]) for d in distributions()}
print("\\n".join(f"{name}=={version}" for name, version in sorted(names) if name != "heatproof"))
"""


def main(pip_audit: str, python: str) -> int:
    """Print what was found, and return the exit code."""
    listed = subprocess.run([python, "-c", LIST], capture_output=True, text=True, check=True)
    with tempfile.TemporaryDirectory() as folder:
        requirements = Path(folder) / "requirements.txt"
        requirements.write_text(listed.stdout)
        command = [pip_audit, "-r", str(requirements), "--no-deps", "--disable-pip", "-f", "json"]
        audit = subprocess.run(
            [*command, "--progress-spinner", "off"], capture_output=True, text=True, check=False
        )
    try:
        packages = json.loads(audit.stdout)["dependencies"]
    except (ValueError, KeyError):
        print(audit.stderr, file=sys.stderr)
        print("pip-audit failed: is the advisory service reachable?", file=sys.stderr)
        return 2
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    found = 0
    for package in packages:
        for advisory in package.get("vulns", []):
            found += 1
            fixed = ", ".join(advisory["fix_versions"]) or "no version"
            print(f"{package['name']} {package['version']}: {advisory['id']}, fixed in {fixed}")
    print(
        f"{len(packages) - len(skipped)} of {len(packages)} packages looked up, {found} advisories"
    )
    if skipped:
        print(
            f"not looked up: {', '.join(skipped[:8])}{' …' if len(skipped) > 8 else ''}. Is the "
            "advisory service reachable?",
            file=sys.stderr,
        )
        return 2
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
