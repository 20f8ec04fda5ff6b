"""`GET /`: the chat page, one file, which runs its own script and no other."""

import base64
import hashlib
import re
from functools import cache
from pathlib import Path

from starlette.responses import Response

_FILE = Path(__file__).with_name("chat.html")


@cache
def _parts() -> tuple[bytes, str]:
    """Return the page, and the policy that allows its script and its style by their hashes."""
    page = _FILE.read_text("utf-8")
    script, style = (
        "sha256-" + base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode()
        for found in (
            re.search(f"<{name}>(.*?)</{name}>", page, re.DOTALL) for name in ("script", "style")
        )
        if found is not None
    )
    policy = (
        f"default-src 'none'; script-src '{script}'; style-src '{style}'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    return page.encode(), policy


def chat_page() -> Response:
    """Return the page."""
    page, policy = _parts()
    headers = {
        "Content-Security-Policy": policy,
        "Cache-Control": "no-cache",
        "Referrer-Policy": "no-referrer",
    }
    return Response(page, headers=headers, media_type="text/html")
