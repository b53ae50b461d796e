"""`radixrt cache`: the prefixes on disk, of all models."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from radixrt.cli.command import Command
from radixrt.errors import RadixRTError

if TYPE_CHECKING:
    from radixrt.parts.tiers.folder import StoredModel


def _add_cache(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="what is on disk", description="List the models with prefixes on disk.")
    text = "Remove prefixes from disk, of engines that do not run: all, or those of one model or one client."
    wiping = actions.add_parser("wipe", help="remove prefixes", description=text)
    for each in (listing, wiping):
        each.add_argument("--kv-disk", metavar="FOLDER", help="the option of the server (default: that of --persist)")
    wiping.add_argument("--model", help="name or folder of one model, as the list shows it; default: all")
    owner = wiping.add_mutually_exclusive_group()
    owner.add_argument("--key", metavar="NAME", help="the prefixes of the API key of this name alone")
    owner.add_argument("--cache-group", metavar="NAME", help="the prefixes of this group of API keys alone")
    wiping.add_argument("--salt", help="the prefixes with this cache_salt alone, with --key that client's")


def _cache(args: argparse.Namespace) -> int:
    from radixrt.engine.tier_options import default_folder
    from radixrt.parts.tiers.folder import stored_models

    root = default_folder() if args.kv_disk is None else Path(args.kv_disk)
    models = stored_models(root)
    if args.action == "list":
        print("\n".join(_lines(models)) if models else f"no prefixes in {root}")
        return 0
    if args.model is not None:
        models = [each for each in models if args.model in (each.model, each.folder.name)]
        if not models:
            raise RadixRTError(f"{root} has no model {args.model!r}; `radixrt cache list` shows those that it has")
    return max([_wipe(each, args) for each in models], default=0)


def _lines(models: list[StoredModel]) -> list[str]:
    rows = [("MODEL", "TOKENS", "MIB", "LAST USED", "FOLDER")]
    for each in models:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.used)) if each.used else "never"
        size = f"{each.num_bytes / 2**20:.1f}"
        where = f"{each.folder.name}{' (in use)' if each.in_use else ''}"
        rows.append((each.model or "?", str(each.pages * each.page), size, used, where))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return [
        "  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[-1]]) for row in rows
    ]


def _wipe(stored: StoredModel, args: argparse.Namespace) -> int:
    """Remove prefixes of a model; return the exit code."""
    from radixrt.parts.tiers.folder import FolderInUse, forget_stored, remove_model
    from radixrt.server.access.tenants import EVERYONE, Tenant

    name = stored.model or stored.folder.name
    has_owner = args.key is not None or args.cache_group is not None
    try:
        if has_owner or args.salt is not None:
            tenant = Tenant(args.key or "", cache_group=args.cache_group) if has_owner else EVERYONE
            namespace = tenant.namespace(args.salt or "")
            count = forget_stored(stored.folder, namespace, whole_owner=args.salt is None)
            print(f"{name}: removed {count * stored.page} tokens")
        else:
            remove_model(stored.folder)
            print(f"{name}: removed {stored.pages * stored.page} tokens")
    except FolderInUse:
        print(f"{name}: in use; stop the server, or send it POST /forget")
        return 1
    except OSError as error:
        raise RadixRTError(f"{stored.folder} cannot be changed: {error}") from error
    return 0


CACHE = Command(
    "list and remove prefixes on disk",
    "List and remove the prefixes that servers with --kv-disk or --persist have left on disk.",
    _add_cache,
    _cache,
)
