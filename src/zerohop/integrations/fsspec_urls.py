"""Splits the URLs of files on servers into the server and the path there, and makes them again."""

from __future__ import annotations

import ipaddress
import re
from typing import Any, Final

from fsspec.utils import stringify_path

from zerohop.core.face import parse_url

PROTOCOL: Final = "zerohop"
SCHEME: Final = f"{PROTOCOL}://"
# A server's own URL ends with a Context, its host, and its Unix socket, whose path has one form. Only these words count
# as a query: the name of a file may have a question mark.
_SERVER: Final = re.compile(
    rf"{SCHEME}[^/?]*(?:/(?:[0-9a-f]{{32}})?\?host=[0-9a-f]{{32}}(?:&unix=[^?&#]*?/zerohop-[0-9]+-[a-z0-9_]+/s)?(?=/|$))?"
)


def split(url: str) -> tuple[str, str]:
    """Return the URL of the server, as ``open_store`` takes it, and the path there; for a path: no URL, and itself.

    A path follows ``zerohop://HOST:PORT/``, or all of a server's URL and a slash.

    Raises:
        ValueError: fsspec has cut the URL into pieces.
    """
    if not url.startswith(SCHEME):
        return "", url
    if url == f"{SCHEME}[" or (url.startswith(f"{SCHEME}[") and "]" not in url):
        raise ValueError(
            "fsspec takes :: for the end of a URL: write all eight parts of the address, "
            f"{SCHEME}[0:0:0:0:0:0:0:1]:PORT/path"
        )
    found = _SERVER.match(url)
    assert found is not None  # it begins with the scheme
    server = found[0]
    return "" if server == SCHEME else server, url[len(server) :]


def name_of(path: Any) -> str:
    """Return the path in its Store that a path or a URL means.

    Raises:
        TypeError: it is neither.
    """
    text = stringify_path(path)
    if not isinstance(text, str):
        raise TypeError(f"a path is a string, not {type(path).__name__}")
    return split(text)[1].strip("/")


def is_same(server: str, other: str) -> bool:
    """Tell whether two URLs lead to one server, as far as they say: by their Contexts, or by host and port."""
    first, second = parse_url(server), parse_url(other)
    if first.context and second.context:
        return first.context == second.context
    return first.listens and (first.host, first.port) == (second.host, second.port)


def url_of(folder: str, name: str) -> str:
    """Return the URL of a file by which fsspec finds it.

    Args:
        folder: that of the Store: a path on this machine, or the URL of a server.
        name: the path there.
    """
    if not folder.startswith(SCHEME):
        return f"file://{folder.rstrip('/')}/{name}"
    address = parse_url(folder)
    if ":" in address.host:
        address = address._replace(host=ipaddress.IPv6Address(address.host).exploded)
    return f"{address.url().rstrip('/')}/{name}"
